"""`TrainingStep`, the result of `optimize_loss` in eager mode."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import outside_inference
from thalweg._base.locks import Guard
from thalweg._base.tracing import untraced
from thalweg._core.atomic_section import Call
from thalweg._core.commit import StepResult, add_note, raise_first, restored
from thalweg._core.config_registry import Configurable
from thalweg._core.grads_and_vars import flatten
from thalweg._core.reentrance import Stepping, one_step_at_a_time
from thalweg._core.replay_trigger import ReplayResult
from thalweg._core.slots import SlotStore
from thalweg._core.state import Entry, Loading, Names, keys_of, restore
from thalweg._core.vectors import is_host
from thalweg._graph import executing_eagerly
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.openseq2seq.optimizers.accumulation import Accumulators, as_skip
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import BackwardResult
from thalweg.openseq2seq.optimizers.gradient_pipeline import StepInputs, StepPipeline, Treatment
from thalweg.openseq2seq.optimizers.gradients import check_dtypes, concretes
from thalweg.openseq2seq.optimizers.learning_rate import LiveRate
from thalweg.openseq2seq.optimizers.masters import Masters
from thalweg.openseq2seq.optimizers.reduction import waited_for
from thalweg.openseq2seq.optimizers.state import TrainingState
from thalweg.v1.train.optimizer import Optimizer
from thalweg.variable import name_of

# Returns the loss, or None, and the results of the backward pass.
Differentiate = Callable[[], tuple[Tensor | None, BackwardResult]]

_UNKNOWN = "The variables are not known before the first step. Give var_list to optimize_loss."


class TrainingStep(Configurable):
    """Callable step of training that returns the loss before the update.

    Attributes:
        global_step: The variable that counts updates, int64 of shape ().
        loss_scaler: The `AutomaticLossScaler`, or None.
        learning_rate: The learning rate of the last step, a tensor of shape ().

    Made by `optimize_loss`.
    """

    def __init__(
        self,
        loss: Callable[[], object],
        optimizer: Optimizer,
        var_list: object,
        rate: LiveRate,
        global_step: Any,
        scaler: AutomaticLossScaler | None,
        treatment: Treatment,
        skip_update: object,
    ) -> None:
        self.global_step = global_step
        self.loss_scaler = scaler
        # True if the last call made an update: a bool, a bool tensor, or None before a call.
        self._has_update: Any = None
        self._loss = loss
        self._variables = None if var_list is None else flatten(var_list)
        self._rate = rate
        self._pipeline = StepPipeline(optimizer, treatment)
        self._skip_update = skip_update
        self._accumulators = Accumulators() if treatment.iter_size > 1 else None
        # Further calls of C functions that count a run.
        self._counts: Callable[[], Sequence[Call]] = tuple
        self._lock = Guard(self)
        # The step in progress, unless it is replayed in one call; see `reentrance`.
        self.stepping: weakref.ref[Stepping] | None = None
        if treatment.summary_queue is not None:
            # Called at the end of the program, too. A method of `self` would keep the step alive.
            weakref.finalize(self, treatment.summary_queue.flush)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer; a `MixedPrecisionOptimizerWrapper` in mixed precision."""
        return self._pipeline.optimizer

    @property
    def was_applied(self) -> bool | None:
        """True if the last call made an update; None before the first call.

        Reading waits for a GPU that decides about the update.
        """
        if isinstance(self._has_update, Tensor):
            self._has_update = bool(self._has_update)
        return self._has_update

    @property
    def learning_rate(self) -> Tensor:
        """The learning rate of the last step, a tensor of shape ().

        While the loss is computed, it is the current step's rate. But if the global step is on a
        GPU, it is still the last step's rate.
        """
        return self._rate.value.clone()

    @property
    def _inner(self) -> Optimizer:
        return self._pipeline.inner

    @property
    def _slots(self) -> SlotStore:
        return self._inner._slots

    @property
    def _masters(self) -> Masters:
        # Without mixed precision, an empty object stands for no masters.
        return Masters() if self._pipeline.mixed is None else self._pipeline.mixed._masters

    @untraced
    def __call__(self) -> Tensor:
        """Compute the loss and its gradients, and update the variables.

        An error before the update changes nothing, even an error of a callback. Errors of a
        variable's constraint, the optimizer's `_finish` and `summary_writer` occur after the
        update. A note on each error tells the two cases apart.

        Returns:
            The loss before the update, not scaled; without a gradient.

        Raises:
            ValueError: There are no variables or no gradients, a required gradient is None, or the
                loss is not a scalar.
            TypeError: `skip_update_ph` is not a bool, or an adapting loss scale meets a loss that
                is not float32.
            FailedPreconditionError: A graph is being built.
        """
        with self._lock:
            return self._take_step(self._differentiate_loss)

    @untraced
    def apply_gradients(self, gradients: Iterable[Any]) -> bool | Tensor:
        """Update the variables by gradients that the caller computed; see `__call__` for errors.

        Args:
            gradients: Gradients of the loss times `loss_scale`, one per variable in `var_list`.
                A gradient is a tensor or `IndexedSlices` of the variable's dtype, or None.

        Returns:
            True if the variables were updated: a bool, or a bool tensor if a GPU decides.

        Raises:
            FailedPreconditionError: There is no `var_list` and no earlier step, or a graph is being
                built.
            ValueError: The number of gradients is wrong, a gradient does not match the variable, or
                all gradients or a required gradient are None.
        """
        with self._lock:
            self._take_step(lambda: (None, self._receive_gradients(concretes(gradients))))
            has_update = self._has_update
            return has_update.clone() if isinstance(has_update, Tensor) else has_update

    def flush(self) -> None:
        """Wait for the GPU, and send pending summaries of the last step to `summary_writer`.

        Otherwise pending summaries are sent by the next step or at the end of the program.
        """
        with self._lock:
            queue = self._pipeline.treatment.summary_queue
            if queue is not None:
                queue.flush()

    @property
    def loss_scale(self) -> float | Tensor:
        """Factor of the next loss: a number, or a tensor of shape () that is a copy."""
        if self._pipeline.mixed is None:
            return 1.0
        scale = self._pipeline.mixed.loss_scale
        return scale.detach().clone() if isinstance(scale, Tensor) else scale

    def _take_step(self, differentiate: Differentiate) -> Any:
        """Take a step in eager mode; return the loss that `differentiate` returned.

        Set `_has_update` to True if there was an update. An error before the commit changes
        nothing, and gets a note.

        Args:
            differentiate: `differentiate()` returns (loss or None, `BackwardResult`).

        Raises:
            FailedPreconditionError: A graph is being built.
        """
        if not executing_eagerly():
            raise FailedPreconditionError(
                "This step was made in eager mode: call it outside of `graph.as_default()`."
            )
        report = ReplayResult()
        # The backward pass needs autograd even if the caller has disabled it.
        is_recording = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        try:
            with (
                one_step_at_a_time(self, "optimize_loss"),
                contextlib.nullcontext() if is_recording else outside_inference(),
            ):
                value, outcome = self._run(differentiate, report)
        except BaseException as error:
            add_note(error, report)
            raise
        finally:
            # After an interruption, too, the truth value tells whether the step was taken.
            self._has_update = report[1] if report else False
        if outcome.errors:
            raise_first(outcome.errors)
        return value

    def _run(
        self,
        differentiate: Differentiate,
        report: ReplayResult,
    ) -> tuple[object, StepResult]:
        """Set the learning rate, compute and apply gradients; return (loss, `StepResult`).

        An error before the commit restores the rate. Masters that this step has created are then
        set to their variables again in the next step. If the global step is on a GPU, set the rate
        after computing the loss.

        Args:
            differentiate: See `_take_step`.
            report: An empty list, extended in the commit; see `StepPipeline.apply`.
        """
        rate, mixed = self._rate, self._pipeline.mixed
        # The host waits for the last step while a GPU computes the loss.
        is_late = not is_host(self.global_step)
        is_new = is_late or rate.ask()
        if not is_new and mixed is None:
            return self._compute_and_apply(differentiate, report, False)
        tensors = rate.tensors if is_new else ()
        with restored(tensors, notes=report), self._masters.renewed(report=report):
            if is_new and not is_late:
                rate.set()
            return self._compute_and_apply(differentiate, report, is_late)

    def _compute_and_apply(
        self,
        differentiate: Differentiate,
        report: ReplayResult,
        is_late: bool,
    ) -> tuple[object, StepResult]:
        """Compute and apply gradients; return (loss, `StepResult`).

        Args:
            differentiate, report: See `_run`.
            is_late: True to set the learning rate here, after the loss was computed.
        """
        treatment = self._pipeline.treatment
        scaler = None if treatment.summary_queue is None else self.loss_scaler
        skip = treatment.iter_size > 1 and as_skip(self._skip_update)
        # Workers that wait for gradients learn of errors of the loss, too.
        with waited_for(self._inner, treatment.is_waited_for(skip)):
            value, backward = differentiate()
            if is_late:
                self._rate.refresh()
            sums: list[Tensor] = []
            if self._accumulators is not None:
                sums = self._accumulators.of_step(backward.targets)
            step_inputs = StepInputs(
                backward,
                sums,
                self._rate.value,
                skip,
                counts=self._counts(),
                loss=value,
                loss_scale=None if scaler is None else scaler.loss_scale.detach(),
                global_step=self.global_step,
            )
            return value, self._pipeline.apply(step_inputs, report)

    def _receive_gradients(self, gradients: list[Any]) -> BackwardResult:
        """Return the `BackwardResult` of the caller's gradients.

        Raises:
            FailedPreconditionError: The variables are not known yet.
            InvalidArgumentError: The numbers of gradients and variables differ.
            InvalidTypeError: A gradient and its variable have different dtypes.
        """
        variables = self._owners()
        if not variables:
            raise FailedPreconditionError(_UNKNOWN)
        if len(gradients) != len(variables):
            raise InvalidArgumentError(
                f"There are {len(gradients)} gradients for {len(variables)} variables:"
                f" {[name_of(var) for var in variables]}."
            )
        check_dtypes(gradients, variables)
        pairs = list(zip(gradients, variables, strict=True))
        if self._pipeline.mixed is None:
            return BackwardResult.plain(pairs)
        return self._pipeline.mixed.received(pairs, self.loss_scale)

    def _differentiate_loss(self) -> tuple[Tensor, BackwardResult]:
        """Compute the loss and its gradients; return (copy of the loss, `BackwardResult`).

        Store the variables of the loss if `var_list` is None.
        """
        losses: list[Any] = []

        def loss() -> Any:
            value = self._loss()
            self._pipeline.check_loss(value)
            losses[:] = [value.detach().clone() if isinstance(value, Tensor) else value]
            return value

        backward = self._pipeline.differentiate(loss, self._variables)
        if self._variables is None and backward.variables:
            self._variables = backward.variables
        return losses[0], backward

    @untraced
    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of all state by name, without the trained variables.

        The state is the global step, masters, slots, powers, accumulators and the loss scaler.
        Loading it also sets the variables that have masters.
        """
        return self._saved()

    def _saved(self, names: Names = keys_of) -> dict[str, Tensor]:
        """Return `state_dict` with variables named by a function."""
        with self._lock:
            return self._remembering(self._owners())._saved(names)

    @untraced
    def load_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Set all state from `state_dict()`; change nothing after an error.

        A variable with a master is set to the master. Load other variables with the model's state.

        Raises:
            CheckpointMismatchError: Names, shapes or dtypes differ.
            FailedPreconditionError: There is no `var_list` and no earlier step.
        """
        with self._loading(state_dict) as loading:
            restore(loading)

    @contextlib.contextmanager
    def _loading(
        self,
        state_dict: Mapping[str, object],
        var_list: object = None,
        names: Names = keys_of,
        extra_entries: Sequence[Entry] = (),
    ) -> Generator[Loading]:
        """Check a state, and yield a `Loading` for `state.restore`; hold locks in the `with` block.

        `names` is that of `_saved`. `extra_entries` are required in the state, too. `var_list` has
        no effect. Raise FailedPreconditionError if no variables are known.
        """
        with self._lock.to_load():
            if self._variables is None:
                raise FailedPreconditionError(_UNKNOWN)
            training = self._remembering(self._variables, extra_entries)
            with training._loading(state_dict, names=names) as loading:
                yield loading
            self._lock.loaded()

    def _remembering(
        self, variables: Sequence[object], extra_entries: Sequence[Entry] = ()
    ) -> TrainingState:
        entries = [Entry("global_step", self.global_step), *extra_entries]
        sums = self._accumulators
        return TrainingState(self._inner, variables, self._masters, self.loss_scaler, sums, entries)

    def __repr__(self) -> str:
        count = "" if self._variables is None else f", {len(self._variables)} variables"
        return f"<TrainingStep of {type(self.optimizer).__name__}{count}>"

    def __reduce__(self) -> Any:
        raise InvalidTypeError(
            "A TrainingStep holds the loss of its own variables and is not copied: make another"
            " with optimize_loss, and load state_dict() into it."
        )

    def _locked(self) -> Guard:
        return self._lock

    def _owners(self) -> list[Any]:
        """Return the trained variables; [] before they are known."""
        return self._variables or []

    def _arguments(self) -> dict[str, object]:
        """Return {name: argument} of `optimize_loss`, without tensors that depend on the rate."""
        moving = {id(tensor) for tensor in self._rate.tensors}
        inner_arguments = self._inner._arguments().items()
        treatment, mixed = self._pipeline.treatment, self._pipeline.mixed
        post = treatment.post
        return {
            "loss": self._loss,
            "optimizer": type(self._inner),
            "optimizer_params": {
                name: argument for name, argument in inner_arguments if id(argument) not in moving
            },
            "learning_rate": self._rate.source,
            "mixed": mixed is not None,
            "clip_gradients": post.clip_gradients,
            "larc": None if post.larc is None else post.larc._asdict(),
            "loss_scaling": None if mixed is None else mixed._arguments()["loss_scale"],
            "iter_size": treatment.iter_size,
        }
