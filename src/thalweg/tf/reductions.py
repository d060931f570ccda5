"""Reductions: sums, means and extremes, along axes or over all elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.tf.convert import call, named_in_graphs, tensor
from thalweg.tf.operators import name_function
from thalweg.variable import as_dtype, dtype_name

__all__ = [
    "argmax", "argmin", "count_nonzero", "norm", "reduce_all", "reduce_any", "reduce_logsumexp",
    "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_std", "reduce_sum",
    "reduce_variance",
]  # fmt: skip

Axis = int | list[int] | tuple[int, ...] | None


def _axes_of(operand: Tensor, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(operand.dim()))
    axis = axis.tolist() if isinstance(axis, torch.Tensor | np.ndarray) else axis
    axes = [int(entry) for entry in (axis if isinstance(axis, list | tuple) else [axis])]
    rank = operand.dim()
    wrong = [entry for entry in axes if not -rank <= entry < rank]
    if wrong or len({entry % rank for entry in axes}) < len(axes):
        raise InvalidArgumentError(
            f"axis {axis} must name dimensions of a tensor of shape {tuple(operand.shape)}."
        )
    return tuple(axes)


def _reduction_function(
    function: Callable[[Tensor, tuple[int, ...], bool], Tensor],
    label: str,
    unreduced: Callable[[Tensor], Tensor] = torch.clone,
) -> Callable[..., Tensor]:
    """Return a function `(input_tensor, axis=None, keepdims=False, name=None)`.

    Args:
        function: `function(tensor, axes, keepdims)` returns the reduced tensor.
        unreduced: `unreduced(tensor)` is called if there are no axes to reduce.
    """

    def reduce(operand: Tensor, axis: object, keepdims: bool) -> Tensor:
        axes = _axes_of(operand, axis)
        return function(operand, axes, keepdims) if axes else unreduced(operand)

    def apply(
        input_tensor: object, axis: Axis = None, keepdims: bool = False, name: str | None = None
    ) -> Tensor:
        return call(reduce, tensor(input_tensor), axis, bool(keepdims), name=name or label)

    description = "along an axis, several, or all; `keepdims` keeps them with size 1"
    return name_function(apply, label, f"`{label}` {description}.")


def _one_by_one(function: Callable[[Tensor, int, bool], Tensor]) -> Callable[..., Tensor]:
    """Return a reduction over several axes; `function(tensor, axis, keepdims)` reduces one axis."""

    def reduce(operand: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
        # The last axis comes first, so that the numbers of the other axes stay valid.
        for axis in sorted((axis % operand.dim() for axis in axes), reverse=True):
            operand = function(operand, axis, keepdims)
        return operand

    return reduce


def _is_exact(operand: Tensor) -> bool:
    return not (operand.is_floating_point() or operand.is_complex())


def _zero_or_nan(operand: Tensor) -> Tensor:
    # NaN and infinity give NaN, all other numbers 0.
    return operand - operand


def _numeric_reduction(function: Callable[..., Tensor], label: str) -> Callable[..., Tensor]:
    """Return a reduction that rejects bools."""

    def reduce(operand: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
        if operand.dtype == torch.bool:
            raise InvalidTypeError(f"{label} takes numbers, not bool. Cast the tensor.")
        return function(operand, axes, keepdims)

    return _reduction_function(reduce, label)


def _extreme_reduction(
    function: Callable[..., Tensor], label: str, largest: bool
) -> Callable[..., Tensor]:
    """Return a reduction to the largest or smallest element.

    Without elements, the result is -inf or inf, or the limit of an integer dtype.
    """

    def reduce(operand: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
        if all(operand.shape[axis] for axis in axes):
            return function(operand, axes, keepdims)
        if operand.is_floating_point():
            limit: Any = -math.inf if largest else math.inf
        else:
            limit = torch.iinfo(operand.dtype).min if largest else torch.iinfo(operand.dtype).max
        return torch.full_like(operand.sum(axes, keepdims, dtype=operand.dtype), limit)

    return _numeric_reduction(reduce, label)


def _mean_over(operand: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Return the mean along axes; the mean of integers is rounded toward 0, as in TensorFlow."""
    if not _is_exact(operand):
        return operand.mean(axes, keepdims)
    count = math.prod(operand.shape[axis] for axis in axes)
    if not count:
        raise InvalidArgumentError(
            f"reduce_mean of no elements has no value in {dtype_name(operand.dtype)}."
        )
    total = operand.sum(axes, keepdims, dtype=operand.dtype)
    return torch.div(total, count, rounding_mode="trunc")


def _of_fractions(
    function: Callable[[Tensor, tuple[int, ...], bool], Tensor],
    label: str,
    unreduced: Callable[[Tensor], Tensor] = torch.clone,
) -> Callable[..., Tensor]:
    """Return a `_reduction_function` that rejects integers with InvalidTypeError."""

    def check_inexact(operand: Tensor) -> Tensor:
        if _is_exact(operand):
            raise InvalidTypeError(
                f"{label} takes real or complex numbers, not {dtype_name(operand.dtype)}."
                " Cast the tensor."
            )
        return operand

    return _reduction_function(
        lambda x, axes, keep: function(check_inexact(x), axes, keep),
        label,
        lambda x: unreduced(check_inexact(x)),
    )


reduce_sum = _numeric_reduction(
    lambda x, axes, keep: x.sum(axes, keep, dtype=x.dtype), "reduce_sum"
)
reduce_mean = _numeric_reduction(_mean_over, "reduce_mean")
reduce_max = _extreme_reduction(torch.amax, "reduce_max", True)
reduce_min = _extreme_reduction(torch.amin, "reduce_min", False)
reduce_logsumexp = _of_fractions(lambda x, axes, keep: x.logsumexp(axes, keep), "reduce_logsumexp")
reduce_variance = _of_fractions(
    lambda x, axes, keep: x.var(axes, correction=0, keepdim=keep), "reduce_variance", _zero_or_nan
)
reduce_std = _of_fractions(
    lambda x, axes, keep: x.std(axes, correction=0, keepdim=keep), "reduce_std", _zero_or_nan
)
reduce_prod = _numeric_reduction(
    _one_by_one(lambda x, axis, keep: x.prod(axis, keep, dtype=x.dtype)), "reduce_prod"
)
reduce_any = _reduction_function(_one_by_one(lambda x, axis, keep: x.any(axis, keep)), "reduce_any")
reduce_all = _reduction_function(_one_by_one(lambda x, axis, keep: x.all(axis, keep)), "reduce_all")


@named_in_graphs(2, "name")
def argmax(
    input: object, axis: int = 0, output_type: object = torch.int64, name: str | None = None
) -> Tensor:
    """Return the index of the largest element along an axis."""
    return _find_index(torch.argmax, input, axis, output_type, name or "ArgMax")


@named_in_graphs(2, "name")
def argmin(
    input: object, axis: int = 0, output_type: object = torch.int64, name: str | None = None
) -> Tensor:
    """Return the index of the smallest element along an axis."""
    return _find_index(torch.argmin, input, axis, output_type, name or "ArgMin")


def _find_index(
    function: Any, input: object, axis: int | None, output_type: Any, name: str
) -> Tensor:
    def find(operand: object) -> Tensor:
        return function(operand, 0 if axis is None else axis).to(as_dtype(output_type))

    return call(find, tensor(input), name=name)


def count_nonzero(
    input: object,
    axis: Axis = None,
    keepdims: bool = False,
    dtype: object = torch.int64,
    name: str | None = None,
) -> Tensor:
    """Return the number of elements that are not 0, along the axes in `axis`, by default all."""

    def count(operand: Tensor) -> Tensor:
        return reduce_sum((operand != 0).to(as_dtype(dtype)), axis, keepdims)

    return call(count, as_tensor(input), name=name or "count_nonzero")


def norm(
    tensor: object,
    ord: Any = "euclidean",
    axis: Axis = None,
    keepdims: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the norm of vectors along an axis, of matrices along two axes, or of all elements.

    Args:
        tensor: Real or complex numbers.
        ord: For vectors "euclidean" or a number above 0, also infinity. For matrices "euclidean",
            "fro", 1, 2 or infinity.
        axis: An axis, or a list of two axes.
        keepdims: True to keep the axes, with size 1.

    Raises:
        InvalidArgumentError: `ord` is not a listed norm.
    """
    of_matrices = isinstance(axis, list | tuple) and len(axis) == 2
    is_euclidean = ord == "euclidean" or (of_matrices and ord == "fro")
    is_supported = ord in (1, 2, math.inf) if of_matrices else not isinstance(ord, str) and ord > 0
    if not (is_euclidean or is_supported):
        kinds = "'euclidean', 'fro', 1, 2 or inf" if of_matrices else "'euclidean' or a number > 0"
        raise InvalidArgumentError(f"ord must be {kinds}, not {show_value(ord)}.")

    def measure(operand: Tensor) -> Tensor:
        axes = _axes_of(operand, axis)
        if of_matrices and not is_euclidean:
            return torch.linalg.matrix_norm(operand, ord, axes, keepdims)
        return torch.linalg.vector_norm(operand, 2 if is_euclidean else ord, axes, keepdims)

    return call(measure, as_tensor(tensor), name=name or "norm")


# An argument of `norm` has the name `tensor`.
as_tensor = tensor
