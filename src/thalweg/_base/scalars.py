"""Host-side arithmetic on NumPy scalars, with TensorFlow's conversions.

A schedule, or the step's share of an optimizer, works on a handful of scalars. `+ - * /`, `floor`
and comparisons of NumPy scalars round as TensorFlow's kernels do. NumPy's transcendental functions
differ from TensorFlow's by a unit in the last place, and between processors. TensorFlow's scalar
kernels call the C library's, of float32 and float64 each, and so do these; where the C library
cannot be found they evaluate float32 in float64 and round once.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from thalweg._base.device_counters import number_of
from thalweg._base.showing import show_value

Scalar = np.float32 | np.float64
ScalarType = type[np.float32] | type[np.float64]
Number = float | int | np.number[Any] | np.ndarray[Any, Any] | torch.Tensor

_TINY = {dtype: float(np.finfo(dtype).tiny) for dtype in (np.float32, np.float64)}
_TINY_FLOAT32 = _TINY[np.float32]


def scalar_type(value: object) -> ScalarType:
    """Return the type that TensorFlow computes in when it is handed `value`.

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
    if isinstance(value, torch.Tensor):
        return dtype(number_of(value))
    if hasattr(value, "item"):
        return dtype(value.item())
    raise TypeError(f"Expected a number, received {show_value(value)} ({type(value).__name__}).")


def is_floating(value: Any) -> bool:
    """Return True if `value` is a Python float, or of the dtype float32 or float64 of any
    library.
    """
    if hasattr(value, "dtype"):
        return str(value.dtype).removeprefix("torch.") in ("float32", "float64")
    return isinstance(value, float)


def _c_function(name: str, arguments: int) -> Callable[..., float] | None:
    """The C library's float32 function, which TensorFlow's scalar kernels call."""
    try:
        kind = ctypes.CFUNCTYPE(ctypes.c_float, *[ctypes.c_float] * arguments)
        return kind((name, ctypes.CDLL(None)))
    except (AttributeError, OSError, TypeError):
        return None


POWF, _EXPF, _LOGF, _COSF = (
    _c_function(name, arguments)
    for name, arguments in (("powf", 2), ("expf", 1), ("logf", 1), ("cosf", 1))
)


def power(x: Scalar, y: Scalar) -> Any:
    """`x` to the power of `y`. A result below the normal numbers is 0, as TensorFlow's.

    Example:
        >>> power(np.float32(0.9), np.float32(2))
        np.float32(0.80999994)
        >>> power(np.float32(0), np.float32(-1))
        np.float32(inf)
    """
    dtype = type(x)
    if dtype is np.float32 and POWF is not None:
        result = POWF(x, y)  # a float32: nothing is left to round, and nothing to warn of
        return dtype(0) if abs(result) < _TINY_FLOAT32 else dtype(result)
    try:
        result = math.pow(x, y)
    except (OverflowError, ValueError):
        result = _as_c_does(np.power, x, y)
    return dtype(0) if abs(result) < _TINY[dtype] else _rounded(result, dtype)


def product(x: Scalar, y: Scalar) -> Any:
    """`x` times `y`, both of one type. A result below the normal numbers is 0, as TensorFlow's.

    Example:
        >>> product(np.float32(1e-30), np.float32(1e-9))
        np.float32(0.0)
    """
    result = x * y
    return type(x)(0) if abs(result) < _TINY.get(type(x), 0.0) else result


def exp(x: Scalar) -> Any:
    """Exponential; inf where it overflows."""
    if type(x) is np.float32 and _EXPF is not None:
        return np.float32(_EXPF(x))
    try:
        result = math.exp(x)
    except OverflowError:
        result = math.inf
    return _rounded(result, type(x))


def log(x: Scalar) -> Any:
    """Natural logarithm; -inf at 0 and NaN below."""
    if type(x) is np.float32 and _LOGF is not None:
        return np.float32(_LOGF(x))
    try:
        result = math.log(x)
    except ValueError:
        result = _as_c_does(np.log, x)
    return _rounded(result, type(x))


def cos(x: Scalar) -> Any:
    """Cosine; NaN at the infinities."""
    if type(x) is np.float32 and _COSF is not None:
        return np.float32(_COSF(x))
    try:
        result = math.cos(x)
    except ValueError:
        result = math.nan
    return _rounded(result, type(x))


# TensorFlow's sessions optimize their graphs: they multiply by the reciprocal of a constant instead
# of dividing by the constant, and replace powers by simpler functions where they can. The last
# bits may differ from those of the formula as written; these are the bits that trainings saw.


def reciprocal(constant: Any) -> Any:
    """1 / constant, in the dtype of the constant, a NumPy scalar or a tensor."""
    return 1 / constant


def raised(base: Any, exponent: float) -> Any:
    """Return `base` to the power of a constant, in its dtype: float16, float32 or float64."""
    dtype = type(base)
    if exponent == 2:
        return base * base
    if exponent == 3:
        return base * (base * base)
    if exponent == 0.5:
        return np.sqrt(base)
    if exponent == -0.5:
        return reciprocal(np.sqrt(base))
    if exponent == -1:
        return reciprocal(base)
    if dtype is np.float16:
        return dtype(power(np.float32(base), np.float32(exponent)))
    return power(base, dtype(exponent))


def _as_c_does(ufunc: Callable[..., Any], *arguments: Scalar) -> float:
    """Ask NumPy where `math` raises: the answer is an infinity or NaN, so nothing is rounded."""
    with np.errstate(all="ignore"):
        return float(ufunc(*map(np.float64, arguments)))


def _rounded(result: float, dtype: ScalarType) -> object:
    with np.errstate(over="ignore"):
        return dtype(result)
