"""`TrainingStep`: what `optimize_loss` returns in eager mode."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from thalweg.errors import FailedPreconditionError
from thalweg.graph import executing_eagerly
from thalweg.openseq2seq.optimizers.accumulation import Accumulators, as_skip
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import Backward
from thalweg.openseq2seq.optimizers.masters import Masters
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper
from thalweg.openseq2seq.optimizers.process import (
    Given,
    Outcome,
    Processing,
    apply_processed,
)
from thalweg.openseq2seq.optimizers.rate import LiveRate
from thalweg.openseq2seq.optimizers.state import load_state, state_of
from thalweg.openseq2seq.optimizers.update import Inner
from thalweg.outcome import not_taken, raise_first, restored
from thalweg.pairs import flatten
from thalweg.v1.train.optimizer import Optimizer

_STEP = "global_step"


class TrainingStep:
    """A step of training: call it, and it returns the loss from before the update.

    Attributes:
        optimizer: The optimizer; a `MixedPrecisionOptimizerWrapper` in mixed precision.
        global_step: The variable that counts updates, int64 of shape ().
        loss_scaler: The `AutomaticLossScaler`, or None.
        learning_rate: The learning rate of the last step, a tensor of shape ().
        was_applied: Whether the last call made an update; None before the first.

    Made by `optimize_loss`.
    """

    def __init__(
        self,
        loss: Callable[[], Any],
        optimizer: Optimizer,
        var_list: Any,
        rate: LiveRate,
        global_step: Any,
        scaler: AutomaticLossScaler | None,
        how: Processing,
        skip_update: Any,
    ) -> None:
        self.optimizer = optimizer
        self.global_step = global_step
        self.loss_scaler = scaler
        self.was_applied: bool | None = None
        self._loss = loss
        self._variables = None if var_list is None else flatten(var_list)
        self._rate = rate
        self._how = how
        self._skip_update = skip_update
        self._accumulators = Accumulators() if how.iter_size > 1 else None
        self._lock = threading.RLock()
        self._has_run = False

    @property
    def learning_rate(self) -> Tensor:
        """The learning rate of the last step, a tensor of shape ()."""
        return self._rate.value

    @property
    def _mixed(self) -> MixedPrecisionOptimizerWrapper | None:
        optimizer = self.optimizer
        return optimizer if isinstance(optimizer, MixedPrecisionOptimizerWrapper) else None

    @property
    def _inner(self) -> Optimizer:
        return self.optimizer if self._mixed is None else self._mixed.optimizer

    @property
    def _masters(self) -> Masters:
        return Masters() if self._mixed is None else self._mixed._masters

    def __call__(self) -> Tensor:
        """Compute the loss and its gradients, and update the variables.

        Returns:
            The loss before the update, not scaled; without a gradient.

        Raises:
            ValueError: There are no variables, or none has a gradient, or one has none whose norm
                is needed.
            TypeError: `skip_update_ph` gives no bool; an adapting loss scale and a loss that is
                not float32.
            FailedPreconditionError: A graph is being built.

        Nothing has changed then, nor after an error in the loss, the policy, `skip_update_ph`,
        `all_reduce`, a regularizer, or an update of the optimizer. An error in a constraint, the
        optimizer's `_finish` or `summary_writer` comes after the update. A note on it says which.
        """
        if not executing_eagerly():
            raise FailedPreconditionError(
                "This step was made in eager mode: call it outside of `graph.as_default()`."
            )
        with self._lock:
            self.was_applied = False
            with not_taken(), restored(self._rate.tensors):
                loss, outcome = self._run()
            self.was_applied, self._has_run = outcome.taken, True
            raise_first(outcome.errors)
            return loss

    def _run(self) -> tuple[Tensor, Outcome]:
        if not self._has_run:
            self._masters.renew()  # a first run that failed may have made them
        self._rate.refresh()
        skip = self._how.iter_size > 1 and as_skip(self._skip_update)
        loss, backward = self._differentiated()
        sums: list[Tensor] = []
        if self._accumulators is not None:
            self._accumulators.make(backward.targets)
            sums = self._accumulators.of(backward.targets)
        scaler = None if self._mixed is None else self._mixed.loss_scaler
        return loss, apply_processed(
            Inner(self._inner),
            self._how,
            Given(backward, sums, self._rate.value, skip),
            scaler,
            None if self.loss_scaler is None else self.loss_scaler.loss_scale.detach(),
            self.global_step,
        )

    def _differentiated(self) -> tuple[Tensor, Backward]:
        kept: list[Any] = []

        def loss() -> Any:
            value = self._loss()
            kept[:] = [value.detach().clone() if isinstance(value, Tensor) else value]
            return value

        if self._mixed is not None:
            backward = self._mixed.differentiate(loss, self._variables)
        else:
            backward = Backward.plain(self.optimizer.compute_gradients(loss, self._variables))
        if self._variables is None and backward.variables:
            self._variables = backward.variables
        return kept[0], backward

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all state by name: global step, masters, slots, powers, accumulators, scaler.

        The variables themselves are the model's; those that have masters follow from these.
        """
        with self._lock:
            found = state_of(
                self._inner, self._known(), self._masters, self.loss_scaler, self._accumulators
            )
            return {_STEP: self.global_step.detach().clone(), **found}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was taken; all or nothing.

        Variables that have masters are set to them; set the others as the model had them.

        Raises:
            CheckpointMismatchError: Names, shapes or dtypes differ.
            FailedPreconditionError: Neither `var_list` was given nor a step taken.
        """
        with self._lock:
            if self._variables is None:
                raise FailedPreconditionError(
                    "The variables are not known before the first step. Give var_list to"
                    " optimize_loss."
                )
            load_state(
                state_dict,
                self._inner,
                self._variables,
                self._masters,
                self.loss_scaler,
                self._accumulators,
                {_STEP: self.global_step},
            )
            self._has_run = True

    def _known(self) -> list[Any]:
        return self._variables or []
