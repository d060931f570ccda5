"""Functions whose arguments differ between TensorFlow 1 and 2."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph, v1
from thalweg._graph.eager_or_graph import EagerOrGraphMeta
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices
from thalweg.tf import arrays, elementwise, nn, reductions
from thalweg.tf.compat.behavior import begins_graphs
from thalweg.tf.convert import call, pair, tensor
from thalweg.variable import Variable as EagerVariable
from thalweg.variable import as_dtype

__all__ = [
    "Variable", "argmax", "argmin", "constant", "convert_to_tensor",
    "convert_to_tensor_or_indexed_slices", "gather", "norm", "ones_like", "reduce_all",
    "reduce_any", "reduce_logsumexp", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod",
    "reduce_sum", "shape", "size", "transpose", "where", "zeros_like",
]  # fmt: skip


class Variable(metaclass=EagerOrGraphMeta):
    """A variable of the graph; in eager mode a `thalweg.Variable`; see `thalweg.v1.Variable`.

    `caching_device`, `variable_def`, `expected_shape` and `import_scope` are ignored.
    """

    CLASSES = (EagerVariable, _graph.GraphVariable)

    @begins_graphs
    def __new__(
        cls,
        initial_value: Any = None,
        trainable: bool | None = None,
        collections: Sequence[str] | None = None,
        validate_shape: bool = True,
        caching_device: object = None,
        name: str | None = None,
        variable_def: object = None,
        dtype: Any = None,
        expected_shape: object = None,
        import_scope: object = None,
        constraint: Any = None,
        use_resource: bool | None = None,
        synchronization: Any = None,
        aggregation: Any = None,
        shape: Any = None,
    ) -> Any:
        arguments = (initial_value, trainable, collections, validate_shape, name, dtype)
        modes = {"synchronization": synchronization, "aggregation": aggregation}
        options = {"constraint": constraint, "shape": shape, "use_resource": use_resource}
        return v1.Variable(*arguments, **options, **modes)


def constant(
    value: object,
    dtype: object = None,
    shape: object = None,
    name: str | None = "Const",
    verify_shape: bool = False,
) -> Tensor:
    """Return a new tensor from a number, array or nested lists, optionally in a shape.

    In a graph the last of too few values is repeated, unless `verify_shape` requires the shape.
    """
    sizes = None if shape is None else _graph.ints(shape)
    return _graph.constant(value, dtype, sizes, name, verify_shape)


def _with_older_arguments(reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(reduce)
    def apply(
        input_tensor: object,
        axis: object = None,
        keepdims: bool | None = None,
        name: str | None = None,
        reduction_indices: object = None,
        keep_dims: bool | None = None,
    ) -> Tensor:
        axis = reduction_indices if axis is None else axis
        return reduce(input_tensor, axis, bool(keepdims or keep_dims), name)

    return apply


reduce_sum = _with_older_arguments(reductions.reduce_sum)
reduce_mean = _with_older_arguments(reductions.reduce_mean)
reduce_max = _with_older_arguments(reductions.reduce_max)
reduce_min = _with_older_arguments(reductions.reduce_min)
reduce_prod = _with_older_arguments(reductions.reduce_prod)
reduce_any = _with_older_arguments(reductions.reduce_any)
reduce_all = _with_older_arguments(reductions.reduce_all)
reduce_logsumexp = _with_older_arguments(reductions.reduce_logsumexp)


def argmax(
    input: object,
    axis: int | None = None,
    name: str | None = None,
    dimension: int | None = None,
    output_type: object = torch.int64,
) -> Tensor:
    """Return the index of the largest element along an axis."""
    return reductions.argmax(
        input, _axis_given(axis, dimension), output_type=output_type, name=name
    )


def argmin(
    input: object,
    axis: int | None = None,
    name: str | None = None,
    dimension: int | None = None,
    output_type: object = torch.int64,
) -> Tensor:
    """Return the index of the smallest element along an axis."""
    return reductions.argmin(
        input, _axis_given(axis, dimension), output_type=output_type, name=name
    )


def norm(
    tensor: Any,
    ord: Any = "euclidean",
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Compute a norm as `tf.norm` does; `keep_dims` is the old name of `keepdims`."""
    return reductions.norm(tensor, ord, axis, bool(keepdims or keep_dims), name)


def _axis_given(axis: int | None, dimension: int | None) -> int:
    return next((choice for choice in (axis, dimension) if choice is not None), 0)


def softmax_cross_entropy_with_logits(
    _sentinel: object = None,
    labels: object = None,
    logits: object = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """Compute `tf.nn.softmax_cross_entropy_with_logits`, without a gradient for the labels."""
    _refuse_positional(_sentinel, "softmax_cross_entropy_with_logits")
    fixed = tensor(labels, getattr(logits, "dtype", None)).detach()
    return nn.softmax_cross_entropy_with_logits(fixed, logits, dim if axis is None else axis, name)


def sparse_softmax_cross_entropy_with_logits(
    _sentinel: object = None, labels: object = None, logits: object = None, name: str | None = None
) -> Tensor:
    """Compute `tf.nn.sparse_softmax_cross_entropy_with_logits`; arguments only by name."""
    _refuse_positional(_sentinel, "sparse_softmax_cross_entropy_with_logits")
    return nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name)


def sigmoid_cross_entropy_with_logits(
    _sentinel: object = None, labels: object = None, logits: object = None, name: str | None = None
) -> Tensor:
    """Compute `tf.nn.sigmoid_cross_entropy_with_logits`; arguments only by name."""
    _refuse_positional(_sentinel, "sigmoid_cross_entropy_with_logits")
    return nn.sigmoid_cross_entropy_with_logits(labels, logits, name)


def _refuse_positional(sentinel: object, name: str) -> None:
    if sentinel is not None:
        raise ValueError(f"Only call `{name}` with named arguments (labels=..., logits=...).")


def dropout(
    x: object,
    keep_prob: float | None = None,
    noise_shape: object = None,
    seed: object = None,
    name: str | None = None,
    rate: float | None = None,
) -> Tensor:
    """Set random elements to 0; `keep_prob` is the probability that an element is kept.

    Raises:
        ValueError: Neither or both of `keep_prob` and `rate` are given, or not in range.
    """
    if (keep_prob is None) == (rate is None):
        raise ValueError("dropout needs keep_prob or rate.")
    if isinstance(keep_prob, int | float) and not 0 < keep_prob <= 1:
        raise InvalidArgumentError(f"keep_prob must be in (0, 1], not {keep_prob}.")
    share = 1 - keep_prob if keep_prob is not None else rate
    return nn.dropout(x, rate=share, noise_shape=noise_shape, seed=seed, name=name)  # pyright: ignore[reportArgumentType]


def embedding_lookup(
    params: object,
    ids: object,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: object = None,
) -> Tensor:
    """Return the rows that `ids` names, as `tf.nn.embedding_lookup`; ids are always validated."""
    return nn.embedding_lookup(
        params, ids, max_norm=max_norm, name=name, partition_strategy=partition_strategy
    )


def transpose(
    a: object, perm: object = None, name: str = "transpose", conjugate: bool = False
) -> Tensor:
    """Transpose a tensor as `tf.transpose` does."""
    return arrays.transpose(a, perm, conjugate=conjugate, name=name)


def gather(
    params: object,
    indices: object,
    validate_indices: object = None,
    name: str | None = None,
    axis: int | None = None,
    batch_dims: int = 0,
) -> Tensor:
    """Gather slices as `tf.gather` does."""
    return arrays.gather(params, indices, axis=axis, batch_dims=batch_dims, name=name)


def zeros_like(
    tensor: object, dtype: object = None, name: str | None = None, optimize: object = True
) -> Tensor:
    """Return zeros as `tf.zeros_like` does; `optimize` is ignored."""
    return arrays.zeros_like(tensor, dtype, name)


def ones_like(
    tensor: object, dtype: object = None, name: str | None = None, optimize: object = True
) -> Tensor:
    """Return ones as `tf.ones_like` does; `optimize` is ignored."""
    return arrays.ones_like(tensor, dtype, name)


def shape(input: object, name: str | None = None, out_type: object = torch.int32) -> Tensor:
    """Return the shape of a tensor as `tf.shape` does."""
    return arrays.shape(input, out_type=out_type, name=name)


def size(input: object, name: str | None = None, out_type: object = torch.int32) -> Tensor:
    """Return the number of elements as `tf.size` does."""
    return arrays.size(input, out_type=out_type, name=name)


def convert_to_tensor(
    value: object, dtype: object = None, name: str | None = None, preferred_dtype: object = None
) -> Tensor:
    """Convert a value as `tf.convert_to_tensor` does."""
    return arrays.convert_to_tensor(value, dtype, dtype_hint=preferred_dtype, name=name)


def convert_to_tensor_or_indexed_slices(
    value: object, dtype: object = None, name: str | None = None
) -> Any:
    """Convert a value as `convert_to_tensor` does, but return slices unchanged.

    Raises:
        InvalidTypeError: Slices are of another dtype.
    """
    if not isinstance(value, IndexedSlices | _graph.SymbolicSlices):
        return convert_to_tensor(value, dtype, name)
    if dtype is not None and as_dtype(dtype) != value.dtype:
        raise InvalidTypeError(f"The slices are {value.dtype}, not {as_dtype(dtype)}.")
    return value


def where(condition: object, x: object = None, y: object = None, name: str | None = None) -> Tensor:
    """Select elements as `tf.where`, but for equal shapes; a vector of conditions selects rows.

    Raises:
        InvalidArgumentError: The shapes differ.
    """
    if x is None or y is None:
        return elementwise.where(condition, name=name)

    def choose(mask: Tensor, if_true: Tensor, if_false: Tensor) -> Tensor:
        if if_true.shape != if_false.shape:
            raise InvalidArgumentError(
                f"x and y of where must have one shape, not {tuple(if_true.shape)} and"
                f" {tuple(if_false.shape)}."
            )
        if mask.dim() == 1 and if_true.dim() > 1 and len(mask) == len(if_true):
            mask = mask.reshape(-1, *[1] * (if_true.dim() - 1))
        elif mask.dim() and mask.shape != if_true.shape:
            raise InvalidArgumentError(
                f"The condition of where has shape {tuple(mask.shape)}, which is neither that of"
                f" x, {tuple(if_true.shape)}, nor a vector of its rows."
            )
        return torch.where(mask, if_true, if_false)

    return call(choose, tensor(condition), *pair(x, y), name=name or "Where")
