"""`Frame`: one run and its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from thalweg.core.nest import leaves_of
from thalweg.core.outcome import say
from thalweg.core.section import Call, calls, drain
from thalweg.graph.gradients import as_differentiable
from thalweg.graph.nodes import SymbolicTensor
from thalweg.graph.plan import Plan, Step
from thalweg.graph.scopes import Unit
from thalweg.graph.slices import SymbolicSlices
from thalweg.graph.variables import GraphVariable
from thalweg.ground.running import SessionVariable


class Values(Protocol):
    """What a run asks of its session."""

    def leaf(self, variable: GraphVariable) -> SessionVariable:
        """The tensor that holds a variable's value."""
        ...

    def evaluate(self, tensor: SymbolicTensor, frame: Frame) -> Any:
        """The value of a tensor that the run of `frame` has not computed, or has released."""

    def copy_if_shared(self, value: Any) -> Any:
        """`value`, or a copy of it if an update of a variable would change it."""

    def putting_back(self, variables: Sequence[GraphVariable]) -> list[Call]:
        """What gives variables again what they have now, as functions in C."""
        ...

    def carry_out(self, plan: Plan, frame: Frame, export: Callable[[Any], Any]) -> list[Any]:
        """Run a plan in `frame`; the values of its fetches."""
        ...


class Frame(dict[SymbolicTensor, Any]):
    """What one run has been fed and has computed; variables are read from the session."""

    __slots__ = ("failed", "feeds", "lock", "session", "undo")

    def __init__(self, session: Values, feeds: Mapping[SymbolicTensor, Any]) -> None:
        super().__init__(feeds)
        self.session = session
        self.feeds = feeds
        self.lock: str | None = None  # how this thread holds the session's; its `Holder`
        self.failed: Step | None = None
        self.undo: dict[Unit, Iterator[Any]] = {}  # what puts back the units under way, in C

    def __missing__(self, tensor: SymbolicTensor) -> Any:
        if isinstance(tensor, GraphVariable):
            return self.session.leaf(tensor)
        value = self.session.evaluate(tensor, self)
        self[tensor] = value
        return value

    def resolve(self, x: Any) -> Any:
        """What `x` stands for in this run; see `running.resolve`."""
        if isinstance(x, GraphVariable):
            return self.session.leaf(x)
        if isinstance(x, SymbolicSlices):
            return self[x.source]
        return self[x] if isinstance(x, SymbolicTensor) else x

    def run(self, steps: Sequence[Step], results: list[Any], export: Callable[[Any], Any]) -> None:
        """Run steps in order; what is fetched is exported into its places among the results.

        An error gets a note that names the operation, and nothing after it runs. What was written
        of a unit that is not complete is put back.
        """
        records = None
        step = steps[0]
        try:
            for step in steps:
                if step.grad is not records:
                    records = step.grad
                    torch.set_grad_enabled(records)
                value = step.function(*step.fill(self))
                if step.plain is not None:
                    self[step.plain] = value
                elif step.results:
                    self._store_results(step, value, results, export)
                for tensor in step.dropped:
                    self.pop(tensor, None)
        except BaseException as error:
            if self.undo:
                self._put_back(error)
            if isinstance(error, Exception):
                self.failed, op = step, step.operation
                error.add_note(f"In operation '{op.name}' ({op.type}), made at {op.origin}.")
            raise

    def begin_unit(self, unit: Unit, variables: Sequence[GraphVariable]) -> None:
        """Keep what variables have, until `end_unit`."""
        self.undo[unit] = calls(self.session.putting_back(variables))

    def end_unit(self, unit: Unit) -> None:
        """What was written since `begin_unit` stays."""
        del self.undo[unit]

    def _put_back(self, error: BaseException) -> None:
        while self.undo:
            drain(self.undo[next(reversed(self.undo))])
            self.undo.popitem()
        say(error, [])

    def _store_results(
        self, step: Step, value: Any, results: list[Any], export: Callable[[Any], Any]
    ) -> None:
        """Store the outputs of a step that later steps need, and export what is fetched."""
        values = [value] if step.is_whole else list(leaves_of(value))
        for made in step.results:
            output = values[made.pick]
            if made.watched:
                output = as_differentiable(output)
            if made.carried:
                output = self.session.copy_if_shared(output)
            if made.kept:
                self[made.tensor] = output
            for place in made.fetched:
                results[place] = export(output)
