"""Diagnostics of optimizers of torch's kind."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.param_groups import names_in, states_of
from thalweg.diagnostics.config import Diagnostics
from thalweg.diagnostics.recorder import TableRecorder, make_distinct
from thalweg.diagnostics.step_watch import StepWatch
from thalweg.diagnostics.table import Parameters
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.optim.param_scalars import STEP

if TYPE_CHECKING:
    from thalweg.optim.replay import ReplayedStep


def diagnose(optimizer: Any, given: int | Diagnostics, is_copy: bool) -> None:
    """Have steps of an optimizer measured; called again when it has other parameters.

    One that is made from the state of another shares the options, and has no sink of the other.

    Raises:
        FailedPreconditionError: `given` is another optimizer's.
    """
    own = optimizer._own
    if own.diagnosing is None:
        if is_copy and isinstance(given, Diagnostics):
            given = Diagnostics(given.every)
        own.diagnosing = Diagnosing(optimizer, given)


class Diagnosing(TableRecorder):
    """Recorder of an optimizer that has the option `diagnostics`.

    Args:
        optimizer: The optimizer.
        given: The option.
    """

    def __init__(self, optimizer: Any, given: int | Diagnostics) -> None:
        self._start = self._decided = 0  # steps of before, and those that a device decided on
        self._known: Parameters | None = None
        self._named: list[int] = []
        self._names: list[str] = []
        asked = given if isinstance(given, Diagnostics) else Diagnostics(given)
        super().__init__(optimizer, asked)

    def count_anew(self) -> None:
        """Go on from the steps of a state that was loaded, as far as the host knows them."""
        self._named = []  # a state has names, too
        if found := _steps_in(self._optimizer):
            self._start = found - self._optimizer._own.total - self._decided

    def next_step(self) -> int:
        """Return the number of the step to come."""
        own = self._optimizer._own
        if own.total + self._decided == 0:
            self._start = _steps_in(self._optimizer)
        return self._start + own.total + self._decided + 1

    def known_parameters(self) -> Parameters:
        """Return the parameters of the last table, or of the first one to come; a loss alone needs
        no others.
        """
        return self._known or self._parameters()

    def _parameters(self) -> Parameters:
        """Return the parameters of the next tables."""
        groups = self._optimizer.param_groups
        params = [param for group in groups for param in group["params"]]
        if self._named != (named := [id(param) for param in params]):  # else names are the same
            titles = [
                f"parameter {at}" if name is None else name
                for at, name in enumerate(names_in(groups, params))
            ]
            self._named, self._names = named, make_distinct(titles)
        places = [place for place, group in enumerate(groups) for _ in group["params"]]
        sizes = [param.numel() for param in params]
        self._known = Parameters(self.config.every, self._names, sizes, places)
        return self._known

    def note_loss(self, loss: object) -> None:
        """Send the sinks what a closure returned, if it is a number."""
        if self.config.sinks:
            with suppress(InvalidTypeError):
                self.config.log_loss(loss)

    def step_between(self) -> type[ReplayedStep]:
        """Return the class that takes, in one call, the steps that are not measured."""
        with importing:
            from thalweg.optim.diagnostics.measured_replay import StepBetween
        return StepBetween

    @contextmanager
    def around(self, optimizer: Any) -> Generator[None]:
        """Return a context manager for a block in which a step is taken carefully."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise FailedPreconditionError(
                "No replay of a captured CUDA graph measures its step: leave out diagnostics=."
            )
        own, step = optimizer._own, self.next_step()
        is_due, before = step % self.config.every == 0, own.total
        own.watch = watch = StepWatch() if is_due else None
        try:
            yield
        finally:
            own.watch = None
        self._decided += own.total == before and own.taken is not None
        if watch is not None and watch.is_begun:
            self.record(watch, step, own.taken)

    def _rows(self, watch: StepWatch) -> tuple[Parameters, Mapping[int, int]]:
        groups = self._optimizer.param_groups
        rows = {id(p): row for row, p in enumerate(p for group in groups for p in group["params"])}
        return self._parameters(), rows


def _steps_in(optimizer: Any) -> int:
    """Return the number of steps that a state has seen, as far as the host has it."""
    states = [own for _, own in states_of(optimizer.state)]
    found = [own[STEP] for own in states if STEP in own]
    here = [x for x in found if not isinstance(x, Tensor) or x.device.type == "cpu"]
    return max((int(each) for each in here), default=0)
