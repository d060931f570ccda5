"""The sums of products that diagnostics have of a leaf, to the last bit, on every engine.

They are float64 sums of short sums in float32, so that the kernel of an update can afford them. A
leaf is cut into blocks of `ROWS` rows of `COLUMNS` elements; where its last block ends early, +0
follows. In a block each kind of numbers is multiplied by a power of two that brings the largest
magnitude near one: no square overflows, and what underflows is nothing beside the largest. The
products of a column are rounded to float32 and added up there, row after row. Then the sums of the
columns, back in their own scale in float64, are added to one lane for each column, block after
block, and at last the upper half of the lanes to the lower half until one is left.

Of numbers in float64 nothing is scaled, and all is float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.reduction_order import LEAF

ROWS, COLUMNS = 16, 32  # what is kept of a block fits in the nearest cache beside the streams
BLOCK = ROWS * COLUMNS
# Which exponents of a largest magnitude are brought to zero, as float32 stores them: beyond, the
# scale is that of the nearest, so that it and what undoes it are no denormals.
POWERS = 27, 227

Array = Any  # of NumPy on the CPU, of torch elsewhere
Pairs = Mapping[str, tuple[str, str]]


def sums_of_products(values: Mapping[str, Array], pairs: Pairs) -> dict[str, Array]:
    """What a leaf has of each product.

    Args:
        values: (n,) float32 or float64 each, in NumPy or in torch on any device.
        pairs: The names of two of them, by the name of their product.

    Returns:
        The sums of the leaves, (leaves,) float64, by the name of the product.
    """
    scaled_arrays = {name: _in_scale(_in_blocks(array)) for name, array in values.items()}
    is_torch = any(isinstance(array, Tensor) for array in values.values())
    library: Any = torch if is_torch else np
    columns: list[Array] = []
    for a, b in pairs.values():
        (factor, undo), (other_factor, other_undo) = scaled_arrays[a], scaled_arrays[b]
        products = factor * other_factor
        column = products[:, :, 0]
        for row in range(1, ROWS):
            column = column + products[:, :, row]
        columns.append(_wide(column) * (undo * other_undo))
    stacked = library.stack(columns)
    lanes = library.zeros_like(stacked[:, :, 0])
    for block in range(stacked.shape[2]):
        lanes = lanes + stacked[:, :, block]
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return dict(zip(pairs, lanes[..., 0], strict=True))


def _in_blocks(values: Array) -> Array:
    """(leaves, blocks, rows, columns), with +0 where elements are missing."""
    count = -(-len(values) // LEAF)
    # Blocks of zeros would change nothing: where there is one leaf they are left out.
    blocks = LEAF // BLOCK if count > 1 else -(-len(values) // BLOCK)
    missing = count * blocks * BLOCK - len(values)
    if isinstance(values, Tensor):
        padded: Array = torch.nn.functional.pad(values, (0, missing))
    else:
        padded = np.pad(values, (0, missing))
    return padded.reshape(count, blocks, ROWS, COLUMNS)


def _in_scale(values: Array) -> tuple[Array, Array]:
    """Blocks in their scale, and what undoes it: (leaves, blocks, 1) float64."""
    if isinstance(values, Tensor):
        if values.dtype != torch.float32:
            return values, torch.ones_like(values[:, :, 0, :1])
        bits = values.view(torch.int32) & 0x7FFFFFFF  # NaN on top
        powers = (bits.amax((2, 3)) >> 23).clamp(*POWERS)[:, :, None]
        scale, undo = ((254 - powers) << 23).view(torch.float32), (powers << 23).view(torch.float32)
    else:
        if values.dtype != np.float32:
            return values, np.ones_like(values[:, :, 0, :1])
        bits = values.view(np.int32) & 0x7FFFFFFF
        powers = (bits.max((2, 3)) >> 23).clip(*POWERS)[:, :, None]
        scale, undo = ((254 - powers) << 23).view(np.float32), (powers << 23).view(np.float32)
    return values * scale[..., None], _wide(undo)


def _wide(values: Array) -> Array:
    return values.double() if isinstance(values, Tensor) else values.astype(np.float64)
