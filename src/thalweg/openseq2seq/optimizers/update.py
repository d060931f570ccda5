"""The last part of a step: finite check, loss scaler, update and copies, all or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thalweg.core.outcome import add_taken, restored
from thalweg.core.pairs import Pair, distinct
from thalweg.core.step import Copies
from thalweg.core.sweeps import Sweep
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.backward import Backward, copy_back
from thalweg.openseq2seq.optimizers.gradients import Gradient
from thalweg.v1.train.optimizer import Optimizer
from thalweg.v1.train.rule_optimizer import RuleOptimizer
from thalweg.v1.train.sync_replicas import SyncReplicasOptimizer


class Inner(NamedTuple):
    """The optimizer that takes the steps.

    Attributes:
        optimizer: The optimizer.
        captured: In a graph the values that it captured when the graph was built; else None.
    """

    optimizer: Optimizer
    captured: list[Any] | None = None

    @classmethod
    def in_graph(cls, optimizer: Optimizer, targets: Sequence[Any]) -> Inner:
        """For the operation that is to update variables of a graph; makes their slots."""
        optimizer._create_slots(distinct(list(targets)))
        return cls(optimizer, optimizer._captured())

    def apply(
        self, gradients: Sequence[Gradient], targets: Sequence[Tensor], global_step: Any
    ) -> BaseException | None:
        """Take a step.

        Returns:
            What a constraint or the optimizer's `_finish` raised after the update, or None.
        """
        pairs = list(zip(gradients, targets, strict=True))

        def take(step: Any) -> bool:
            self.optimizer.apply_gradients(pairs, step)
            return True

        _, error = self._taken(take, global_step)
        return error

    def sweep(
        self,
        optimizer: RuleOptimizer,
        pairs: Sequence[Pair],
        sweep: Sweep,
        copies: Copies,
        global_step: Any,
    ) -> tuple[bool, BaseException | None] | None:
        """Take a step in two sweeps, see `RuleOptimizer.apply_in_sweeps`.

        Returns:
            Whether it was taken, and what was raised after the update; None if it cannot be
            taken like this.
        """
        taken, error = self._taken(
            lambda step: optimizer.apply_in_sweeps(pairs, sweep, copies, step), global_step
        )
        return None if taken is None else (taken, error)

    def _taken(
        self, take: Callable[[Any], bool | None], global_step: Any
    ) -> tuple[bool | None, BaseException | None]:
        """Call `take` with a step counter; returns what it does.

        An exception that comes once the counter has moved is returned and not raised.
        """
        # A counter of this step's own: others may move the one that was given.
        alone = torch.zeros((), dtype=torch.int64)
        shares = isinstance(self.optimizer, SyncReplicasOptimizer)  # it reads the counter
        step = global_step if shares and global_step is not None else alone
        before = step.clone()
        with self.optimizer._locked(), torch.no_grad():
            error: BaseException | None = None
            try:
                if self.captured is not None:
                    self.optimizer._restore_captured(self.captured)
                taken = take(step)
            except BaseException as failure:
                if torch.equal(step, before):
                    raise
                add_taken(failure)
                taken, error = True, failure
            if taken and global_step is not None and step is alone:
                global_step.add_(1)
            return taken, error


def update(
    inner: Inner,
    gradients: Sequence[Gradient],
    backward: Backward,
    scaler: AutomaticLossScaler | None,
    global_step: Any,
) -> tuple[bool, BaseException | None]:
    """Update the targets and copy them to the variables they are masters of.

    With a scaler, a gradient that is not finite leaves all as it is but the scaler.

    Args:
        inner: What takes the step.
        gradients: Gradients by the targets.
        backward: Names the targets and the variables.
        scaler: Optional.
        global_step: The variable that counts updates, or None.

    Returns:
        Whether there was an update, and what was raised after it.
    """
    if scaler is None:
        error = inner.apply(gradients, backward.targets, global_step)
        copy_back(backward)
        return True, error
    pairs = list(zip(gradients, backward.targets, strict=True))
    has_nan, amax = scaler.check_grads(pairs)
    with restored(list(scaler.variables.values())):
        scaler.scaler.advance(has_nan, amax)
        if bool(has_nan) or not bool(torch.isfinite(amax)):
            return False, None
        error = inner.apply(gradients, backward.targets, global_step)
    copy_back(backward)
    return True, error
