"""Application of gradients that are summed over replicas first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thalweg import distribute
from thalweg._base.tracing import untraced
from thalweg._core.commit import says_committed
from thalweg._core.grads_and_vars import as_pairs
from thalweg._core.slot_optimizer import SlotOptimizer
from thalweg.v1.train.apply_gradients import GradientApplication, StepArguments
from thalweg.v1.train.gradients import check_any


class DistributedApply(GradientApplication, SlotOptimizer):
    """Base class of `Optimizer` that sums gradients over replicas and applies the sums."""

    @untraced
    def _distributed_apply(
        self,
        distribution: object,
        grads_and_vars: Iterable[tuple[object, object]],
        global_step: object = None,
        name: str | None = None,
    ) -> None:
        """Sum the gradients over the replicas, then apply them; all ranks must call this method.

        A gradient of None counts as zeros if another rank has a gradient.

        Args:
            distribution: A `thalweg.distribute.Strategy`, or a process group of torch.distributed.
                None selects the default process group; without a default process group, only this
                process takes part.
            grads_and_vars, global_step, name: As in `apply_gradients`.

        Returns:
            None; in graph mode, an operation that takes the step.

        Raises:
            ValueError: No variable has a gradient on any rank.
            ReplicaMismatchError: The ranks differ in variables, hyperparameters, steps, or in the
                dtypes or layouts (dense, sparse) of gradients.
            ReplicaLostError: A rank did not answer. Nothing was changed.
        """
        strategy = distribute.strategy_of(distribution)
        with distribute.report_errors(self, strategy):
            pairs = as_pairs(grads_and_vars)
        is_shared = pairs and distribute.shards_of(self, strategy) is not None
        if not is_shared and not strategy.ranks.is_alone:
            summed_pairs = distribute.sum_gradients(
                self, strategy, pairs, self._describe(global_step)
            )
            if pairs and not summed_pairs:
                check_any(pairs)
            pairs = summed_pairs
        try:
            if is_shared:
                step_op = self._apply_in_parts(strategy, pairs, global_step, name or self._name)
            else:
                step_op = self._apply_aggregated(pairs, global_step, name)
        except BaseException as error:
            # Only a callback failed: the variables already contain the sums.
            if says_committed(error):
                distribute.commit_sums(self, failed=True)
            raise
        distribute.commit_sums(self)
        return step_op

    def _has_own_distributed_apply(self) -> bool:
        """Return True if a subclass or this object replaces `_distributed_apply`."""
        method = getattr(self._distributed_apply, "__func__", None)
        return method is not DistributedApply._distributed_apply

    def _apply_in_parts(
        self, strategy: distribute.Strategy, pairs: list[Any], global_step: Any, name: str
    ) -> None:
        """Sum gradients over the ranks; take a step with slots sharded over the ranks.

        `strategy` has `shard_slots=True`. `pairs` are (gradient, variable) pairs of this rank.
        Raise ValueError if no rank has a gradient.
        """
        with self._turn_lock(), self._locked():
            hooks = self._make_hooks(global_step, name, None)
            summed_pairs, step = distribute.sum_for_shards(
                self, strategy, pairs, self._describe(global_step), hooks
            )
            if not summed_pairs:
                check_any(pairs)
            self._apply(summed_pairs, StepArguments(global_step, name, sharing=step))
