"""Decisions about steps with unusual loss or gradient norm: skip, or roll back."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg._core.atomic_section import Call, run
from thalweg._core.gradient_transforms import Decision
from thalweg._core.state import mismatch
from thalweg.diagnostics.attach import find_optimizer
from thalweg.diagnostics.bands import LOSS_FRACTION, UPDATE_ROWS, NumberBand
from thalweg.diagnostics.recorder import OptimizerReference, as_loss
from thalweg.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NumericsWarning,
    warn,
)

if TYPE_CHECKING:
    from thalweg._core.gradient_stats import GradientStats

# Share of the median that a gradient norm exceeds it by at least outside of its band.
NORM_FRACTION = 3.0
ACTIONS = ("skip", "rollback")


@exported_from("thalweg.diagnostics")
class Warned(NamedTuple):
    """Warning of an unusual event.

    Attributes:
        name: The name of the parameter; "" for the loss, the norm of all gradients and a batch.
        step: The first step of the event.
        what: The description of the event.
        number: The measured number; for a batch, the number of the layer farthest from its band.
        usual: The usual number; NaN if there is none.
        kind: "spike", "silent", "loss", "batch" or "norm".
        layers: The parameters that left their band, if the kind is "batch".
    """

    name: str
    step: int
    what: str
    number: float
    usual: float
    kind: str
    layers: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name of the parameter, or "loss", "norm" or "batch"."""
        return self.name or self.kind

    def __str__(self) -> str:
        number = "" if math.isnan(self.number) else f" {self.number:.3g}"
        usual_text = "" if math.isnan(self.usual) else f", usually {self.usual:.3g}"
        return f"step {self.step:,}: {self.title}: {self.what}{number}{usual_text}"


class SpikeAction(NamedTuple):
    """Step that was not taken.

    Attributes:
        warning: The reason.
        action: "skip" or "rollback".
        steps: The numbers of the steps that have no effect on the parameters.
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


class StepSource(OptimizerReference):
    """Access of a `SpikeJudge` to its optimizer, held by a weak reference."""

    OWNER = "Spikes"

    def copy_state(self) -> Callable[[], list[Call]]:
        """Copy parameters and state. Return a function that returns calls to restore the copy.

        The function returns [] if restoring is impossible.
        """
        raise NotImplementedError

    def skip_calls(self, reason: str) -> list[Call]:
        """Return calls that record a skipped step."""
        raise NotImplementedError

    def mean_over_ranks(self, loss: float) -> float:
        """Return the mean of a number over all ranks of a training; here the number itself."""
        return loss


Action = str | Callable[[Warned], object]


class SpikeJudge:
    """Object that decides before each step of an optimizer whether the step is taken.

    Args:
        action: "skip", "rollback", or a function. `action(warning)` returns "skip", "rollback", or
            None to take the step.
        keep: The maximum number of steps that a rollback takes back.

    Attributes:
        actions: All steps that were not taken.
        step: The number of steps that were judged.
        copies: The maximum number of copies of the parameters and the state.
    """

    step: int
    _loss: float | None
    _losses: NumberBand
    _norms: NumberBand
    # Up to two copies, each with the number of the first step after it.
    _copies: tuple[tuple[int, Callable[[], list[Call]]], ...]

    def __init__(self, action: Action, keep: int) -> None:
        self.action, self.keep, self.copies = action, keep, 2 if keep else 0
        self.actions: list[SpikeAction] = []
        self._source: StepSource | None = None
        self._first_step = 0  # `step` when the optimizer was attached
        vars(self).update(_new_history())

    def attach_to(self, source: StepSource) -> None:
        """Connect to an optimizer. Clear the history if it has steps of a freed optimizer.

        Raises:
            FailedPreconditionError: The judge is connected to another optimizer that still exists.
        """
        if self._source is not None and not self._source.is_gone():
            if self._source.optimizer is source.optimizer:
                return
            raise FailedPreconditionError(
                "These Spikes judge another optimizer's steps: give each optimizer its own."
            )
        if self._source is not None and self.step != self._first_step:
            vars(self).update(_new_history())
        self._source, self._first_step = source, self.step

    @property
    def source(self) -> StepSource:
        """Interface to the optimizer."""
        if self._source is None:
            raise FailedPreconditionError("These Spikes are of no optimizer yet: make it.")
        return self._source

    def log_loss(self, loss: object) -> None:
        """Set the loss of the next step to the mean over ranks; all ranks must call this method."""
        self._loss = self.source.mean_over_ranks(as_loss(loss))

    @property
    def history(self) -> list[Any]:
        """The number of judged steps, and the losses and gradient norms in the bands."""
        return [self.step, list(self._losses.values), list(self._norms.values)]

    def loading_calls(self, history: object) -> list[Call]:
        """Return [call]. The call sets the history, empty for None, and drops all copies.

        Raise CheckpointMismatchError if the history is invalid.
        """
        return [partial(vars(self).update, _new_history(*_check_history(history)))]

    @contextmanager
    def suspend(self) -> Generator[None]:
        """Clear the logged loss in a `with` block; then restore the judge's state and loss."""
        state = {**_new_history(*self.history), "_loss": self._loss, "_copies": self._copies}
        try:
            self._loss = None
            yield
        finally:
            run([partial(vars(self).update, state)])

    def norm_limit(self) -> float:
        """Return the gradient norm up to which the next step needs no call of `decide`.

        Return -1 if the logged loss is outside of its band: every step then needs the call.
        """
        is_loss_inside = self._loss is None or self._loss in self._losses
        return self._norms.safe_limit if is_loss_inside else -1.0

    def decide(self, stats: GradientStats) -> Decision:
        """Return a `Decision`: whether a step with these gradient statistics is taken.

        The history, and in a rollback the parameters, change only when the caller runs the calls of
        the `Decision`. This method itself calls `action` if it is a function, copies parameters and
        state for later rollbacks, and warns of a rollback.
        """
        norm = float(stats.global_norm)
        warning = self._find_departure(norm)
        action = None if warning is None else self._choose(warning)
        norms = [norm] if math.isfinite(norm) else []
        if warning is None or action is None:
            return Decision(True, self.taking_calls(norms))
        return Decision(False, [*self._history_calls(norms), *self._action_calls(warning, action)])

    def taking_calls(self, norms: Iterable[float]) -> list[Call]:
        """Return calls that add a taken step to the history.

        If `keep` is not 0, and parameters and state were not copied in the last `keep / 2` steps,
        copy them now; one of the calls stores the copy.

        Args:
            norms: [gradient norm], or [] if the norm is not finite. Only the calls read it.
        """
        step, interval = self.step + 1, (self.keep + 1) // 2
        calls = self._history_calls(norms)
        if self.keep and not (self._copies and step - self._copies[-1][0] < interval):
            # The older copy lets a rollback take back more than `keep / 2` steps.
            copies = (*self._copies[-1:], (step, self.source.copy_state()))
            calls.append(partial(vars(self).update, {"_copies": copies}))
        return calls

    def skip_calls(self) -> list[Call]:
        """Return calls that count a step without loss and norm, such as one that overflowed.

        Every `UPDATE_ROWS` steps, this method also updates the safe limits of the bands.
        """
        if self.step % UPDATE_ROWS == 0:
            self._losses.update_limit()
            self._norms.update_limit()
        return [partial(vars(self).update, {"step": self.step + 1, "_loss": None})]

    def _history_calls(self, norms: Iterable[float]) -> list[Call]:
        """Return calls that count a step and add `norms` and the logged loss to the bands."""
        calls: list[Call] = [*self.skip_calls(), partial(self._norms.values.extend, norms)]
        if self._loss is not None and math.isfinite(self._loss):
            calls.append(partial(self._losses.values.append, self._loss))
        return calls

    def _find_departure(self, norm: float) -> Warned | None:
        """Return a warning if the logged loss, or else the norm, is out of its band; else None."""
        checks = (
            (self._loss, self._losses, "loss left its band", "loss"),
            (norm, self._norms, "gradients left their band", "norm"),
        )
        departures = [
            Warned("", self.step + 1, description, number, band.measure()[0], kind)
            for number, band, description, kind in checks
            if number is not None and number not in band
        ]
        return departures[0] if departures else None

    def _choose(self, warning: Warned) -> str | None:
        """Return "skip" or "rollback", or None if the unusual step is taken nevertheless.

        Raises:
            InvalidTypeError, InvalidArgumentError: The callable action returned an invalid value.
        """
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

    def _action_calls(self, warning: Warned, action: str) -> list[Call]:
        """Return calls that record an unusual step, which is not taken, in `actions`.

        For the action "rollback", the calls also restore the oldest copy of the last `keep` steps,
        and this method warns. Without such a copy, "rollback" has the effect of "skip".
        """
        first = warning.step
        copies = [copy for copy in self._copies if warning.step - copy[0] <= self.keep]
        step, restore = copies[0] if action == "rollback" and copies else (first, list[Call])
        if calls := restore():
            first = step
            # The copy is of the state before the next step, too.
            next_copies = ((warning.step + 1, restore),)
            calls.append(partial(vars(self).update, {"_copies": next_copies}))
        step_range = range(first, warning.step + 1)
        event = SpikeAction(warning, "rollback" if calls else "skip", step_range)
        if calls:
            warn(f"Spikes: {event}.", NumericsWarning)
        return [*calls, partial(self.actions.append, event), *self.source.skip_calls(str(event))]


def attach_judge(judge: SpikeJudge, optimizer: Any) -> None:
    """Let `judge` decide which steps of an optimizer are taken; see `Spikes.attach`."""
    innermost = find_optimizer(optimizer)
    class_name = type(innermost).__name__
    if judge.keep and not hasattr(innermost, "weights"):
        raise NotImplementedError(
            f"Steps of {class_name} cannot be taken back, since its variables may have copies and"
            " counters elsewhere: use Spikes('skip')."
        )
    with innermost._locked():
        if innermost._spikes is not None:
            raise FailedPreconditionError(
                f"Steps of {class_name} are judged by other Spikes already."
            )
        judge.attach_to(_SlotSource(innermost))
        innermost._judge_by(judge)


class _SlotSource(StepSource):
    """Access of `Spikes` to an optimizer of Keras or TensorFlow 1."""

    def copy_state(self) -> Callable[[], list[Call]]:
        """Copy variables and state. Return a function that returns calls to restore the copy.

        Raise NotImplementedError if a variable belongs to a graph.
        """
        optimizer = self.optimizer
        tensors: list[Tensor] = [*optimizer._slots.owners(), *optimizer.weights]
        if any(map(is_symbolic, tensors)):
            raise NotImplementedError(
                f"Steps of {show_value(optimizer)} in a session cannot be taken back: use"
                " Spikes('skip')."
            )
        copies = [(tensor.detach(), tensor.detach().clone()) for tensor in tensors]
        return lambda: [partial(memory.copy_, copied_tensor) for memory, copied_tensor in copies]

    def skip_calls(self, reason: str) -> list[Call]:
        """Return []: skipped steps are not recorded."""
        return []


def _new_history(
    step: int = 0, losses: Iterable[float] = (), norms: Iterable[float] = ()
) -> dict[str, Any]:
    """Return the attributes of a judge with this history and without copies."""
    loss_band = NumberBand(LOSS_FRACTION, values=map(float, losses))
    norm_band = NumberBand(NORM_FRACTION, True, map(float, norms))
    return {"step": step, "_loss": None, "_losses": loss_band, "_norms": norm_band, "_copies": ()}


def _check_history(history: object) -> list[Any]:
    """Return `history`, [step, losses, norms], or [0, [], []] for None.

    Raise CheckpointMismatchError if the history is invalid.
    """
    try:
        step, *value_lists = entries = cast(
            "list[Any]", [0, [], []] if history is None else history
        )
        losses, norms = value_lists
        is_valid = type(step) is int and step >= 0 and all(map(math.isfinite, [*losses, *norms]))
    except (TypeError, ValueError, OverflowError):
        is_valid, entries = False, []
    if not is_valid:
        problem = (
            f"the history of steps is {show_value(history)}; expected a number of steps, and lists"
            " of finite losses and gradient norms"
        )
        raise mismatch([problem], "Spikes")
    return entries
