"""Context of one replica, and `Strategy.extended`: low-level methods for optimizers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._core.grads_and_vars import flatten
from thalweg._core.nest import leaves_of
from thalweg.distribute.consistency_check import Agreement, StepFingerprint
from thalweg.distribute.context import Replicas, enter_cross_replica, enter_replica
from thalweg.distribute.handshake import PendingCollective, report_error
from thalweg.distribute.nested_all_reduce import all_reduce
from thalweg.variable import check_held


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
        """Return the sum or mean of each value over all replicas.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, "sum" or "mean".
            value: A tensor, `IndexedSlices` or number, or a nest (lists, tuples, dicts) of these.
                All replicas pass the same structure. Graph mode takes symbolic tensors.
            options: Ignored; accepted for compatibility.

        Returns:
            The same nest with the results, equal on each replica. A value that is None on all
            replicas stays None. Rows of `IndexedSlices` are concatenated.

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
        """Return `merge_fn(strategy, *args, **kwargs)`, called in the cross-replica context.

        Values of ranks are merged only by collectives that `merge_fn` calls. In this case all ranks
        must call `merge_call`. The replica context is restored also after an error.
        """
        with enter_cross_replica(self.strategy):
            return merge_fn(self.strategy, *args, **(kwargs or {}))


class Extended:
    """Variable placement and updates; each update runs once per process."""

    def __init__(self, strategy: Replicas) -> None:
        self._strategy = strategy

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The devices that replicas of this process compute on."""
        return ReplicaContext(self._strategy).devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The devices of the variables of this process."""
        return self.worker_devices

    def reduce_to(
        self, reduce_op: object, value: object, destinations: object = None, options: object = None
    ) -> Any:
        """Return the sum or mean of a value over all replicas, on each replica.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, "sum" or "mean".
            value: A tensor or `IndexedSlices`.
            destinations, options: Ignored; accepted for compatibility.
        """
        return all_reduce(self._strategy, reduce_op, value)

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call `fn(*args, **kwargs)` as `Strategy.run` does; return the result."""
        with enter_replica(ReplicaContext(self._strategy)):
            return fn(*args, **(kwargs or {}))

    def batch_reduce_to(
        self,
        reduce_op: object,
        value_destination_pairs: Iterable[tuple[object, object]],
        options: object = None,
    ) -> list[Any]:
        """Return the sum or mean of each value over all replicas; values are sent together.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, "sum" or "mean".
            value_destination_pairs: (value, destination) pairs; destinations are ignored.
            options: Ignored; accepted for compatibility.
        """
        values = [value for value, _ in value_destination_pairs]
        return all_reduce(self._strategy, reduce_op, values)

    def update(
        self,
        var: object,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(var, *args, **kwargs)`, which updates a variable, once in each process.

        Args:
            var: The variable.
            fn: The function. It is called in the cross-replica context.
            args, kwargs: Further arguments.
            group: True to return the result of `fn`, False to return `(result,)`.
        """
        return self.update_non_slot(var, fn, (var, *args), kwargs, group)

    def update_non_slot(
        self,
        colocate_with: object,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(*args, **kwargs)` once per process to update state that belongs to no variable.

        Return the result of `fn`, or `(result,)` if `group` is False. `colocate_with` is ignored.
        """
        with enter_cross_replica(self._strategy):
            output = fn(*args, **(kwargs or {}))
        return output if group else (output,)

    def non_slot_devices(self, var_list: Sequence[object]) -> tuple[str, ...]:
        """Return the device of the first variable of a list."""
        return tuple(dict.fromkeys(str(getattr(var, "device", "cpu")) for var in var_list))[:1]

    def colocate_vars_with(self, colocate_with_variable: object) -> AbstractContextManager[None]:
        """Return a context manager without effect: variables are always on this process' device."""
        return contextlib.nullcontext()

    def value_container(self, value: object) -> Any:
        """Return the variable that holds a value: the value itself."""
        return value

    def broadcast(self, variables: torch.nn.Module | Iterable[Tensor]) -> None:
        """Overwrite variables in place with the values of rank 0; all ranks must call this method.

        Args:
            variables: Tensors in a nest, or a module with parameters and buffers.

        Raises:
            LayoutError: The memory of a variable was freed; the other ranks raise
                ReplicaMismatchError.
            ReplicaMismatchError: Number, names, shapes or dtypes of variables differ between ranks.
        """
        ranks = self._strategy.ranks
        if ranks.is_alone:
            return
        if isinstance(variables, torch.nn.Module):
            tensors = [*variables.parameters(), *variables.buffers()]
        else:
            tensors = list(leaves_of(flatten(variables)))
        with report_error(ranks, PendingCollective.STEP):
            for tensor in tensors:
                check_held(tensor)
        Agreement(ranks, values=False).check(tensors, StepFingerprint(list))
        with no_grad():
            copies = [
                tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors
            ]
            ranks.broadcast(copies)
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.detach().copy_(copy)
