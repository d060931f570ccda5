"""Means of gradients over the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, distributed

from thalweg.graph import SymbolicSlices
from thalweg.indexed_slices import IndexedSlices
from thalweg.openseq2seq.optimizers.gradients import (
    Gradient,
    each,
    whole,
)
from thalweg.v1.train.distribution import summed_over_replicas

AllReduce = Callable[[Any], Any]


def reduced(
    gradients: Sequence[Gradient],
    variables: Sequence[Tensor],
    all_reduce: AllReduce | None,
    model: Any = None,
    as_shipped: bool = False,
) -> list[Gradient]:
    """The mean of each gradient over the workers; None stays None.

    Args:
        gradients: Those of this worker.
        variables: Theirs.
        all_reduce: Called with each gradient in order, returns the mean. None stands for the
            default group of torch.distributed, or for one worker where there is none.
        model: See `shares_embedding`: whether sparse gradients are made dense first.
        as_shipped: Whether sparse gradients need a model.
    """
    if all_reduce is None and _workers() == 1:
        return list(gradients)
    is_shared = shares_embedding(model, gradients, as_shipped)
    found: list[Gradient] = []
    for grad, var in zip(gradients, variables, strict=True):
        if grad is None:
            found.append(None)
            continue
        given = whole(grad, var) if is_shared else grad
        found.append(_mean(given, var) if all_reduce is None else all_reduce(given))
    return found


def _workers() -> int:
    is_one = not (distributed.is_available() and distributed.is_initialized())
    return 1 if is_one else distributed.get_world_size()


def _mean(grad: Any, var: Tensor) -> Any:
    ((total, _),) = summed_over_replicas([(grad, var)])
    return total / _workers()


def shares_embedding(model: Any, gradients: Sequence[Any], as_shipped: bool = False) -> bool:
    """Whether the model's config says that encoder and decoder share an embedding.

    Raises:
        AttributeError: `as_shipped`, a gradient is sparse, and there is no model.
    """
    if as_shipped:
        is_sparse = any(isinstance(grad, IndexedSlices | SymbolicSlices) for grad in gradients)
        return is_sparse and bool(model._decoder.params.get("shared_embed", False))
    params = getattr(getattr(model, "_decoder", None), "params", {})
    return bool(params.get("shared_embed", False))


def reduce_gradients(
    grads_and_vars: Sequence[tuple[Any, Any]],
    on_horovod: bool,
    model: Any = None,
    *,
    all_reduce: AllReduce | None = None,
    as_shipped: bool = False,
) -> list[tuple[Any, Any]]:
    """The mean of each gradient over the workers.

    Workers are the ranks of the default group of torch.distributed, if one is initialised, and
    all of them must call it with the same variables. Without a group there is one worker, and the
    gradients stay as they are. Rows of sparse gradients are brought together, not added up.

    Args:
        grads_and_vars: Pairs of a gradient and its variable.
        on_horovod: Must be true.
        model: Optional. If `model._decoder.params["shared_embed"]` holds, sparse gradients are
            made dense first.
        all_reduce: Optional. Called in place of all that with each gradient in order, a tensor or
            `IndexedSlices`; what it returns counts as the mean.
        as_shipped: Whether a sparse gradient needs a model.

    Returns:
        The pairs with the means; a gradient that is None stays None.

    Raises:
        NotImplementedError: `on_horovod` is false.

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    if not on_horovod:
        raise NotImplementedError("Reduce in tower-mode is not implemented: on_horovod is false.")
    gradients = [grad for grad, _ in grads_and_vars]
    variables = [var for _, var in grads_and_vars]
    is_alone = all_reduce is None and _workers() == 1
    is_shared = not is_alone and shares_embedding(model, gradients, as_shipped)

    def mean(gradients: Any, variables: Any) -> list[Gradient]:
        return reduced(gradients, variables, all_reduce, model, as_shipped)

    made = each(
        mean,
        gradients,
        variables,
        name="all_reduce",
        dtypes=[getattr(grad, "dtype", None) for grad in gradients],
        dense=is_shared,
    )
    return list(zip(made, variables, strict=True))
