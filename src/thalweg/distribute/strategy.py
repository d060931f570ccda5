"""`Strategy`: data-parallel training over several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, cast
from weakref import WeakKeyDictionary

import torch

from thalweg._base.execution_context import executing_eagerly
from thalweg._base.showing import show_value
from thalweg._core.grads_and_vars import check_variables, flatten
from thalweg._core.graph_mode import graph_mode
from thalweg._core.hyperparameters import is_number
from thalweg.autodiff import Gradient, GradientTape
from thalweg.distribute.buckets import DTYPES, SIZE, Sending
from thalweg.distribute.consistency_check import Agreement
from thalweg.distribute.context import (
    enter_cross_replica,
    enter_replica,
    in_cross_replica_context,
    innermost_context,
)
from thalweg.distribute.extended import Extended, ReplicaContext
from thalweg.distribute.handshake import PendingCollective, report_error
from thalweg.distribute.nested_all_reduce import all_reduce
from thalweg.distribute.process_group import Ranks
from thalweg.distribute.reducer import Reducer
from thalweg.distribute.sharding.shards import Shards
from thalweg.distribute.tree_reduction import over_batches
from thalweg.errors import InvalidArgumentError, InvalidTypeError

# torch counts milliseconds, of which 0 means for ever, and hangs where they overflow.
SHORTEST, LONGEST = 0.001, 1_000_000_000


class Strategy:
    """Strategy for data-parallel training over the ranks of a process group.

    Each rank is a replica: a process with a copy of the variables and a part of the global batch.
    In `run` an optimizer applies gradients that are summed over all ranks, so that all copies stay
    equal to the bit. Start the ranks with `torchrun`. Without `torchrun` and without a process
    group, there is one replica.

    Args:
        group: Optional. A process group of torch.distributed (gloo, NCCL). By default the default
            group; if none exists, the group of `torchrun` is initialised.
        timeout: Optional. Seconds that a rank may take to answer, from 0.001 to a billion; by
            default the group's timeout.
        bucket_size: Bytes of gradients per message.
        reduction: "sum" adds in the fastest order. "ordered" adds in an order that is equal on 1,
            2, 4, ... ranks, see `gradients`.
        compression: Optional. "float16" or "bfloat16": an optimizer sends dense gradients in this
            dtype, in eager mode. The rank adds rounding errors to the variable's next gradient. Not
            with `reduction="ordered"` or `shard_slots`.
        shard_slots: True to shard the slots (state) of an optimizer from its next step on. Each
            rank updates a part of each variable, and sends the part to the other ranks. All ranks
            must then call `state_dict` together.

    Attributes:
        ranks: The ranks.
        assignments: The comparison of ranks before an assignment to an aggregated variable.

    Raises:
        InvalidTypeError: `group` is not a process group, or a number has another type.
        InvalidArgumentError: An argument is out of range or unknown. `compression` is combined with
            `shard_slots` or an ordered reduction. The number of ranks of an ordered reduction is
            not a power of two.

    Reference: https://www.tensorflow.org/api_docs/python/tf/distribute/Strategy

    Example:
        >>> import thalweg
        >>> from thalweg.keras.optimizers import SGD
        >>> strategy = Strategy()  # on each rank; one replica here
        >>> w, opt = thalweg.Variable([1.0, 2.0]), SGD(0.5)
        >>> _ = strategy.run(lambda: opt.minimize(lambda: w.sum(), [w]))
        >>> w.numpy(), strategy.num_replicas_in_sync
        (array([0.5, 1.5], dtype=float32), 1)
    """

    def __init__(
        self,
        group: object = None,
        *,
        timeout: float | None = None,
        bucket_size: int = SIZE,
        reduction: Literal["sum", "ordered"] = "sum",
        compression: Literal["float16", "bfloat16"] | None = None,
        shard_slots: bool = False,
    ) -> None:
        _check_settings(timeout, bucket_size, reduction, compression, shard_slots)
        ranks = Ranks(group, timeout)
        if reduction == "ordered" and ranks.size & (ranks.size - 1):
            raise InvalidArgumentError(
                f"An ordered reduction needs 1, 2, 4, 8, ... ranks, not {ranks.size}."
            )
        low_precision = None if compression is None else DTYPES[compression]
        sending = Sending(bucket_size, reduction == "ordered", low_precision)
        self._set_up(ranks, sending, shard_slots)

    def _set_up(self, ranks: Ranks, sending: Sending, shard_slots: bool = False) -> None:
        """Set all attributes; called by the constructor and by `alone`."""
        self.ranks, self.sending, self.is_default = ranks, sending, False
        self._shard_slots = shard_slots and not ranks.is_alone
        self.extended = Extended(self)
        self.assignments = Agreement(ranks, values=False)
        self._reducers: WeakKeyDictionary[Any, Reducer] = WeakKeyDictionary()

    def reducer_of(self, optimizer: object) -> Reducer:
        """Return the reducer of an optimizer's gradients, created at the first call."""
        reducer = self._reducers.get(optimizer)
        if reducer is None:
            shards = Shards(self.ranks) if self._shard_slots else None
            reducer = self._reducers[optimizer] = Reducer(self.ranks, self.sending, shards)
        return reducer

    @classmethod
    def alone(cls) -> Strategy:
        """Return a strategy with one replica, even if there are process groups."""
        strategy = cls.__new__(cls)
        strategy._set_up(Ranks(single=True), Sending())
        return strategy

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas."""
        return self.ranks.size

    def scope(self) -> AbstractContextManager[Strategy]:
        """Return a context manager that enters the cross-replica context of this strategy.

        To apply gradients, use `run` instead.

        Raises:
            RuntimeError: This thread is in the scope of another strategy.
        """
        self._check_alone()
        return enter_cross_replica(self)

    def run(
        self,
        fn: Callable[..., object],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        options: object = None,
    ) -> Any:
        """Return `fn(*args, **kwargs)`, called as the replica of this rank.

        Args:
            fn: The function. It is called once in this process.
            args, kwargs: The arguments of `fn`.
            options: Ignored; accepted for compatibility.

        Raises:
            RuntimeError: The call is in the scope of another strategy.
        """
        self._check_alone()
        with enter_replica(ReplicaContext(self)):
            return fn(*args, **(kwargs or {}))

    experimental_run_v2 = run

    def experimental_run(self, fn: Callable[..., object], input_iterator: Any = None) -> Any:
        """Return `run(fn)`, or `run(fn, (batch,))` with the next element of `input_iterator`."""
        if input_iterator is None:
            return self.run(fn)
        is_of_tensorflow = hasattr(input_iterator, "get_next")
        batch = input_iterator.get_next() if is_of_tensorflow else next(input_iterator)
        return self.run(fn, (batch,))

    def reduce(self, reduce_op: object, value: object, axis: int | None = None) -> Any:
        """Return the sum or mean of each value over all ranks, such as of a result of `run`.

        Args:
            reduce_op: `ReduceOp.SUM` or `MEAN`, "sum" or "mean".
            value: A tensor, number or a nest of these; in graph mode of symbolic tensors. A value
                that is None on all ranks stays None. Means of integers are floating-point numbers.
            axis: Optional. A dimension of the value that is reduced, too. A mean then divides by
                the number of elements on all ranks.
        """
        return all_reduce(self, reduce_op, value, axis)

    def broadcast(self, variables: torch.nn.Module | Iterable[torch.Tensor]) -> None:
        """Overwrite variables in place with the values of rank 0; call it on every rank.

        Args:
            variables: Tensors, or a module with parameters and buffers.

        Raises:
            LayoutError: The memory of a variable was freed; the other ranks raise
                ReplicaMismatchError.
            ReplicaMismatchError: The variables differ between ranks.
            ReplicaLostError: A rank did not answer.
        """
        self.extended.broadcast(variables)

    def gradients(
        self, loss: Callable[[int], torch.Tensor], variables: object, micro_batches: int
    ) -> list[tuple[Any, torch.Tensor]]:
        """Return the gradients of the summed losses of this rank's micro-batches, in a fixed order.

        With `reduction="ordered"`, `apply_gradients` continues this order to a balanced tree over
        the micro-batches of all ranks. Runs with 1, 2, 4, ... ranks then have equal bits under
        three conditions. Micro-batch k has the same examples in all runs. Random numbers and
        buffers depend on k only. The number of torch's threads is equal (`torchrun` sets 1).

        Args:
            loss: `loss(k)` returns the loss of micro-batch k; called for each micro-batch of this
                rank.
            variables: Variables, in a nest.
            micro_batches: The number of micro-batches of all ranks; a multiple of the number of
                ranks.

        Returns:
            (gradient or None, variable) pairs.

        Raises:
            InvalidArgumentError: `micro_batches` is not a multiple of the number of ranks.
        """
        local_batches, remainder = divmod(micro_batches, self.ranks.size)
        if remainder or local_batches < 1:
            raise InvalidArgumentError(
                f"micro_batches must be a multiple of the {self.ranks.size} ranks, not"
                f" {show_value(micro_batches)}."
            )
        params = flatten(variables)
        check_variables(params)

        def of_one(index: int) -> list[Gradient]:
            """Return the gradients of one micro-batch, in the order of the variables."""
            tape = GradientTape()
            with tape:
                tape.watch(params)
                batch_loss = loss(index)
            return tape.gradient(batch_loss, params)

        self.sending.micro_batches = micro_batches
        first = self.ranks.rank * local_batches
        # The other ranks would wait in `apply_gradients` for a rank whose `loss` failed.
        with report_error(self.ranks, PendingCollective.STEP):
            sums = over_batches(first, first + local_batches, of_one)
        return list(zip(sums, params, strict=True))

    def group(self, value: object, name: str | None = None) -> Any:
        """Return an operation that completes after all operations in `value`; None in eager mode.

        Args:
            value: Operations or symbolic tensors, in a nest.
            name: Optional. The name of the operation.
        """
        return None if executing_eagerly() else graph_mode().group(value, name=name)

    def experimental_local_results(self, value: object) -> tuple[Any, ...]:
        """Return `(value,)`: a process has one replica."""
        return (value,)

    def _check_alone(self) -> None:
        """Raise RuntimeError in the scope of another strategy."""
        context = innermost_context()
        if context is not None and context.strategy is not self:
            raise RuntimeError(
                "Cannot nest scopes of thalweg.distribute.Strategy: this thread is in another one."
            )

    def __repr__(self) -> str:
        return f"<Strategy: {self.ranks!r}>"


# The strategy outside of any scope.
_DEFAULT = Strategy.alone()
_DEFAULT.is_default = True


def _check_settings(
    timeout: float | None,
    bucket_size: int,
    reduction: str,
    compression: str | None,
    shard_slots: bool,
) -> None:
    """Raise InvalidTypeError or InvalidArgumentError if settings of a `Strategy` are invalid."""
    for name, setting in (("timeout", timeout), ("bucket_size", bucket_size)):
        if setting is not None:
            _check_above_0(name, setting)
    if timeout is not None and not SHORTEST <= timeout <= LONGEST:
        raise InvalidArgumentError(
            f"timeout must be from {SHORTEST:g} to {LONGEST:,} seconds, not"
            f" {show_value(timeout)}."
            " Without it that of the process group counts."
        )
    if reduction not in ("sum", "ordered"):
        raise InvalidArgumentError(
            f"reduction must be 'sum' or 'ordered', not {show_value(reduction)}."
        )
    if compression is not None and compression not in DTYPES:
        raise InvalidArgumentError(
            f"compression must be 'float16', 'bfloat16' or None, not {show_value(compression)}."
        )
    if compression is not None and reduction == "ordered":
        raise InvalidArgumentError(
            f"reduction='ordered' and compression={compression!r} exclude one another: 16 bits"
            " would round away what the order keeps."
        )
    if compression is not None and shard_slots:
        raise InvalidArgumentError(
            f"shard_slots={shard_slots!r} and compression={compression!r} exclude one another:"
            " what 16 bits leave out is kept for whole sums alone."
        )


def _check_above_0(name: str, setting: object) -> None:
    """Raise unless a number is above 0: InvalidTypeError or InvalidArgumentError."""
    if not is_number(setting) or isinstance(setting, bool):
        raise InvalidTypeError(f"{name} must be a number, not {show_value(setting)}.")
    if not setting > 0:
        raise InvalidArgumentError(f"{name} must be above 0, not {show_value(setting)}.")


def enter_single_replica() -> AbstractContextManager[None]:
    """Return a context manager with one replica, even within another strategy."""
    return enter_replica(ReplicaContext(_DEFAULT))


def get_strategy() -> Strategy:
    """Return the strategy of this thread; outside of all scopes, the default strategy."""
    context = innermost_context()
    return _DEFAULT if context is None else cast(Strategy, context.strategy)


def current_replica() -> ReplicaContext:
    """Return the replica context of this thread, or of its strategy in cross-replica context."""
    context = innermost_context()
    replica = None if context is None else context.replica
    return cast(ReplicaContext, replica) if replica else ReplicaContext(get_strategy())


def get_replica_context() -> ReplicaContext | None:
    """Return the replica context of this thread, or None in cross-replica context."""
    return None if in_cross_replica_context() else current_replica()
