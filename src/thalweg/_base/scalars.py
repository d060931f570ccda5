"""Host-side arithmetic on NumPy scalars, with TensorFlow's conversions.

Schedules and optimizers compute a few scalars per step. `+ - * /`, `floor` and comparisons of
NumPy scalars round as TensorFlow's kernels do. NumPy's transcendental functions differ from
TensorFlow's by a unit in the last place, and between processors. TensorFlow's scalar kernels call
the C library's functions, and so does this module. Without a C library, float32 functions are
evaluated in float64 and rounded once.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any, cast

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
    """Return the type in which TensorFlow computes with `value`.

    It is numpy.float64 for a NumPy scalar, array or tensor of float64. It is numpy.float32 for
    everything else, also for Python floats.
    """
    if type(value) is float:
        return np.float32
    if isinstance(value, torch.Tensor):
        return np.float64 if value.dtype == torch.float64 else np.float32
    return np.float64 if getattr(value, "dtype", None) == np.float64 else np.float32


def as_scalar(value: Number, dtype: ScalarType) -> Any:
    """Convert like `tf.cast(value, dtype)`: a Python float is rounded to float32 first.

    Integers, NumPy scalars and tensors with one element are converted directly.

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
    """Convert a number to `dtype` with one rounding, as TensorFlow converts an operand.

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
    """Return True for a Python float, and for float32 or float64 of any library."""
    if hasattr(value, "dtype"):
        return str(value.dtype).removeprefix("torch.") in ("float32", "float64")
    return isinstance(value, float)


def _load_function(name: str, arguments: int) -> Callable[..., float] | None:
    """Return the C library's float32 function, which TensorFlow's scalar kernels call, or None."""
    try:
        kind = ctypes.CFUNCTYPE(ctypes.c_float, *[ctypes.c_float] * arguments)
        return kind((name, ctypes.CDLL(None)))
    # On Windows `CDLL(None)` raises TypeError.
    except (AttributeError, OSError, TypeError):
        return None


POWF, _EXPF, _LOGF, _COSF = (
    _load_function(name, arguments)
    for name, arguments in (("powf", 2), ("expf", 1), ("logf", 1), ("cosf", 1))
)


def power(x: Scalar, y: Scalar) -> Any:
    """Return `x` to the power of `y`; a denormal result becomes 0, as in TensorFlow.

    Example:
        >>> power(np.float32(0.9), np.float32(2))
        np.float32(0.80999994)
        >>> power(np.float32(0), np.float32(-1))
        np.float32(inf)
    """
    dtype = type(x)
    if dtype is np.float32 and POWF is not None:
        # POWF returns a float32, so no rounding and no overflow warning follow.
        number = POWF(x, y)
        return dtype(0) if abs(number) < _TINY_FLOAT32 else dtype(number)
    try:
        number = math.pow(x, y)
    except (OverflowError, ValueError):
        number = _as_c_does(np.power, x, y)
    return dtype(0) if abs(number) < _TINY[dtype] else _round(number, dtype)


def product(x: Scalar, y: Scalar) -> Any:
    """Return `x` times `y`, both of one type; a denormal result becomes 0.

    Example:
        >>> product(np.float32(1e-30), np.float32(1e-9))
        np.float32(0.0)
    """
    number = x * y
    return type(x)(0) if abs(number) < _TINY.get(type(x), 0.0) else number


def _evaluate(
    c_function: Callable[..., float] | None, function: Any, ufunc: Any, x: Scalar
) -> object:
    """Return a function's value at `x`, in the type of `x`.

    Args:
        c_function: The C library's float32 function, or None.
        function: The function of `math`, used for float64, and for float32 if `c_function` is None.
        ufunc: NumPy's function, used where `function` raises OverflowError or ValueError.
    """
    if type(x) is np.float32 and c_function is not None:
        return np.float32(c_function(x))
    try:
        number = function(x)
    except (OverflowError, ValueError):
        number = _as_c_does(ufunc, x)
    return _round(number, type(x))


def exp(x: Scalar) -> Any:
    """Return the exponential; inf on overflow."""
    return _evaluate(_EXPF, math.exp, np.exp, x)


def log(x: Scalar) -> Any:
    """Return the natural logarithm; -inf at 0 and NaN below."""
    return _evaluate(_LOGF, math.log, np.log, x)


def cos(x: Scalar) -> Any:
    """Return the cosine; NaN at the infinities."""
    return _evaluate(_COSF, math.cos, np.cos, x)


# TensorFlow's sessions optimize their graphs: they multiply by the reciprocal of a constant instead
# of dividing by the constant, and replace powers by simpler functions where they can. The last
# bits may differ from those of the formula as written; these are the bits that trainings saw.


def reciprocal(constant: Any) -> Any:
    """Return 1 / constant, in the dtype of the constant, a NumPy scalar or a tensor."""
    return 1 / constant


def raised(base: Any, exponent: float) -> Any:
    """Return `base` to a constant power, rounded as an optimized TensorFlow graph rounds it.

    The exponents 2, 3, 0.5, -0.5 and -1 become products, roots and reciprocals. The result has the
    dtype of `base`: float16, float32 or float64.
    """
    dtype = cast(Any, type(base))
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
    """Return NumPy's infinity or NaN for arguments for which `math` raises."""
    with np.errstate(all="ignore"):
        return float(ufunc(*map(np.float64, arguments)))


def _round(number: float, dtype: ScalarType) -> object:
    with np.errstate(over="ignore"):
        return dtype(number)
