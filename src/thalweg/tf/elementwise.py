"""Elementwise arithmetic of `tf` and `tf.math`."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.static_shape import UNKNOWN
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices
from thalweg.tf import operators
from thalweg.tf.convert import call, check_same_dtype, pair, tensor
from thalweg.tf.operators import name_function
from thalweg.variable import as_dtype, divide_tensors, numpy_copy

__all__ = [
    "abs", "acos", "add", "add_n", "asin", "atan", "atan2", "cast", "ceil", "clip_by_value", "cos",
    "cosh", "cumprod", "cumsum", "digamma", "divide", "divide_no_nan", "equal", "erf", "exp",
    "expm1", "floor", "floordiv", "floormod", "greater", "greater_equal", "is_finite", "is_inf",
    "is_nan", "less", "less_equal", "lgamma", "log", "log1p", "log_sigmoid", "logical_and",
    "logical_not", "logical_or", "logical_xor", "maximum", "minimum", "mod", "multiply", "negative",
    "not_equal", "pow", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh",
    "softplus", "sqrt", "square", "squared_difference", "stop_gradient", "subtract", "tan", "tanh",
    "truediv", "where",
]  # fmt: skip


def _rounded_sqrt(x: torch.Tensor) -> torch.Tensor:
    """Return the correctly rounded square root, as TensorFlow does on the CPU.

    Return `torch.sqrt(x)` under autograd, in transformations of torch.func, and on other devices.
    """
    is_unrecorded = not (x.requires_grad and torch.is_grad_enabled())
    if is_unrecorded and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        with contextlib.suppress(RuntimeError), np.errstate(invalid="ignore"):
            copy = numpy_copy(x)
            return torch.from_numpy(np.sqrt(copy, out=copy))
    return torch.sqrt(x)


# From this number on log(1 + exp(x)) is x in float64, too. torch's default is 20.
_LINEAR = 40.0

unary, binary = (functools.partial(make, __name__) for make in (operators.unary, operators.binary))
# TensorFlow's `mod` and `floordiv` round downwards, as `remainder` and `floor_divide` of torch.
abs = unary(torch.abs, "abs")
acos = unary(torch.acos, "acos")
asin = unary(torch.asin, "asin")
atan = unary(torch.atan, "atan")
ceil = unary(torch.ceil, "ceil")
cos = unary(torch.cos, "cos")
cosh = unary(torch.cosh, "cosh")
digamma = unary(torch.digamma, "digamma")
erf = unary(torch.erf, "erf")
exp = unary(torch.exp, "exp")
expm1 = unary(torch.expm1, "expm1")
floor = unary(torch.floor, "floor")
is_finite = unary(torch.isfinite, "is_finite")
is_inf = unary(torch.isinf, "is_inf")
is_nan = unary(torch.isnan, "is_nan")
lgamma = unary(torch.lgamma, "lgamma")
log = unary(torch.log, "log")
log1p = unary(torch.log1p, "log1p")
log_sigmoid = unary(torch.nn.functional.logsigmoid, "log_sigmoid")
logical_not = unary(torch.logical_not, "logical_not")
negative = unary(torch.neg, "negative")
reciprocal = unary(torch.reciprocal, "reciprocal")
round = unary(torch.round, "round")
rsqrt = unary(torch.rsqrt, "rsqrt")
sigmoid = unary(torch.sigmoid, "sigmoid")
sign = unary(torch.sign, "sign")
sin = unary(torch.sin, "sin")
sinh = unary(torch.sinh, "sinh")
softplus = unary(lambda x: torch.nn.functional.softplus(x, threshold=_LINEAR), "softplus")
sqrt = unary(_rounded_sqrt, "sqrt")
square = unary(torch.square, "square")
tan = unary(torch.tan, "tan")
tanh = unary(torch.tanh, "tanh")

add = binary(torch.add, "add")
atan2 = binary(torch.atan2, "atan2")
divide = truediv = binary(divide_tensors, "divide")
divide_no_nan = binary(
    lambda x, y: torch.where(y == 0, 0, divide_tensors(x, torch.where(y == 0, 1, y))),
    "divide_no_nan",
)
equal = binary(torch.eq, "equal")
floordiv = binary(torch.floor_divide, "floordiv")
greater = binary(torch.gt, "greater")
greater_equal = binary(torch.ge, "greater_equal")
less = binary(torch.lt, "less")
less_equal = binary(torch.le, "less_equal")
logical_and = binary(torch.logical_and, "logical_and")
logical_or = binary(torch.logical_or, "logical_or")
logical_xor = binary(torch.logical_xor, "logical_xor")


def _maximum(x: Tensor, y: Tensor) -> Tensor:
    # Unlike `torch.maximum`, this gives the whole gradient of equal elements to the first operand.
    return torch.where((x >= y) | x.isnan(), x, y)


def _minimum(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x <= y) | x.isnan(), x, y)


maximum = binary(_maximum, "maximum")
minimum = binary(_minimum, "minimum")
mod = floormod = binary(torch.remainder, "mod")
multiply = binary(torch.mul, "multiply")
not_equal = binary(torch.ne, "not_equal")
pow = binary(torch.pow, "pow")
squared_difference = binary(lambda x, y: torch.square(x - y), "squared_difference")
subtract = binary(torch.sub, "subtract")


def add_n(inputs: Sequence[object], name: str | None = None) -> Tensor:
    """Return the sum of tensors of one shape.

    Raise InvalidArgumentError if there are no tensors, or their shapes differ.
    """
    operands = [tensor(item) for item in inputs]
    if not operands:
        raise InvalidArgumentError("inputs of add_n must be a list of at least one tensor.")

    def total(*tensors: Tensor) -> Tensor:
        shapes = {tuple(operand.shape) for operand in tensors}
        if len(shapes) > 1:
            raise InvalidArgumentError(f"add_n adds tensors of one shape, not of {sorted(shapes)}.")
        return functools.reduce(operator.add, tensors)

    return call(total, *operands, name=name or "add_n")


def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """Return a tensor, or slices, clipped to a minimum and a maximum.

    If the minimum is larger than the maximum, all elements are the minimum. Raise
    InvalidArgumentError if a bound does not broadcast to the tensor's shape.
    """
    if isinstance(t, IndexedSlices | _graph.SymbolicSlices):
        values = clip_by_value(t.values, clip_value_min, clip_value_max, name)
        return type(t)(values, t.indices, t.dense_shape)
    t, low = pair(t, clip_value_min)
    high = pair(t, clip_value_max)[1]
    return call(_clip_values, t, low, high, name=name or "clip_by_value")


def _clip_values(t: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return as_shaped(t, torch.clamp(t, low, torch.maximum(low, high)))


def as_shaped(operand: torch.Tensor, clipped: torch.Tensor) -> torch.Tensor:
    """Return `clipped` unchanged.

    Raise InvalidArgumentError if `clipped` does not have the shape of `operand`.
    """
    if clipped.shape != operand.shape:
        raise InvalidArgumentError(
            f"Cannot clip a tensor of shape {tuple(operand.shape)}: with this bound it would have"
            f" shape {tuple(clipped.shape)}."
        )
    return clipped


def cast(x: object, dtype: object, name: str | None = None) -> Tensor:
    """Return the elements in another dtype."""
    return call(torch.Tensor.to, tensor(x), as_dtype(dtype), name=name or "Cast")


def where(condition: object, x: object = None, y: object = None, name: str | None = None) -> Tensor:
    """Return elements of `x` where `condition` is true, else of `y`.

    Without `x` and `y` return the indices of true elements, of shape (count, dimensions).

    Raises:
        InvalidTypeError: `x` and `y` are tensors of different dtypes.
        InvalidArgumentError: One of `x` and `y` is missing. In graph mode, also if `condition` is a
            vector, and `x` or `y` a matrix: TensorFlow 1 selects rows, TensorFlow 2 columns.
    """
    condition = tensor(condition)
    if (x is None) != (y is None):
        raise InvalidArgumentError("where takes both x and y, or neither.")
    if x is None:
        return call(torch.argwhere, condition, name=name or "Where")
    x, y = pair(x, y)
    check_same_dtype("where", (x, y))
    ranks = [
        None if operand.shape is UNKNOWN else len(operand.shape) for operand in (condition, x, y)
    ]
    if ranks[0] == 1 and not _graph.executing_eagerly() and max(rank or 0 for rank in ranks) > 1:
        raise InvalidArgumentError(
            "where has a vector of conditions for a matrix: TensorFlow 1 chooses rows by it, and"
            " TensorFlow 2 columns. Give it a second dimension, or call thalweg.tf.compat.v1.where,"
            " which chooses rows."
        )
    return call(torch.where, condition, x, y, name=name or "Where")


def stop_gradient(input: object, name: str | None = None) -> Tensor:
    """Return a tensor with the same values, through which no gradient flows."""
    return call(torch.Tensor.detach, tensor(input), name=name or "StopGradient")


def _cumulative_function(
    function: Callable[..., Any], first: int, label: str, doc_start: str
) -> Callable[..., Tensor]:
    def apply(
        x: object,
        axis: int = 0,
        exclusive: bool = False,
        reverse: bool = False,
        name: str | None = None,
    ) -> Tensor:
        def run(operand: Tensor) -> Tensor:
            operand = operand.flip(axis) if reverse else operand
            if exclusive:
                # To subtract the element from an inclusive sum would add rounding errors.
                size = operand.shape[axis]
                start = torch.full_like(operand.narrow(axis, 0, min(size, 1)), first)
                operand = torch.cat([start, operand.narrow(axis, 0, max(size - 1, 0))], axis)
            totals = function(operand, axis, dtype=operand.dtype)
            return totals.flip(axis) if reverse else totals

        return call(run, tensor(x), name=name or label)

    doc = f"Running {doc_start} along an axis; exclusive ones leave their own element out."
    return name_function(apply, label, doc)


cumsum = _cumulative_function(torch.cumsum, 0, "cumsum", "sums")
cumprod = _cumulative_function(torch.cumprod, 1, "cumprod", "products")
