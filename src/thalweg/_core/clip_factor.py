"""What clips gradients by their common norm, wherever it and its limit lie among the numbers.

A norm may be beyond its dtype, and that of float64 gradients has squares which are; a factor may be
below the normal numbers. Both are then kept as two numbers. Between those ends a factor has the
bits of torch's or TensorFlow's formula in the gradients' dtype; beyond it is the exact quotient,
rounded. Where a device has the norm, nobody waits for it.
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

FURTHER = (large_gradient_squares, small_gradient_squares)
_LEAST = 2.0**-126  # of the normal numbers of float32
_TINY = {np.float32: _LEAST, np.float64: 2.0**-1022}
LOWEST, HIGHEST = 2.0**-960, float(np.finfo(np.float64).max)  # squares whose sum has lost nothing

_FAR = 1000  # factors of float64 below 2**-_FAR have this unit


class Norm(NamedTuple):
    """root * 2**exponent, of shape (), float64."""

    root: Any
    exponent: Any = 0

    @property
    def value(self) -> Any:
        """In one number: 0 or infinite where it lies beyond float64."""
        if not isinstance(self.exponent, Tensor) and not self.exponent:
            return self.root
        with np.errstate(all="ignore"):
            return self.root * 2.0**self.exponent


class Factor(NamedTuple):
    """scale * unit, of shape (): neither is below the normal numbers, whatever their product is."""

    scale: Any
    unit: Any = 1.0

    @property
    def value(self) -> Any:
        """In one number."""
        return self.scale if isinstance(self.unit, float) else self.scale * self.unit


def exact_norm(squares_of: Callable[[Formula], object], is_narrow: bool) -> Norm:
    """The common norm of gradients.

    Args:
        squares_of: Gives for a measure its sum over each gradient, float64 of shape (n,). Asked for
            `FURTHER` where those of float64 gradients may have left float64.
        is_narrow: Whether all gradients are computed in float32, so that their squares cannot.
    """
    squares = norms.sum_in_order(squares_of(gradient_squares))
    of = vectors.functions_of(squares)
    if is_narrow:
        return Norm(of.sqrt(squares))
    if not isinstance(squares, Tensor):
        if LOWEST <= squares <= HIGHEST:
            return Norm(of.sqrt(squares))
        if squares < LOWEST:
            return Norm(of.sqrt(norms.sum_in_order(squares_of(small_gradient_squares))), -SHIFT)
        return Norm(of.sqrt(norms.sum_in_order(squares_of(large_gradient_squares))), SHIFT)
    large, small = (norms.sum_in_order(squares_of(each)) for each in FURTHER)
    is_small, is_large = squares < LOWEST, squares > HIGHEST
    found = of.where(is_small, small, of.where(is_large, large, squares))
    return Norm(of.sqrt(found), (is_large.double() - is_small.double()) * SHIFT)


def factor_of(
    norm: Norm, limit: float, dtype: Dtype, epsilon: float | None, whole_is_nan: bool
) -> Factor:
    """What gradients are multiplied by so that their common norm is at most a limit.

    Args:
        norm: The norm.
        limit: The limit; a negative one gives 1.
        dtype: What the formula is computed in.
        epsilon: Added to the norm, as by torch; the factor is TensorFlow's if None.
        whole_is_nan: Whether a norm that is not finite gives NaN; see `norms.clip_factor`.
    """
    root = norm.root
    is_there = isinstance(root, Tensor)
    furthest = furthest_of(limit, dtype)
    if limit == math.inf and epsilon is None:
        furthest = math.inf  # TensorFlow's formula makes NaN of all gradients
    if limit < 0:
        limit = math.inf
    is_near = not is_there and not norm.exponent and furthest > 0 and root <= furthest
    if is_near and epsilon is not None:  # nothing to warn of
        return Factor(_torchs_factor(dtype(limit), dtype(root), epsilon))
    plain: object = None
    with np.errstate(all="ignore"):
        if furthest > 0:
            rounded = vectors.round_to(root, dtype, vectors.place_of(root))
            bound = vectors.number(dtype(limit), vectors.place_of(root))
            if epsilon is None:
                plain = norms.clip_factor(rounded, bound, whole_is_nan)
            else:
                plain = _torchs_factor(bound, rounded, epsilon)
            if not is_there and not norm.exponent and not root > furthest:
                return Factor(plain)
        found = _clip_factor(norm, limit, epsilon or 0.0, dtype is np.float32)
        of = vectors.functions_of(root)
        if whole_is_nan:
            scale = of.where(of.isfinite(root), found.scale, np.nan)
            found = found._replace(scale=scale)
        if plain is None or not is_there:
            return found
        is_far = root > furthest
        if dtype is np.float32:
            return Factor(of.where(is_far, found.scale, plain))
        is_far = is_far | (norm.exponent != 0)
        unit = of.where(is_far, found.unit, of.ones_like(found.unit))
        return Factor(of.where(is_far, found.scale, plain), unit)


def furthest_of(limit: float, dtype: Dtype) -> float:
    """The norm as far as which the formula of a factor neither overflows nor rounds to numbers
    without all their bits; -1 if there is none."""
    tiny = _TINY[dtype]
    return min(limit, 1.0) / tiny if 2 * tiny <= limit <= 1 / tiny else -1.0


def _torchs_factor(limit: Any, norm: Any, epsilon: float) -> object:
    return _at_most_one(limit / (norm + epsilon))


def _at_most_one(values: Any) -> object:
    return values.clip(None, 1) if isinstance(values, Tensor) else np.minimum(values, 1)


def _clip_factor(norm: Norm, limit: float, epsilon: float, is_narrow: bool) -> Factor:
    """min(1, limit / (norm + epsilon)); 1 or 0 for a norm of 0."""
    of, there = vectors.functions_of(norm.root), vectors.place_of(norm.root)
    # No root but 0 is so small.
    divisor = of.clip(norm.root + epsilon * 2.0**-norm.exponent, _TINY[np.float64], None)
    if is_narrow:
        return Factor(_at_most_one(vectors.number(np.float64(limit), there) / divisor))
    upper, up = math.frexp(limit)
    lower, down = of.frexp(divisor)
    exponent = up - norm.exponent - down
    exponent = exponent.double() if isinstance(exponent, Tensor) else np.float64(exponent)
    # Torch divides no number of Python's, but multiplies by the reciprocal.
    ratio = vectors.number(np.float64(upper), there) / of.where(
        of.isfinite(divisor), lower, divisor
    )
    is_far = exponent < -_FAR
    shift = of.clip(of.where(is_far, exponent + _FAR, exponent), None, 1)
    unit = of.where(is_far, 2.0**-_FAR, of.ones_like(ratio))
    return Factor(_at_most_one(ratio * 2.0**shift), unit)


def parts_of(factor: Factor, narrow: Array) -> tuple[Any, Any]:
    """Scale and unit as they are for each variable's dtype, of shape () or (n,).

    Args:
        factor: A factor.
        narrow: Of which variables gradients are computed in float32, bool of shape (n,).
    """
    if not isinstance(factor.scale, Tensor) and factor.unit == 1 and factor.scale >= _LEAST:
        return factor
    if not narrow.any():
        return factor
    with np.errstate(all="ignore"):
        value = factor.value
        is_far = value < _LEAST
        of = vectors.functions_of(value)
        unit = of.where(is_far, _LEAST, of.ones_like(value))
        scale = value / unit
    if narrow.all():
        return scale, unit
    own = vectors.place_like(narrow, value)
    return of.where(own, scale, factor.scale), of.where(own, unit, factor.unit)
