"""Decisions about steps with unusual loss or gradient norm: skip, or roll back."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, NamedTuple, Protocol

from thalweg._base.showing import show_value
from thalweg._core.atomic_section import Call
from thalweg._core.gradient_transforms import Decision
from thalweg.diagnostics.bands import WARM_UP, WINDOW
from thalweg.diagnostics.warned import Warned
from thalweg.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NumericsWarning,
    warn,
)

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats

# A loss leaves its band if it exceeds the median by the larger of these two margins.
LOSS_DEVIATIONS, LOSS_SHARE = 8.0, 0.1
# A gradient norm leaves its band if it exceeds the median by the larger of these, in logarithms.
NORM_DEVIATIONS, NORM_FACTOR = 8.0, 4.0
ACTIONS = ("skip", "rollback")


class SpikeAction(NamedTuple):
    """Step that was not taken.

    Attributes:
        warning: The reason.
        action: "skip" or "rollback".
        steps: The numbers of the steps without effect on the parameters; their batches are to be
            skipped if the training is repeated.
    """

    warning: Warned
    action: str
    steps: range

    def __str__(self) -> str:
        if self.action == "skip":
            return f"{self.warning}; the step was left out"
        first_step, last_step = self.steps[0], self.steps[-1]
        batches = f"{first_step} to {last_step}"
        return f"{self.warning}; went back before step {first_step:,}: skip batches {batches}"


class StepSource(Protocol):
    """Interface to the optimizer with judged steps."""

    def keep(self) -> Callable[[], list[Call]]:
        """Copy parameters and state; return a function that returns the calls that restore them.

        It returns [] if they cannot be restored.
        """
        ...

    def leave_out(self, reason: str) -> list[Call]:
        """Return calls that record a step that is left out."""
        ...

    def mean_over_ranks(self, loss: float) -> float:
        """Return the mean of a number over all ranks of a training."""
        ...

    def is_gone(self) -> bool:
        """Return True if the optimizer has been freed."""
        ...


Action = str | Callable[[Warned], object]


class SpikeJudge:
    """Judge of steps, for `GradientTransforms.judge`.

    Args:
        action: "skip", "rollback", or a function of a `Warned` that returns one of these, or None
            to take the step.
        keep: The largest number of steps that a rollback takes back.

    Attributes:
        actions: All steps that were not taken.
        step: The number of steps that were judged.
    """

    def __init__(self, action: Action, keep: int) -> None:
        self.action, self.keep = action, keep
        self.actions: list[SpikeAction] = []
        self.step = 0
        self._loss: float | None = None
        self._losses, self._norms = deque[float](maxlen=WINDOW), deque[float](maxlen=WINDOW)
        # Up to two copies, each with the number of the first step after it.
        self._copies: tuple[tuple[int, Callable[[], list[Call]]], ...] = ()
        self._source: StepSource | None = None

    def attach_to(self, source: StepSource) -> None:
        """Attach to an optimizer.

        Raises:
            FailedPreconditionError: Another optimizer that is still alive is judged.
        """
        if self._source is not None and not self._source.is_gone():
            raise FailedPreconditionError(
                "These Spikes judge another optimizer's steps: give each optimizer its own."
            )
        self._source = source
        self.step, self._loss, self._copies = 0, None, ()
        self._losses.clear()
        self._norms.clear()

    @property
    def source(self) -> StepSource:
        """Interface to the optimizer."""
        if self._source is None:
            raise FailedPreconditionError("These Spikes are of no optimizer yet: make it.")
        return self._source

    def log_loss(self, loss: float) -> None:
        """Set the loss of the next step: the mean over all ranks, which all call this."""
        self._loss = self.source.mean_over_ranks(loss)

    def forget_copies(self) -> Call:
        """Return a call that drops all copies, for a state that replaces them."""
        return partial(vars(self).update, {"_copies": ()})

    def is_usual(self, stats: GradientStats) -> bool:
        """Return True if no step with these statistics would be left out."""
        return self._departure(float(stats.global_norm)) is None

    def decide(self, stats: GradientStats) -> Decision:
        """Return the decision about a step: True to take it, and calls to run with its writes."""
        norm, step = float(stats.global_norm), self.step + 1
        warning = self._departure(norm)
        calls: list[Call] = [partial(vars(self).update, {"step": step, "_loss": None})]
        calls += [
            partial(numbers.append, number)
            for numbers, number in ((self._losses, self._loss), (self._norms, norm))
            if number is not None and math.isfinite(number)
        ]
        action = None if warning is None else self._choose(warning)
        if warning is None or action is None:
            return Decision(True, [*calls, *self._keeping(step)])
        return Decision(False, [*calls, *self._acting(warning, action)])

    def skip_calls(self) -> list[Call]:
        """Return calls that count a step that was left out before it could be judged."""
        return [partial(vars(self).update, {"step": self.step + 1, "_loss": None})]

    def _departure(self, norm: float) -> Warned | None:
        """Return the warning that the next step leaves its band; None if it does not."""
        step = self.step + 1
        if self._loss is not None:
            middle, deviation = _measure(self._losses)
            limit = middle + max(LOSS_DEVIATIONS * deviation, LOSS_SHARE * abs(middle))
            if not math.isfinite(self._loss) or self._loss > limit:
                return Warned("", step, "loss left its band", self._loss, middle, "loss")
        middle, deviation = _measure([math.log(max(past_norm, _TINY)) for past_norm in self._norms])
        excess = math.log(max(norm, _TINY)) - middle if math.isfinite(norm) else math.inf
        if excess > max(NORM_DEVIATIONS * deviation, math.log(NORM_FACTOR)):
            return Warned("", step, "gradients left their band", norm, math.exp(middle), "norm")
        return None

    def _choose(self, warning: Warned) -> str | None:
        """Return the action for an unusual step; None to take it."""
        action = self.action if isinstance(self.action, str) else self.action(warning)
        if action is not None and action not in ACTIONS:
            raise InvalidTypeError(
                "The action of Spikes must return 'skip', 'rollback' or None, not"
                f" {show_value(action)}."
            )
        if action == "rollback" and not self.keep:
            raise InvalidArgumentError(
                "The action of Spikes returned 'rollback', and no copies are kept: give the number"
                " of steps that may be taken back, such as Spikes(action, keep=20)."
            )
        return action

    def _keeping(self, step: int) -> list[Call]:
        """Return the calls that keep a copy of the state before a step, if that is due."""
        interval = (self.keep + 1) // 2
        if not self.keep or (self._copies and step - self._copies[-1][0] < interval):
            return []
        copies = (*self._copies[-1:], (step, self.source.keep()))
        return [partial(vars(self).update, {"_copies": copies})]

    def _acting(self, warning: Warned, action: str) -> list[Call]:
        """Return calls that leave out a step; with "rollback" they also restore a copy.

        The oldest copy within `keep` steps is restored.
        """
        first = warning.step
        copies = [copy for copy in self._copies if warning.step - copy[0] <= self.keep]
        step, restore = copies[0] if action == "rollback" and copies else (first, list)
        if calls := restore():
            first = step
            # The copy is of the state before the next step, too.
            kept_copies = ((warning.step + 1, restore),)
            calls.append(partial(vars(self).update, {"_copies": kept_copies}))
        step_range = range(first, warning.step + 1)
        event = SpikeAction(warning, "rollback" if calls else "skip", step_range)
        if calls:
            warn(f"Spikes: {event}.", NumericsWarning)
        return [*calls, partial(self.actions.append, event), *self.source.leave_out(str(event))]


_TINY = 5e-324


def _measure(numbers: Sequence[float] | deque[float]) -> tuple[float, float]:
    """Return the median and the deviation; NaN without a history of `WARM_UP` values."""
    if len(numbers) < WARM_UP:
        return math.nan, 0.0
    middle = median(numbers)
    return middle, 1.4826 * median(abs(number - middle) for number in numbers)
