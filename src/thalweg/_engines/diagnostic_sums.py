"""Sums of products per leaf (65,536 elements) for diagnostics, bitwise equal on every engine.

The sums are float64 sums of short float32 sums, cheap enough for the kernel of an update. A leaf is
cut into blocks of `ROWS` rows of `COLUMNS` elements; the last block is padded with +0. Each block
of an operand is scaled by a power of two, so that the largest magnitude is near 1: no square
overflows, and squares that underflow are negligible. The products of a column are rounded to
float32 and added row by row. The sums of columns, unscaled in float64, are added to one lane per
column, block by block; finally the upper half of the lanes is added to the lower half.

Float64 operands are not scaled, and all sums are float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.device_numbers import widened
from thalweg._engines.reduction_order import LEAF

# The lanes of a block fit into the L1 cache together with the streams.
ROWS, COLUMNS = 16, 32
BLOCK = ROWS * COLUMNS
# Range of biased float32 exponents of a block's largest magnitude. Others are clamped to it, so
# that neither the scale nor its inverse is denormal.
POWERS = 27, 227

# A NumPy array on the CPU, a tensor elsewhere.
Array = Any
Pairs = Mapping[str, tuple[str, str]]


def sums_of_products(values: Mapping[str, Array], pairs: Pairs) -> dict[str, Array]:
    """Return the sum of each product over each leaf.

    Args:
        values: {name: array or tensor (n,)}, all of one dtype, float32 or float64.
        pairs: {name of a product: names of its two operands}.

    Returns:
        {name of a product: float64 array or tensor (leaves,)}.
    """
    scaled_arrays = {name: _in_scale(_in_blocks(array)) for name, array in values.items()}
    is_torch = any(isinstance(array, Tensor) for array in values.values())
    library: Any = torch if is_torch else np
    columns: list[Array] = []
    for a, b in pairs.values():
        (blocks, inverse), (other_blocks, other_inverse) = scaled_arrays[a], scaled_arrays[b]
        products = blocks * other_blocks
        column = products[:, :, 0]
        for row in range(1, ROWS):
            column = column + products[:, :, row]
        columns.append(_widen(column) * (inverse * other_inverse))
    stacked = library.stack(columns)
    lanes = library.zeros_like(stacked[:, :, 0])
    for block in range(stacked.shape[2]):
        lanes = lanes + stacked[:, :, block]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return dict(zip(pairs, lanes[..., 0], strict=True))


def _in_blocks(values: Array) -> Array:
    """Return a vector as an array (leaves, blocks, ROWS, COLUMNS), padded with +0."""
    count = -(-len(values) // LEAF)
    # Blocks of zeros change no sum: a single leaf has none.
    blocks = LEAF // BLOCK if count > 1 else -(-len(values) // BLOCK)
    missing = count * blocks * BLOCK - len(values)
    if isinstance(values, Tensor):
        padded: Array = torch.nn.functional.pad(values, (0, missing))
    else:
        padded = np.pad(values, (0, missing))
    return padded.reshape(count, blocks, ROWS, COLUMNS)


def _in_scale(values: Array) -> tuple[Array, Array]:
    """Return blocks scaled so that their largest magnitude is near 1, and the inverse scales.

    Args:
        values: (leaves, blocks, rows, columns). Only float32 is scaled.

    Returns:
        The scaled blocks, and each block's factor that undoes the scale: (leaves, blocks, 1)
        float64.
    """
    library: Any = torch if isinstance(values, Tensor) else np
    if values.dtype != library.float32:
        return values, library.ones_like(values[:, :, 0, :1])
    # Without the sign, bits order like magnitudes, with NaN last.
    bits = values.view(library.int32) & 0x7FFFFFFF
    powers = (library.amax(bits, (2, 3)) >> 23).clip(*POWERS)[:, :, None]
    scale, undo = (x.view(library.float32) for x in ((254 - powers) << 23, powers << 23))
    return values * scale[..., None], _widen(undo)


def _widen(values: Array) -> Array:
    return widened(values) if isinstance(values, Tensor) else values.astype(np.float64)
