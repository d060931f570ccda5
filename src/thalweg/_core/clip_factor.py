"""Clip factor for a global norm of any magnitude.

A norm can exceed the range of its dtype, as can the squares of float64 gradients, and a factor can
be denormal. Both are then represented by two numbers. For usual norms a factor has the bits of
torch's or TensorFlow's formula in the dtype of the gradients; otherwise it is the exact quotient,
rounded. A norm on a device stays there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from thalweg._core import norms, vectors
from thalweg._engines.array_types import Array
from thalweg._engines.protocol import Dtype
from thalweg.formula import (
    SHIFT,
    Formula,
    gradient_squares,
    large_gradient_squares,
    small_gradient_squares,
)

SCALED_SQUARES = (large_gradient_squares, small_gradient_squares)
# The smallest normal number of float32.
_SMALLEST_NORMAL = 2.0**-126
_TINY = {np.float32: _SMALLEST_NORMAL, np.float64: 2.0**-1022}
# Sums of squares in this range have lost no precision.
LOWEST, HIGHEST = 2.0**-960, float(np.finfo(np.float64).max)

# Factors of float64 below 2**-_MAX_EXPONENT have this power of 2 as unit.
_MAX_EXPONENT = 1000


class Norm(NamedTuple):
    """Norm as root * 2**exponent: float64 numbers of shape ()."""

    root: Any
    exponent: Any = 0

    @property
    def value(self) -> Any:
        """Return the norm as one number: 0 or infinity outside the range of float64."""
        if not isinstance(self.exponent, Tensor) and not self.exponent:
            return self.root
        with np.errstate(all="ignore"):
            return self.root * 2.0**self.exponent


class Factor(NamedTuple):
    """Factor as scale * unit: two normal numbers of shape (), whose product may be denormal."""

    scale: Any
    unit: Any = 1.0

    @property
    def value(self) -> Any:
        """Return the factor as one number."""
        return self.scale if isinstance(self.unit, float) else self.scale * self.unit


def exact_norm(squares_of: Callable[[Formula], object], is_float32: bool) -> Norm:
    """Return the global norm of gradients as a `Norm`, which does not overflow.

    Args:
        squares_of: `squares_of(formula)` returns the sum of `formula` over each gradient, float64
            of shape (n,). The first call has `gradient_squares`. If these squares may overflow
            or vanish, further calls have formulas of scaled squares.
        is_float32: True if all gradients are computed in float32, so that squares fit into float64.
    """
    squares = norms.sum_in_order(squares_of(gradient_squares))
    functions = vectors.functions_of(squares)
    if is_float32:
        return Norm(functions.sqrt(squares))
    if not isinstance(squares, Tensor):
        if LOWEST <= squares <= HIGHEST:
            return Norm(functions.sqrt(squares))
        if squares < LOWEST:
            return Norm(
                functions.sqrt(norms.sum_in_order(squares_of(small_gradient_squares))), -SHIFT
            )
        return Norm(functions.sqrt(norms.sum_in_order(squares_of(large_gradient_squares))), SHIFT)
    # The host cannot branch on a device's sum without waiting, so all three sums are computed.
    large, small = (norms.sum_in_order(squares_of(formula)) for formula in SCALED_SQUARES)
    is_small, is_large = squares < LOWEST, squares > HIGHEST
    scaled_squares = functions.where(is_small, small, functions.where(is_large, large, squares))
    return Norm(functions.sqrt(scaled_squares), (is_large.double() - is_small.double()) * SHIFT)


def factor_of(
    norm: Norm, limit: float, dtype: Dtype, epsilon: float | None, nan_if_not_finite: bool
) -> Factor:
    """Return the factor that reduces a global norm to `limit`; about 1 for a smaller norm.

    No intermediate number overflows or is denormal.

    Args:
        norm: The norm. The factor is NaN if the norm is NaN, or if the norm is infinite and the
            limit is negative or infinite.
        limit: The limit. The factor is 1 for a negative limit. An infinite limit gives 1 in
            torch's formula, and NaN in TensorFlow's.
        dtype: The dtype of the formula.
        epsilon: The number that torch's formula adds to the norm; None for TensorFlow's formula.
        nan_if_not_finite: True if an infinite norm always gives NaN.
    """
    root = norm.root
    is_tensor = isinstance(root, Tensor)
    largest = largest_plain_norm(limit, dtype)
    if limit == math.inf and epsilon is None:
        # TensorFlow's formula must run here: its result, NaN for all gradients, is expected.
        largest = math.inf
    if limit < 0:
        limit = math.inf
    is_simple = not is_tensor and not norm.exponent and largest > 0 and root <= largest
    # These numbers cause no warnings of NumPy, which take long to switch off.
    if is_simple and epsilon is not None:
        return Factor(_compute_torch_factor(dtype(limit), dtype(root), epsilon))
    simple_factor: object = None
    with np.errstate(all="ignore"):
        if largest > 0:
            norm_value = vectors.round_to(root, dtype, vectors.place_of(root))
            bound = vectors.number(dtype(limit), vectors.place_of(root))
            if epsilon is None:
                simple_factor = norms.clip_factor(norm_value, bound, nan_if_not_finite)
            else:
                simple_factor = _compute_torch_factor(bound, norm_value, epsilon)
            if not is_tensor and not norm.exponent and not root > largest:
                return Factor(simple_factor)
        factor = _clip_factor(norm, limit, epsilon or 0.0, dtype is np.float32)
        functions = vectors.functions_of(root)
        if nan_if_not_finite:
            scale = functions.where(functions.isfinite(root), factor.scale, np.nan)
            factor = factor._replace(scale=scale)
        if simple_factor is None or not is_tensor:
            return factor
        is_extreme = root > largest
        if dtype is np.float32:
            return Factor(functions.where(is_extreme, factor.scale, simple_factor))
        is_extreme = is_extreme | (norm.exponent != 0)
        unit = functions.where(is_extreme, factor.unit, functions.ones_like(factor.unit))
        return Factor(functions.where(is_extreme, factor.scale, simple_factor), unit)


def largest_plain_norm(limit: float, dtype: Dtype) -> float:
    """Return the largest norm at which the clip factor's formula has no overflow or denormal.

    Return -1 if no norm is safe with this limit.
    """
    tiny = _TINY[dtype]
    return min(limit, 1.0) / tiny if 2 * tiny <= limit <= 1 / tiny else -1.0


def _compute_torch_factor(limit: Any, norm: Any, epsilon: float) -> object:
    return _clamp_to_one(limit / (norm + epsilon))


def _clamp_to_one(values: Any) -> object:
    return values.clip(None, 1) if isinstance(values, Tensor) else np.minimum(values, 1)


def _clip_factor(norm: Norm, limit: float, epsilon: float, is_float32: bool) -> Factor:
    """Return the factor min(1, limit / (norm + epsilon)), computed in float64.

    If norm and epsilon are 0, the factor is 0 for a limit of 0, and 1 for other limits. With
    `is_float32`, norm and limit must be of float32 magnitude, and the unit of the factor is 1.
    Without `is_float32`, the unit is 2**-1000 for factors below 2**-1000, else 1.
    """
    functions, device = vectors.functions_of(norm.root), vectors.place_of(norm.root)
    # Only a root of 0 is smaller than this bound.
    divisor = functions.clip(norm.root + epsilon * 2.0**-norm.exponent, _TINY[np.float64], None)
    if is_float32:
        return Factor(_clamp_to_one(vectors.number(np.float64(limit), device) / divisor))
    limit_fraction, limit_exponent = math.frexp(limit)
    divisor_fraction, divisor_exponent = functions.frexp(divisor)
    exponent = limit_exponent - norm.exponent - divisor_exponent
    exponent = exponent.double() if isinstance(exponent, Tensor) else np.float64(exponent)
    # Torch multiplies by the reciprocal of a Python number, so both operands are tensors.
    ratio = vectors.number(np.float64(limit_fraction), device) / functions.where(
        functions.isfinite(divisor), divisor_fraction, divisor
    )
    is_extreme = exponent < -_MAX_EXPONENT
    shift = functions.clip(functions.where(is_extreme, exponent + _MAX_EXPONENT, exponent), None, 1)
    unit = functions.where(is_extreme, 2.0**-_MAX_EXPONENT, functions.ones_like(ratio))
    return Factor(_clamp_to_one(ratio * 2.0**shift), unit)


def parts_of(factor: Factor, float32_mask: Array) -> tuple[Any, Any]:
    """Return (scale, unit) of a factor, both normal numbers in the variables' compute dtypes.

    For variables computed in float32, a factor below 2**-126 is divided by the unit 2**-126.

    Args:
        float32_mask: True for each variable computed in float32; shape (n,).

    Returns:
        Scalars if all variables have an equal scale and unit, else vectors of shape (n,).
    """
    is_on_host = not isinstance(factor.scale, Tensor)
    is_normal = is_on_host and factor.unit == 1 and factor.scale >= _SMALLEST_NORMAL
    if is_normal or not float32_mask.any():
        return factor
    with np.errstate(all="ignore"):
        value = factor.value
        is_extreme = value < _SMALLEST_NORMAL
        functions = vectors.functions_of(value)
        unit = functions.where(is_extreme, _SMALLEST_NORMAL, functions.ones_like(value))
        scale = value / unit
    if float32_mask.all():
        return scale, unit
    is_float32 = vectors.place_like(float32_mask, value)
    return functions.where(is_float32, scale, factor.scale), functions.where(
        is_float32, unit, factor.unit
    )
