"""Functions whose arguments differ between TensorFlow 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph, v1
from thalweg._graph.eager_or_graph import EagerOrGraphMeta
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices
from thalweg.tf import arrays, elementwise, nn, reductions, signatures
from thalweg.tf.compat.behavior import begins_graphs
from thalweg.tf.convert import call, check_same_dtype, pair, tensor
from thalweg.variable import Variable as EagerVariable
from thalweg.variable import as_dtype

__all__ = [
    "Variable", "argmax", "argmin", "constant", "convert_to_tensor",
    "convert_to_tensor_or_indexed_slices", "gather", "norm", "ones_like", "reduce_all",
    "reduce_any", "reduce_logsumexp", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod",
    "reduce_sum", "shape", "size", "transpose", "where", "zeros_like",
]  # fmt: skip


class Variable(metaclass=EagerOrGraphMeta):
    """Variable of a graph, or in eager mode a `thalweg.Variable`; see `thalweg.v1.Variable`.

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
    """Return a new tensor from a number, array or nested lists, optionally reshaped to `shape`.

    A single value fills `shape`, and in a graph the last of too few values is repeated, unless
    `verify_shape` is True. Raise InvalidTypeError if the value does not fit the shape.
    """
    sizes = None if shape is None else _graph.ints(shape)
    return _graph.constant(value, dtype, sizes, name, verify_shape)


with_older_arguments = partial(signatures.with_older_arguments, __name__)
_KEEP = {"keep_dims": "keepdims"}
(
    reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_prod, reduce_any, reduce_all,
    reduce_logsumexp,
) = (
    with_older_arguments(
        getattr(reductions, f"reduce_{kind}"),
        "input_tensor axis keepdims name reduction_indices keep_dims",
        {"reduction_indices": "axis", **_KEEP},
        keepdims=None,
    )
    for kind in ("sum", "mean", "max", "min", "prod", "any", "all", "logsumexp")
)  # fmt: skip
argmax, argmin = (
    with_older_arguments(
        function, "input axis name dimension output_type", {"dimension": "axis"}, axis=None
    )
    for function in (reductions.argmax, reductions.argmin)
)
norm = with_older_arguments(
    reductions.norm, "tensor ord axis keepdims name keep_dims", _KEEP, keepdims=None
)
embedding_lookup = with_older_arguments(
    nn.embedding_lookup,
    "params ids partition_strategy name validate_indices max_norm",
    note="ids are always validated",
    partition_strategy="mod",
    validate_indices=True,
)
transpose = with_older_arguments(arrays.transpose, "a perm name conjugate", name="transpose")
gather = with_older_arguments(arrays.gather, "params indices validate_indices name axis batch_dims")
zeros_like, ones_like = (
    with_older_arguments(function, "tensor dtype name optimize", {"tensor": "input"}, optimize=True)
    for function in (arrays.zeros_like, arrays.ones_like)
)
shape = with_older_arguments(arrays.shape, "input name out_type")
size = with_older_arguments(arrays.size, "input name out_type")
convert_to_tensor = with_older_arguments(
    arrays.convert_to_tensor,
    "value dtype name preferred_dtype",
    {"preferred_dtype": "dtype_hint"},
)


def softmax_cross_entropy_with_logits(
    _sentinel: object = None,
    labels: object = None,
    logits: object = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """Return `tf.nn.softmax_cross_entropy_with_logits`, without a gradient for the labels."""
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
    """Return a tensor with random elements of `x`, scaled by 1 / `keep_prob`, and zeros elsewhere.

    An element is kept with probability `keep_prob`, which is 1 - `rate` if `rate` is given.

    Raises:
        ValueError: Both or none of `keep_prob` and `rate` are given, or the value is out of range.
    """
    if (keep_prob is None) == (rate is None):
        raise ValueError("dropout needs keep_prob or rate.")
    if isinstance(keep_prob, int | float) and not 0 < keep_prob <= 1:
        raise InvalidArgumentError(f"keep_prob must be in (0, 1], not {keep_prob}.")
    dropped_fraction = 1 - keep_prob if keep_prob is not None else rate
    return nn.dropout(x, rate=dropped_fraction, noise_shape=noise_shape, seed=seed, name=name)  # pyright: ignore[reportArgumentType]


def convert_to_tensor_or_indexed_slices(
    value: object, dtype: object = None, name: str | None = None
) -> Any:
    """Return slices unchanged; return `convert_to_tensor(value)` for other values.

    Raise InvalidTypeError if slices do not have the dtype `dtype`.
    """
    if not isinstance(value, IndexedSlices | _graph.SymbolicSlices):
        return convert_to_tensor(value, dtype, name)
    if dtype is not None and as_dtype(dtype) != value.dtype:
        raise InvalidTypeError(f"The slices are {value.dtype}, not {as_dtype(dtype)}.")
    return value


def where(condition: object, x: object = None, y: object = None, name: str | None = None) -> Tensor:
    """Return elements of `x` where `condition` is true, else of `y`; both have one shape.

    A vector of conditions selects rows. Without `x` and `y` return the indices of true conditions.
    Raise InvalidArgumentError if only `x` or only `y` is missing, or if the shapes do not fit.
    Raise InvalidTypeError if `x` and `y` are tensors of different dtypes.
    """
    if x is None or y is None:
        return elementwise.where(condition, x, y, name)

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

    operands = pair(x, y)
    check_same_dtype("where", operands)
    return call(choose, tensor(condition), *operands, name=name or "Where")
