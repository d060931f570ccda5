"""`Frame`: the values of one run of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from thalweg._base.execution_context import SessionVariable
from thalweg._core.atomic_section import calls, drain
from thalweg._core.commit import add_note
from thalweg._core.nest import leaves_of
from thalweg._graph.gradients import as_differentiable
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.plan import Step
from thalweg._graph.scopes import Unit
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg._graph.variables import GraphVariable
from thalweg.indexed_slices import IndexedSlices

_LEAVES = {torch.Tensor, IndexedSlices, type(None)}


class Frame(dict[SymbolicTensor, Any]):
    """Dict {symbolic tensor: value} of one run; variables are read from the `Session`."""

    __slots__ = ("failed", "feeds", "lock", "read", "session", "undo")

    # Not typed as Session, whose module imports this one.
    def __init__(self, session: Any, feeds: Mapping[SymbolicTensor, object]) -> None:
        super().__init__(feeds)
        self.session, self.feeds = session, feeds
        # The frame is the `Holder` of the session's lock.
        self.lock: str | None = None
        self.failed: Step | None = None
        # Variables cached in this dict since the last step that may give them other memory.
        self.read: list[GraphVariable] = []
        # For each incomplete unit, an iterator in C that restores the former values.
        self.undo: dict[Unit, Iterator[object]] = {}

    def __missing__(self, tensor: SymbolicTensor) -> SessionVariable | None:
        """Return a value that is not in the dict, and store it.

        The value of a variable is the session's tensor. Any other tensor is computed by a nested
        run with the same feeds.
        """
        if isinstance(tensor, GraphVariable):
            # The checks of `session.leaf`, without its calls; it raises if they fail.
            leaf = self.session.values.leaf_by_variable.get(tensor)
            if leaf is None or leaf.untyped_storage().nbytes() < leaf.nbytes:
                return self.session.leaf(tensor)
            self[tensor] = leaf
            self.read.append(tensor)
            return leaf
        value = self.session.evaluate(tensor, self)
        self[tensor] = value
        return value

    def resolve(self, x: object) -> Any:
        """Return the value of `x` in this run; return an object that is not symbolic unchanged."""
        if isinstance(x, GraphVariable):
            return self.session.leaf(x)
        if isinstance(x, SymbolicSlices):
            return self[x.source]
        return self[x] if isinstance(x, SymbolicTensor) else x

    def run(
        self, steps: Sequence[Step], results: list[object], export: Callable[[Any], object]
    ) -> None:
        """Run steps in order; write `export(value)` of each fetched value into `results`.

        If a step fails, undo the writes of updates that are only partly done. Add a note with the
        operation's name to the error, and raise the error again.
        """
        records = None
        step = steps[0]
        try:
            for step in steps:
                # The mode is set where it changes, since many steps are shorter than the call.
                if step.grad is not records:
                    records = step.grad
                    torch.set_grad_enabled(records)
                if step.argument is not None:
                    value = step.function(self[step.argument])
                else:
                    value = step.function(*step.fill(self))
                if self.read and not step.is_closed:
                    self._drop_variables()
                if step.plain is not None:
                    self[step.plain] = value
                elif step.results:
                    self._store_results(step, value, results, export)
                for tensor in step.dead_tensors:
                    self.pop(tensor, None)
        except BaseException as error:
            self._drop_variables()
            if self.undo:
                self._undo_units(error)
            # KeyboardInterrupt and the like are no failures of the operation.
            if isinstance(error, Exception):
                self.failed, op = step, step.operation
                error.add_note(f"In operation '{op.name}' ({op.type}), made at {op.origin}.")
            raise

    def _drop_variables(self) -> None:
        """Drop cached variables: their storage may have been freed or replaced."""
        while self.read:
            self.pop(self.read.pop(), None)

    def begin_unit(self, unit: Unit, variables: Sequence[GraphVariable]) -> None:
        """Copy the present values of variables; until `end_unit`, `_undo_units` restores them."""
        self.undo[unit] = calls(self.session.values.putting_back(variables))

    def end_unit(self, unit: Unit) -> None:
        """Drop the copies of `begin_unit`: the writes of the unit are final."""
        del self.undo[unit]

    def _undo_units(self, error: BaseException) -> None:
        """Undo the writes of incomplete units; add a note to the error."""
        while self.undo:
            drain(self.undo[next(reversed(self.undo))])
            self.undo.popitem()
        add_note(error, [])

    def _store_results(
        self, step: Step, value: Any, results: list[object], export: Callable[[Any], object]
    ) -> None:
        """Store a step's outputs for later steps; write fetched outputs into `results`."""
        values: Sequence[Any] = [value]
        if not step.returns_output:
            is_flat = type(value) is list and _LEAVES.issuperset(map(type, value))
            values = value if is_flat else list(leaves_of(value))
        memory = self.session.values.memory
        for output_use in step.results:
            output = values[output_use.pick]
            if output_use.watched:
                output = as_differentiable(output)
            # A later write to a variable must not change a value that shares its memory.
            if output_use.crosses_write:
                is_dense = type(output) is torch.Tensor and output.layout is torch.strided
                if not is_dense or output.untyped_storage().data_ptr() in memory:
                    output = self.session.values.copy_if_shared(output)
            if output_use.is_live:
                self[output_use.tensor] = output
            for index in output_use.fetched:
                results[index] = export(output)
