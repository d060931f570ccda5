"""What an optimizer measures in a step that it tells of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from thalweg.core.gradient_transforms import GradientTransforms, before_norms
from thalweg.core.groups import states_of, titles_in
from thalweg.core.meshes import check_whole
from thalweg.engines.cpu.group import Group as CpuGroup
from thalweg.engines.diagnostics import MEASURED, VariableDiagnostics, combined
from thalweg.engines.engine import Columns, Ready, Request, Round
from thalweg.engines.plan import DensePlan
from thalweg.errors import FailedPreconditionError, InvalidTypeError, NumericsWarning, warn
from thalweg.ground.fetching import brought
from thalweg.ground.locks import importing
from thalweg.optim.columns import STEP
from thalweg.optim.diagnostics.asked import Diagnostics
from thalweg.optim.diagnostics.table import Flags, Parameters, Table, columns_of, flags_of

if TYPE_CHECKING:
    from thalweg.core.gradient_stats import GradientStats
    from thalweg.engines.cpu.diagnostics import TellingUpdate
    from thalweg.optim.steady import SteadyStep


Fetch = Callable[[], Any]  # gives what a device may have


class _Share(NamedTuple):
    """What is measured of variables of one rule.

    Attributes:
        params: The parameters.
        finish: Gives (parameters, measured) float64, on the host or on its way there, and which of
            them were measured; the step is written by then.
        clip: Gives what clipping multiplied the gradients by.
    """

    params: list[Tensor]
    finish: Callable[[], tuple[Fetch, Flags]]
    clip: Fetch


class Measured(NamedTuple):
    """What was measured of variables of one rule.

    Attributes:
        params: The parameters.
        numbers: Gives (parameters, measured) float64, for which a device may be waited for.
        known: Which of them were measured.
        clip: Gives what clipping multiplied the gradients by.
    """

    params: list[Tensor]
    numbers: Fetch
    known: Flags
    clip: Fetch


class StepWatch:
    """What is measured in the step under way."""

    def __init__(self) -> None:
        self._shares: list[_Share] = []

    @property
    def is_begun(self) -> bool:
        """Whether anything is measured."""
        return bool(self._shares)

    @property
    def is_there(self) -> bool:
        """Whether a device has the numbers."""
        return any(not param.is_cpu for each in self._shares for param in each.params)

    def begin(
        self,
        hooks: Any,
        asked: Request,
        ready: Ready,
        columns: Columns,
        how: GradientTransforms,
        known: GradientStats | None,
        rounds: Iterator[Round],
    ) -> Iterator[Round]:
        """Measure what is there before the writes of a rule; nothing is written yet.

        Args:
            hooks: What says which parameter a variable stands for.
            asked: What the rule updates.
            ready: The same, ready to be taken.
            columns: The scalars.
            how: What happens to the gradients.
            known: What is known of them, if something does.
            rounds: The writes.

        Returns:
            The writes, which measure what they write, where there are kernels for that.
        """
        stages, owners = before_norms(how), hooks.owners_of(asked.variables)
        clip = 1.0 if known is None else known.clip_scale
        fetch = _fetched(clip) if isinstance(clip, Tensor) else partial(_same, clip)
        left = list(range(len(owners)))
        if isinstance(ready, DensePlan) and all(isinstance(x, CpuGroup) for x in ready.groups):
            with importing:
                from thalweg.engines.cpu.diagnostics import telling_updates
            telling = telling_updates(ready.groups, asked, stages)
            for own in telling.values():
                params = [owners[index] for index in own.members]
                self._shares.append(_Share(params, partial(_of_update, own), fetch))
            told = {index for own in telling.values() for index in own.members}
            left = [index for index in left if index not in told]
            writers = [telling.get(id(group), group) for group in ready.groups]
            if telling:
                calls = [call for each in writers for call in each.make_calls(columns)]
                rounds = iter([Round(range(len(owners)), [*calls, ready.mark_written])])
        if left:
            parts = [VariableDiagnostics(asked, index, columns, stages) for index in left]
            params = [owners[index] for index in left]
            self._shares.append(_Share(params, partial(_of_variables, parts), fetch))
        return rounds

    def finish(self) -> list[Measured]:
        """What was measured; the step has been written."""
        return [Measured(each.params, *each.finish(), each.clip) for each in self._shares]


def _of_update(own: TellingUpdate) -> tuple[Fetch, Flags]:
    numbers, known = own.combine()
    return partial(_same, numbers), known


def _of_variables(parts: Sequence[VariableDiagnostics]) -> tuple[Fetch, Flags]:
    found = [each.finish() for each in parts]
    known = np.array([[name in own for name in MEASURED] for own in found])
    numbers = combined(found, [each.size for each in parts])
    fetch = _fetched(numbers) if isinstance(numbers, Tensor) else partial(_same, numbers)
    return fetch, known


def diagnose(optimizer: Any, given: int | Diagnostics, is_copy: bool) -> None:
    """Have an optimizer tell of its steps; called again when it has other parameters.

    One that is made from the state of another shares the options, and tells no sink of the other.

    Raises:
        FailedPreconditionError: `given` is another optimizer's.
        NotImplementedError: A parameter is a DTensor.
    """
    own = optimizer._own
    check_whole((p for each in optimizer.param_groups for p in each["params"]), "diagnostics")
    if own.diagnosing is None:
        if is_copy and isinstance(given, Diagnostics):
            given = Diagnostics(given.every)
        own.diagnosing = Diagnosing(optimizer, given)


class Diagnosing:
    """What an optimizer with `diagnostics` keeps: the last table, and what it is to be told of.

    Args:
        optimizer: The optimizer.
        given: Its option.
    """

    def __init__(self, optimizer: Any, given: int | Diagnostics) -> None:
        self.asked = given if isinstance(given, Diagnostics) else Diagnostics(given)
        self._ref: Any = ref(optimizer)
        self._start = self._decided = 0  # steps of before, and those that a device decided on
        self._last: Table | None = None
        self._known: Parameters | None = None
        # What makes the table of a step that a device may still measure, and the loss of that step.
        self._pending: tuple[Callable[[], Table | None], float | None] | None = None
        self.asked.belong_to(self)

    @property
    def _optimizer(self) -> Any:
        found = self._ref()
        if found is None:
            raise FailedPreconditionError("The optimizer of these diagnostics is gone.")
        return found

    def is_gone(self) -> bool:
        """Whether the optimizer is no more."""
        return self._ref() is None

    def count_anew(self) -> None:
        """Go on from the steps of a state that was loaded, as far as the host knows them."""
        if found := _steps_in(self._optimizer):
            self._start = found - self._optimizer._own.total - self._decided

    def next_step(self) -> int:
        """The number of the step to come."""
        own = self._optimizer._own
        if own.total + self._decided == 0:
            self._start = _steps_in(self._optimizer)
        return self._start + own.total + self._decided + 1

    def known_parameters(self) -> Parameters:
        """What the last table was of, or the first will be: a loss alone needs no others."""
        return self._known or self._parameters()

    def _parameters(self) -> Parameters:
        """What tables are of."""
        groups = self._optimizer.param_groups
        params = [param for group in groups for param in group["params"]]
        places = [place for place, group in enumerate(groups) for _ in group["params"]]
        sizes = [param.numel() for param in params]
        titles = [
            f"parameter {at}" if title.startswith("Variable:0") else title
            for at, title in enumerate(titles_in(groups, params))
        ]
        names = _apart(titles)
        self._known = Parameters(self.asked.every, names, sizes, places)
        return self._known

    def is_due(self) -> bool:
        """Whether the step to come is told of."""
        return self.next_step() % self.asked.every == 0

    def note_loss(self, loss: object) -> None:
        """Tell the sinks what a closure returned, if it is a number."""
        if self.asked.sinks:
            with suppress(InvalidTypeError):
                self.asked.log_loss(loss)

    def step_between(self) -> type[SteadyStep]:
        """What takes steps in one call that are not told of."""
        with importing:
            from thalweg.optim.diagnostics.between import StepBetween
        return StepBetween

    @contextmanager
    def around(self, optimizer: Any) -> Generator[None]:
        """A block in which a step is taken carefully."""
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            raise FailedPreconditionError(
                "A step that a CUDA graph captures is told of in no replay: leave out diagnostics=."
            )
        own, step = optimizer._own, self.next_step()
        is_due, before = step % self.asked.every == 0, own.total
        own.watch = watch = StepWatch() if is_due else None
        try:
            yield
        finally:
            own.watch = None
        self._decided += own.total == before and own.taken is not None
        if watch is not None and watch.is_begun:
            try:
                self.settle()  # of the step before, which a device has measured by now
                self._pending = self._finished(watch, step, own.taken), self.asked.take_loss(step)
                if not watch.is_there:
                    self.settle()
            except Exception as error:  # such as of memory that runs out
                warn(
                    f"Step {step} was taken, and could not be measured to its end:"
                    f" {type(error).__name__}: {error}. There is no table of it.",
                    NumericsWarning,
                )

    def _finished(self, watch: StepWatch, step: int, taken: Tensor | None) -> Callable[[], Any]:
        """What makes a table of all that is measured, which may be on its way from a device."""
        given, parameters = watch.finish(), self._parameters()
        titles = self._optimizer.param_groups
        rows = {id(p): row for row, p in enumerate(p for group in titles for p in group["params"])}
        decided = None if taken is None else _fetched(taken)
        return lambda: _table_of(given, rows, parameters, step, decided)

    def settle(self) -> None:
        """Make the table of what was measured, for which a device is waited for, and tell of it."""
        if self._pending is not None:
            (make, loss), self._pending = self._pending, None
            table = make()
            if table is not None:
                self._last = table
                self.asked.tell(table, loss)

    def table(self) -> Table | None:
        """The table of the last step that was told of; None before the first."""
        self.settle()
        return self._last


def _apart(names: list[str]) -> list[str]:
    """Names, each with its index where several parameters have it: two models in one optimizer."""
    counts = Counter(names)
    return [n if counts[n] == 1 else f"{n} (index {k})" for k, n in enumerate(names)]


def _same(value: Any) -> Any:
    return value


def _steps_in(optimizer: Any) -> int:
    """How many steps a state has seen, as far as the host knows."""
    states = [own for _, own in states_of(optimizer.state)]
    found = [own[STEP] for own in states if STEP in own]
    here = [x for x in found if not isinstance(x, Tensor) or x.device.type == "cpu"]
    return max((int(each) for each in here), default=0)


def _fetched(tensor: Tensor) -> Callable[[], Any]:
    """What gives a tensor on the host, to which it is on its way; NumPy's array."""
    (own,), wait = brought([tensor])

    def read() -> Any:
        wait()
        return own

    return read


def _table_of(
    given: Sequence[Measured],
    rows: Mapping[int, int],
    parameters: Parameters,
    step: int,
    decided: Callable[[], Any] | None,
) -> Table | None:
    """The table; None if a device left the step out."""
    if decided is not None and not decided():
        return None
    count = len(parameters.names)
    found, known = np.full((count, len(MEASURED)), np.nan), np.zeros((count, len(MEASURED)), bool)
    clip, sizes = np.full(count, np.nan), np.array(parameters.sizes, np.float64)
    for share in given:
        own = [rows[id(param)] for param in share.params]
        found[own], known[own], clip[own] = share.numbers(), share.known, share.clip()
        sizes[own] *= [1 + param.is_complex() for param in share.params]  # two numbers each
    columns = columns_of(found, sizes, clip)
    return Table(parameters, step, columns, flags_of(known))
