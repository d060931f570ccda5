"""State tensors in blocks of memory, one block for each dtype and device.

Small tensors then need no page each, and one guard on a block covers all tensors in it. Tensors of
a block share its storage and torch's version counter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg._engines.cpu.huge_pages import allocate_block
from thalweg._engines.layout import is_dense

# In bytes. A tensor inside a block starts at a multiple of this number.
ALIGNMENT = 64


def laid_out(
    variables: Sequence[Tensor],
    dtypes: Sequence[torch.dtype],
    initial: float,
    scalar: bool = False,
    devices: Sequence[torch.device] | None = None,
) -> list[Tensor]:
    """Create a tensor for each variable, with its shape, device and strides, filled with a number.

    Tensors of one dtype and device share a block of memory.

    Args:
        variables: The variables, in the order of the result.
        dtypes: The dtype of each new tensor.
        initial: The number that fills the tensors.
        scalar: True for new tensors of shape ().
        devices: The device of each new tensor; None for the devices of the variables.
    """
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    devices = devices or [var.device for var in variables]
    for index, kind in enumerate(zip(dtypes, devices, strict=True)):
        kinds.setdefault(kind, []).append(index)
    tensors: dict[int, Tensor] = {}
    for (dtype, device), members in kinds.items():
        step = ALIGNMENT // dtype.itemsize
        counts = [1 if scalar else variables[index].numel() for index in members]
        sizes = [-(-count // step) * step for count in counts]
        memory = allocate_block(sum(sizes), initial, dtype, device)
        start = 0
        for index, count, size in zip(members, counts, sizes, strict=True):
            piece = memory[start : start + count]
            tensors[index] = piece.view(()) if scalar else _reshape_like(piece, variables[index])
            start += size
    return [tensors[index] for index in range(len(variables))]


def _reshape_like(piece: Tensor, var: Tensor) -> Tensor:
    # A variable with gaps or overlaps between elements has a contiguous state tensor.
    if is_dense(var):
        return piece.as_strided(var.shape, var.stride())
    return piece.view(var.shape)
