"""Norms and factors computed from them, for all front ends.

Sums of squares are float64. The functions take NumPy arrays, or tensors of one device, and compute
there; nothing is copied to the host.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from thalweg._core.vectors import Device, functions_of, place_of
from thalweg._engines import cuda, current
from thalweg._engines.cuda.availability import takes_device
from thalweg._engines.reduction_order import Tree, combine_few

_FEW = 256  # numbers that Python adds faster than NumPy
HIGHEST = float(np.finfo(np.float32).max)  # sum of squares that float32 holds


def norms_of(squares: Any, overflow: Any) -> Any:
    """The norm of each tensor.

    Args:
        squares: Sums of squares, float64 of shape (n,).
        overflow: Whether a sum that float32 cannot hold is infinite, as where TensorFlow adds
            squares in float32; for all, or for each. Without it norms up to 3.4e38 are finite.
    """
    of = functions_of(squares)
    if overflow is not False:
        squares = of.where((squares > HIGHEST) & overflow, np.inf, squares)
    return of.sqrt(squares)


def global_norm(squares: object, overflow: bool) -> Any:
    """The common norm of tensors with these sums of squares, of shape (); see `norms_of`."""
    return norms_of(sum_in_order(squares), overflow)


def sum_in_order(squares: Any) -> Any:
    """The sum of some numbers, in the order in which the leaves of a tensor are added."""
    there = place_of(squares)
    if there is None and len(squares) <= _FEW:
        return np.float64(combine_few(squares.tolist()))
    is_launched = there is not None and takes_device(there, current().name)
    return _tree_of(len(squares), there, is_launched).combine(squares)[0]


@cache
def _tree_of(count: int, there: Device, is_launched: bool) -> Tree | cuda.LaunchedTree:
    counts = np.array([count])
    return cuda.LaunchedTree(counts, there) if there and is_launched else Tree(counts, there)


def clip_factor(norm: Any, limit: Any, nan_if_not_finite: bool) -> Any:
    """What gradients are multiplied by so that their common norm is at most a limit.

        limit min(1 / norm, 1 / limit)

    A norm of 0 gives 1, and so does a negative limit. An infinite norm gives 0, which makes NaN of
    infinities and 0 of all else; NaN gives NaN.

    Args:
        norm: The norm, of the dtype of the result.
        limit: The limit, likewise.
        nan_if_not_finite: Return NaN for a norm that is not finite, as tf.clip_by_global_norm does.
    """
    of = functions_of(norm)
    with np.errstate(all="ignore"):
        factor = limit * of.minimum(1 / norm, 1 / limit)
        return of.where(of.isfinite(norm), factor, np.nan) if nan_if_not_finite else factor
