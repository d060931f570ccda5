"""Norms and factors computed from them, for all front ends.

Sums of squares are float64. The ops take NumPy arrays, or tensors of one device, and compute
there; nothing is copied to the host.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg._base.locks import importing
from thalweg._core.vectors import Device, functions_of, place_of
from thalweg._engines import current
from thalweg._engines.cuda.availability import takes_device
from thalweg._engines.reduction_order import Tree, combine_few

if TYPE_CHECKING:
    from thalweg._engines.cuda.tree_reduction import LaunchedTree

# Python adds up to so many numbers faster than NumPy.
_MAX_PYTHON_COUNT = 256
# The largest sum of squares that float32 holds.
HIGHEST = float(np.finfo(np.float32).max)


def norms_of(squares: Any, overflow: Any) -> Any:
    """Return the square roots of sums of squares.

    Args:
        squares: The sum of squares of each tensor, float64 of shape (n,).
        overflow: A bool, or a mask of shape (n,). True if a sum beyond float32 gives infinity, as
            in TensorFlow. If it is False, finite sums have finite roots.
    """
    ops = functions_of(squares)
    # `overflow` may be a mask, which has no truth value.
    if overflow is not False:
        squares = ops.where((squares > HIGHEST) & overflow, np.inf, squares)
    return ops.sqrt(squares)


def global_norm(squares: object, overflow: bool) -> Any:
    """Return the global norm of tensors from their sums of squares; see `norms_of`."""
    return norms_of(sum_in_order(squares), overflow)


def sum_in_order(squares: Any) -> Any:
    """Return the sum of a vector. The order of additions depends only on the vector's length.

    The result is a NumPy float64, or a tensor of shape () for a tensor on a device.
    """
    device = place_of(squares)
    if device is None and len(squares) <= _MAX_PYTHON_COUNT:
        return np.float64(combine_few(squares.tolist()))
    is_launched = device is not None and takes_device(device, current().name)
    return _make_tree(len(squares), device, is_launched).combine(squares)[0]


@cache
def _make_tree(count: int, device: Device, is_launched: bool) -> Tree | LaunchedTree:
    counts = np.array([count])
    if device is None or not is_launched:
        return Tree(counts, device)
    with importing:
        from thalweg._engines.cuda.tree_reduction import LaunchedTree
    return LaunchedTree(counts, device)


def clip_factor(norm: Any, limit: Any, nan_if_not_finite: bool) -> Any:
    """Return TensorFlow's clip factor `limit * min(1 / norm, 1 / limit)`.

    Divisions by 0 give infinity. The first case that applies gives the result:

        NaN             if an argument is NaN, the limit is infinite or -0, or both are 0;
        about 1         if the limit is negative, or the norm is at most the limit;
        0               if the limit is 0, or the norm is infinite;
        limit / norm    otherwise.

    Args:
        norm: The global norm of gradients, a NumPy scalar or a tensor of the result's dtype.
        limit: The limit, of equal type and dtype.
        nan_if_not_finite: True if an infinite norm gives NaN, as in tf.clip_by_global_norm.
    """
    ops = functions_of(norm)
    with np.errstate(all="ignore"):
        factor = limit * ops.minimum(1 / norm, 1 / limit)
        return ops.where(ops.isfinite(norm), factor, np.nan) if nan_if_not_finite else factor
