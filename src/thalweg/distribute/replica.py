"""Context of one replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thalweg.distribute.context import Replicas, enter_cross_replica
from thalweg.distribute.nested_all_reduce import all_reduce


class ReplicaContext:
    """Context of the replica that computes in this process.

    Attributes:
        strategy: The `Strategy`.
    """

    def __init__(self, strategy: Replicas) -> None:
        self.strategy = strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas."""
        return self.strategy.ranks.size

    @property
    def replica_id_in_sync_group(self) -> int:
        """The number of this replica, from 0 on."""
        return self.strategy.ranks.rank

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of this replica."""
        return (str(torch.get_default_device()),)

    def all_reduce(self, reduce_op: object, value: object, options: object = None) -> Any:
        """Return sums or means over all replicas, equal on each of them.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, "sum" or "mean".
            value: A tensor, `IndexedSlices`, number, or a nest of these; in graph mode of symbolic
                tensors. The same structure on each replica; a None stays None.
            options: Accepted for compatibility.

        Returns:
            The same nest with the results. Rows of `IndexedSlices` are brought together.

        Raises:
            ReplicaMismatchError: Kinds or dtypes differ between replicas.
            ReplicaLostError: A replica did not answer.
        """
        return all_reduce(self.strategy, reduce_op, value)

    def merge_call(
        self,
        merge_fn: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> Any:
        """Call `merge_fn(strategy, *args, **kwargs)` in the cross-replica context; return its
        result.

        Each rank calls its own `merge_fn` with its own arguments and gets its own result: nothing
        is merged except by collectives that `merge_fn` calls. These need a `merge_call` on all
        ranks. An error of `merge_fn` is raised; the replica context is restored in each case.
        """
        with enter_cross_replica(self.strategy):
            return merge_fn(self.strategy, *args, **(kwargs or {}))
