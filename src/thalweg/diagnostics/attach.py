"""Diagnostics of optimizers whose constructors are TensorFlow's, which have no such option.

A measured step is taken the careful way, as the first one is. All others are taken as ever.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._base.showing import show_value
from thalweg._core.commit import TAKEN
from thalweg._core.grads_and_vars import distinct
from thalweg._core.plan_cache import PlanCache
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg._engines.protocol import StepRequest
from thalweg.diagnostics.config import Diagnostics, SinkLike
from thalweg.diagnostics.recorder import TableRecorder, apart
from thalweg.diagnostics.step_watch import StepWatch
from thalweg.diagnostics.table import Parameters
from thalweg.errors import FailedPreconditionError, InvalidTypeError, NumericsWarning, warn
from thalweg.variable import titles_of


def attach(optimizer: Any, every: int = 1, sinks: Iterable[SinkLike] = ()) -> Diagnostics:
    """Measure steps of an optimizer of Keras or of TensorFlow 1 from now on.

    Args:
        optimizer: The optimizer, one that wraps it, one of `thalweg.integrations.keras3`, or what
            `optimize_loss` returned.
        every, sinks: As those of `Diagnostics`.

    Returns:
        What has the tables, and takes losses.

    Raises:
        InvalidTypeError: It is no such optimizer.
        FailedPreconditionError: Its steps are measured already.
        NotImplementedError: Its variables are updated one by one, by functions of a subclass, or
            such functions were called when a graph was built.

    Example:
        >>> from thalweg import Variable, diagnostics, keras
        >>> w = Variable([1.0, 2.0], name="w")
        >>> optimizer = keras.optimizers.Adam(0.5)
        >>> recorder = diagnostics.attach(optimizer)
        >>> _ = optimizer.apply_gradients([([3.0, -4.0], w)])
        >>> recorder.table["w:0"].gradient_norm
        5.0
    """
    own, asked = _find_optimizer(optimizer), Diagnostics(every, sinks)
    with own._locked():
        if own._recorder is not None:
            raise FailedPreconditionError(
                f"{_title(own)} is measured already: detach(optimizer) first, or add sinks"
                " with to(optimizer, sink)."
            )
        if own._one_by_one():
            raise NotImplementedError(
                f"diagnostics of {_title(own)} are not defined: its variables are updated one by"
                " one, by functions such as `_resource_apply_dense`, which nobody can look into."
            )
        if any(map(is_symbolic, own._slots.owners())) and own._is_recorded():
            raise _of_graph(own)
        vars(own)["_recorder"] = Attached(own, asked)
    return asked


def detach(optimizer: Any) -> None:
    """Measure steps of an optimizer no more; tables on their way reach the sinks first.

    Args:
        optimizer: As that of `attach`.

    Raises:
        InvalidTypeError, FailedPreconditionError: It was not given to `attach`.
    """
    own = _find_optimizer(optimizer)
    with own._locked():
        if own._recorder is None:
            raise FailedPreconditionError(f"{_title(own)} is not measured.")
        own._recorder.settle()
        vars(own).pop("_recorder").asked.leave()


def to(optimizer: Any, *sinks: SinkLike) -> Diagnostics:
    """Add sinks to an optimizer whose steps are measured.

    Args:
        optimizer: One of `thalweg.optim` that was made with `diagnostics=`, or as that of `attach`.
        *sinks: As those of `Diagnostics`.

    Returns:
        What has the sinks, for `log_loss`.

    Raises:
        FailedPreconditionError: Its steps are not measured.
        InvalidTypeError: A sink is none.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        recorder, missing = getattr(getattr(optimizer, "_own", None), "diagnosing", None), _MAKE
    else:
        recorder, missing = _find_optimizer(optimizer)._recorder, "diagnostics.attach(optimizer)"
    if recorder is None:
        raise FailedPreconditionError(f"{_title(optimizer)} is not measured: {missing}.")
    for each in sinks:
        recorder.asked.add(each)
    return recorder.asked


_MAKE = "make it with diagnostics=10"


def _title(optimizer: object) -> str:
    return type(optimizer).__name__


def _of_graph(optimizer: object) -> NotImplementedError:
    """The error of an optimizer whose hooks are called once, as a graph is built."""
    return NotImplementedError(
        f"diagnostics of {_title(optimizer)} are not defined in a graph, which calls functions of a"
        " subclass once, when it is built. Set HOOKS_AT_EACH_RUN = True in the class, or"
        " detach(optimizer)."
    )


def _find_optimizer(given: Any) -> Any:
    """What takes the steps.

    Raises:
        InvalidTypeError: It is nothing whose steps are measured so.
    """
    found = given
    for name in ("op", "optimizer", "wrapped"):  # of a train operation, of one of Keras 3
        found = found if isinstance(found, SlotOptimizer) else getattr(found, name, found)
    if isinstance(found, SlotOptimizer):
        return found._innermost()
    hint = f" Steps of thalweg.optim's are measured if you {_MAKE}."
    raise InvalidTypeError(
        f"optimizer must be one of thalweg.keras.optimizers or thalweg.v1, not {show_value(given)}."
        f"{hint if isinstance(given, torch.optim.Optimizer) else ''}"
    )


class _Watch(StepWatch):
    """What is measured in a step over variables; those of 16 bits stand for their masters."""

    def owners_of(self, hooks: Any, asked: StepRequest) -> list[Tensor]:
        copies = asked.copies or [None] * len(asked.variables)
        pairs = zip(asked.variables, copies, strict=True)
        return [var if copy is None else copy for var, copy in pairs]


class Attached(TableRecorder):
    """Recorder of an optimizer while its steps are measured.

    A table has all variables that were in a measured step, by their names.

    Args:
        optimizer: The optimizer.
        asked: The result of `attach`.
    """

    def __init__(self, optimizer: SlotOptimizer, asked: Diagnostics) -> None:
        super().__init__(optimizer, asked)
        self._count = 0
        # By name: whoever swaps a variable for another minds references, weak ones, too.
        self._sizes: dict[str, int] = {}

    def next_step(self) -> int:
        counted = self._optimizer._steps_taken()
        if counted is not None:
            self._count = counted
        return self._count + 1

    def add_taken(self, steps: int) -> None:
        """Count steps that were taken."""
        self._count += steps

    def known_parameters(self) -> Parameters:
        names, sizes = list(self._sizes), list(self._sizes.values())
        return Parameters(self.asked.every, names, sizes, [0] * len(names))

    def _rows(self, watch: _Watch) -> tuple[Parameters, Mapping[int, int]]:
        variables = distinct(watch.params)
        names = apart(titles_of(variables))
        self._sizes |= {name: var.numel() for name, var in zip(names, variables, strict=True)}
        places = {name: row for row, name in enumerate(self._sizes)}
        rows = {id(var): places[name] for name, var in zip(names, variables, strict=True)}
        return self.known_parameters(), rows

    def refuse_graph(self) -> NoReturn:
        """Refuse a graph in which no step can be measured.

        Raises:
            NotImplementedError: In any case.
        """
        raise _of_graph(self._optimizer)

    def refuse_ranks(self) -> NoReturn:
        """Refuse a step in which each rank has a part of the variables.

        Raises:
            NotImplementedError: In any case.
        """
        raise NotImplementedError(
            f"diagnostics of {_title(self._optimizer)} are not defined where ranks have parts of"
            " its variables or slots, as of DTensors or by shard_slots=True: detach(optimizer)."
        )

    def between(self, step: Any) -> Between:
        """Return the object that takes, in one call, steps that are not measured."""
        return Between(step, self)

    @contextmanager
    def around(self, hooks: Any) -> Generator[None]:
        """Return a context manager for a block in which a step is taken carefully.

        Raises:
            NotImplementedError: Ranks have parts of its variables.
        """
        if hooks.sharing is not None:
            self.refuse_ranks()
        step = self.next_step()
        watch = hooks.watch = _Watch() if step % self.asked.every == 0 else None
        try:
            yield
        finally:
            is_taken = bool(hooks.begun) and hooks.begun[0].startswith(TAKEN)
            self.add_taken(is_taken)
        if watch is None or not is_taken:
            return
        if watch.is_begun:
            self.record(watch, step, hooks.taken)
        else:
            warn(
                f"There is no table of step {step}: its variables were updated one by one, as"
                " complex ones are.",
                NumericsWarning,
            )


class Between:
    """A step in one call, unless it is to be measured; see `SteadyApply`."""

    is_due = False
    # Users' functions may be called.
    calls = True

    def __init__(self, step: Any, recorder: Attached) -> None:
        self._step, self._recorder = step, recorder

    @property
    def taken(self) -> int:
        """Number of steps that it has taken."""
        return self._step.taken

    @property
    def read(self) -> Any:
        """Results of users' functions for a step not taken after they were called, or None."""
        return getattr(self._step, "read", None)

    def is_over(self, pairs: list[Any]) -> bool:
        """Return True if the next step is not measured and may be taken over these pairs."""
        return not self._recorder.is_due() and self._step.is_over(pairs)

    def take(self, optimizer: Any, kept: PlanCache, given: Any) -> bool:
        """Take it, if it is not to be measured and everything is as it was."""
        if optimizer._recorder is not self._recorder:
            kept.replay = None
            return False
        if self._recorder.is_due():
            return False
        before = self._step.taken
        try:
            return self._step.take(optimizer, kept, given)
        finally:
            self._recorder.add_taken(self._step.taken - before)
