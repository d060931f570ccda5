"""Means of gradients over the workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

from torch import Tensor

from thalweg._base.execution_context import is_deferred
from thalweg._graph import SymbolicSlices
from thalweg.distribute import current_strategy, fill_missing, has_strategy, sum_concrete_gradients
from thalweg.distribute.all_reduce_gradients import sum_pairs
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices, whole
from thalweg.openseq2seq.optimizers.gradients import Gradient, check_given, map_pairs

AllReduce = Callable[[Any], Any]


def reduced(
    gradients: Sequence[Gradient],
    variables: Sequence[Tensor],
    all_reduce: AllReduce | None,
    model: object = None,
    as_shipped: bool = False,
    owner: Any = None,
) -> list[Gradient]:
    """Return the mean of each gradient over the workers.

    None counts as zeros if another worker has a gradient. If all workers have None, the mean is
    None. With `all_reduce`, None stays None.

    Args:
        gradients: The gradients of this worker.
        all_reduce: `all_reduce(gradient)` returns the mean; called for each gradient in order. If
            None, workers are the ranks of the current strategy, else of the default process group.
        model: Sparse gradients become dense first if `shares_embedding` is True for `model`.
        as_shipped: True to raise AttributeError for a sparse gradient without a model.
        owner: Optional. The optimizer of the step. If the workers' optimizers differ, all workers
            raise an error.
    """
    strategy = current_strategy()
    if all_reduce is None and strategy.ranks.is_alone:
        return list(gradients)
    is_shared = shares_embedding(model, gradients, as_shipped)
    pairs = [
        (whole(grad, var) if is_shared and grad is not None else grad, var)
        for grad, var in zip(gradients, variables, strict=True)
    ]
    if all_reduce is not None:
        return [None if grad is None else all_reduce(grad) for grad, _ in pairs]
    if owner is None:
        sums = sum_pairs(pairs, strategy.ranks, strategy.sending)
    else:
        sums = sum_concrete_gradients(owner, strategy, lambda: pairs, variables, owner._describe())
    count = strategy.num_replicas_in_sync
    return [None if total is None else total / count for total, _ in sums]


def check_replicas(reduces: bool, iter_size: int) -> None:
    """Raise for settings of `optimize_loss` that the current strategy does not support.

    Raises:
        InvalidArgumentError: There are several replicas, but gradients are not averaged. Or an
            update has several runs, and the strategy's reduction is "ordered".
    """
    if not reduces and not (has_strategy() and not current_strategy().ranks.is_alone):
        return
    strategy = current_strategy()
    if not reduces:
        raise InvalidArgumentError(
            f"optimize_loss needs on_horovod=True in a strategy of {strategy.ranks.size} replicas:"
            " without it each of them would train on its own."
        )
    if strategy.sending.ordered and iter_size > 1:
        raise InvalidArgumentError(
            f"iter_size={iter_size} and reduction='ordered' exclude one another: runs that are"
            " added up on each rank have another order. Use iter_size=1, or reduction='sum'."
        )


def waited_for(owner: object, reduces: bool) -> AbstractContextManager[None]:
    """Return a context manager that reports errors of its block to waiting workers."""
    strategy = current_strategy() if reduces else None
    if strategy is None or strategy.ranks.is_alone:
        return contextlib.nullcontext()
    return strategy.reducer_of(owner).report_errors()


def shares_embedding(model: Any, gradients: Sequence[object], as_shipped: bool = False) -> bool:
    """Return True if the model's config shares an embedding between encoder and decoder.

    With `as_shipped`, return False without sparse gradients.

    Raises:
        AttributeError: `as_shipped` is True, a gradient is sparse, and there is no model.
    """
    if as_shipped:
        is_sparse = any(isinstance(grad, IndexedSlices | SymbolicSlices) for grad in gradients)
        return is_sparse and bool(model._decoder.params.get("shared_embed", False))
    params = getattr(getattr(model, "_decoder", None), "params", {})
    return bool(params.get("shared_embed", False))


def reduce_gradients(
    grads_and_vars: Sequence[tuple[object, object]],
    on_horovod: bool,
    model: object = None,
    *,
    all_reduce: AllReduce | None = None,
    as_shipped: bool = False,
) -> list[tuple[Any, Any]]:
    """Return (gradient, variable) pairs with the mean of each gradient over the workers.

    Workers are the ranks of the current strategy, or of the default group of torch.distributed. All
    workers must call this function with the same variables. Without a group there is one worker,
    and gradients are returned unchanged. Sparse rows are concatenated, not added.

    Args:
        grads_and_vars: (gradient, variable) pairs.
        on_horovod: Must be true.
        model: Optional. If `model._decoder.params["shared_embed"]` is true, sparse gradients become
            dense first.
        all_reduce: Optional. `all_reduce(gradient)` returns the mean of a tensor or
            `IndexedSlices`; called for each gradient in order, in place of torch.distributed.
        as_shipped: True to raise AttributeError for a sparse gradient without a model.

    Returns:
        The pairs with the means. None counts as zeros if another worker has a gradient. It stays
        None if all workers have None, or with `all_reduce`.

    Raises:
        NotImplementedError: `on_horovod` is false.
        ValueError: There are no pairs.
        ReplicaMismatchError: A gradient is dense for one worker and sparse for another, or dtypes
            differ. Every worker raises the error.

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    if not on_horovod:
        raise NotImplementedError("Reduce in tower-mode is not implemented: on_horovod is false.")
    has_one_worker = all_reduce is None and current_strategy().ranks.is_alone
    if all_reduce is None and is_deferred(*chain.from_iterable(grads_and_vars)):
        # Its ranks are those that build the same graph.
        grads_and_vars = fill_missing(grads_and_vars, current_strategy().ranks)
    grads_and_vars = check_given(grads_and_vars)
    gradients = [grad for grad, _ in grads_and_vars]
    is_shared = not has_one_worker and shares_embedding(model, gradients, as_shipped)

    def mean(gradients: Any, variables: Any) -> list[Gradient]:
        return reduced(gradients, variables, all_reduce, model, as_shipped)

    dtypes = [getattr(grad, "dtype", None) for grad in gradients]
    return map_pairs(mean, grads_and_vars, name="all_reduce", dtypes=dtypes, dense=is_shared)
