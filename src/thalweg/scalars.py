"""Host-side arithmetic on NumPy scalars, with TensorFlow's conversions.

A schedule, or the step's share of an optimizer, works on a handful of scalars. `+ - * /`, `floor`
and comparisons of NumPy scalars round as TensorFlow's kernels do. The transcendental functions of
TensorFlow, NumPy and C differ by a unit in the last place, and NumPy's even between processors.
Here they are evaluated in float64 by the C library and rounded once, so that a step gives the same
bits everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Scalar = np.float32 | np.float64
ScalarType = type[np.float32] | type[np.float64]
Number = float | int | np.number[Any] | np.ndarray[Any, Any] | torch.Tensor

_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FLOAT32_TINY = float(np.finfo(np.float32).tiny)


def scalar_type(value: Any) -> ScalarType:
    """The type that TensorFlow computes in when it is handed `value`.

    float64 for a NumPy scalar, array or tensor of float64; float32 for all else, Python floats
    included.
    """
    if type(value) is float:
        return np.float32
    if isinstance(value, torch.Tensor):
        return np.float64 if value.dtype == torch.float64 else np.float32
    return np.float64 if getattr(value, "dtype", None) == np.float64 else np.float32


def as_scalar(value: Number, dtype: ScalarType) -> Any:
    """Convert as `tf.cast(value, dtype)` does: a Python float becomes float32 on the way.

    Values that carry a type (NumPy scalars, tensors with one element) and integers are converted
    directly.

    Example:
        >>> as_scalar(0.1, np.float64)
        np.float64(0.10000000149011612)
        >>> as_scalar(np.float64(0.1), np.float64)
        np.float64(0.1)
    """
    if type(value) is float:
        value = np.float32(value)
        return value if dtype is np.float32 else dtype(value)
    return as_operand(value, dtype)


def as_operand(value: Number, dtype: ScalarType) -> Any:
    """Convert as TensorFlow converts the other operand of `tensor * value`: in a single rounding.

    Example:
        >>> as_operand(0.1, np.float64)
        np.float64(0.1)
    """
    kind = type(value)
    if kind is dtype:
        return value
    if kind is float or kind is int or isinstance(value, (int, float, np.number)):
        return dtype(value)  # pyright: ignore[reportArgumentType]
    if hasattr(value, "item"):
        return dtype(value.item())
    raise TypeError(f"Expected a number, received {value!r} ({type(value).__name__}).")


def power(x: Scalar, y: Scalar) -> Any:
    """`x` to the power of `y`. A float32 result below the normal numbers is 0, as TensorFlow's.

    Example:
        >>> power(np.float32(0.9), np.float32(2))
        np.float32(0.80999994)
        >>> power(np.float32(0), np.float32(-1))
        np.float32(inf)
    """
    dtype = type(x)
    try:
        result = math.pow(x, y)
    except (OverflowError, ValueError):
        result = _as_c_does(np.power, x, y)
    if dtype is np.float32 and abs(result) < _FLOAT32_TINY:
        return np.float32(0)
    return dtype(result) if abs(result) <= _FLOAT32_MAX else _rounded(result, dtype)


def exp(x: Scalar) -> Any:
    """Exponential; inf where it overflows."""
    try:
        return _rounded(math.exp(x), type(x))
    except OverflowError:
        return type(x)(math.inf)


def log(x: Scalar) -> Any:
    """Natural logarithm; -inf at 0 and NaN below."""
    try:
        return type(x)(math.log(x))
    except ValueError:
        return type(x)(_as_c_does(np.log, x))


def cos(x: Scalar) -> Any:
    """Cosine; NaN at the infinities."""
    try:
        return type(x)(math.cos(x))
    except ValueError:
        return type(x)(math.nan)


def _as_c_does(ufunc: Callable[..., Any], *arguments: Scalar) -> float:
    """Ask NumPy where `math` raises: the answer is an infinity or NaN, so nothing is rounded."""
    with np.errstate(all="ignore"):
        return float(ufunc(*map(np.float64, arguments)))


def _rounded(result: float, dtype: ScalarType) -> Any:
    with np.errstate(over="ignore"):
        return dtype(result)
