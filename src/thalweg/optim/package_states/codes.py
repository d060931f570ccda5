"""Codes of 4 and 8 bits of bitsandbytes and torchao: decoding, and translation to `dynamic8`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from thalweg._core.quantized_slots import decode_tensor
from thalweg._core.state import flaw
from thalweg._engines.codecs import CODECS
from thalweg.optim.package_states.member import Member
from thalweg.optim.state_mismatch import told

# The index of 0 in the sorted map of signed numbers.
_ZERO = 127
_BLOCK = 256


@dataclass(frozen=True)
class Codes:
    """Numbers encoded as indices of a table, with a scale for each block of elements.

    Attributes:
        indices: Indices (elements,) of the table, of dtype uint8.
        table: The numbers at scale 1, float32.
        scales: The largest magnitude in each block.
        block: The number of elements of a block.
    """

    indices: Tensor
    table: Tensor
    scales: Tensor
    block: int

    def decode(self) -> Tensor:
        """Return the numbers in one dimension, float32."""
        scales = self.scales.repeat_interleave(self.block)[: self.indices.numel()]
        return self.table[self.indices.int()] * scales

    def records(self, codec: str) -> Tensor | None:
        """Return the numbers as an encoded slot (uint8), or None if `codec` has another format.

        `codec` names an 8-bit encoding of this package. Its table and block size must be equal.
        """
        if self.block != _BLOCK or not _is_map_of(self.table, codec):
            return None
        indices = self.indices
        if CODECS[codec].signed:
            indices = (indices.to(torch.int16) - _ZERO).to(torch.uint8)
        rows = indices.new_zeros((self.scales.numel(), _BLOCK))
        rows.view(-1)[: indices.numel()] = indices
        return torch.cat([self.scales.view(-1, 1).view(torch.uint8), rows], dim=1).view(-1)


@cache
def _numbers_of(codec: str) -> Tensor:
    """Return the numbers of a codec in increasing order, for the scale 1."""
    codes = torch.arange(_BLOCK, dtype=torch.uint8, device="cpu")
    scale = torch.ones(1, dtype=torch.float32, device="cpu").view(torch.uint8)
    like = torch.empty(_BLOCK, dtype=torch.float32, device="cpu")
    return decode_tensor(CODECS[codec], torch.cat([scale, codes]), like).sort()[0]


def _is_map_of(table: Tensor, codec: str) -> bool:
    """Return True if a map has the numbers of a codec, up to the last bits."""
    if not codec.startswith("dynamic8") or table.numel() != _BLOCK:
        return False
    return torch.allclose(table.cpu(), _numbers_of(codec), rtol=1e-6, atol=0)


def read_codes(
    member: Member,
    name: str,
    tensors: tuple[Any, Any, Any],
    bits: int = 8,
    block: int | None = None,
) -> Codes | None:
    """Return a validated quantized slot as `Codes`; None if its indices are not a uint8 tensor.

    Args:
        member: The state of the parameter. The slot has an index for each of its elements.
        name: The name of the slot, for messages.
        tensors: (indices, table of 2**bits numbers, scale of each block).
        bits: 8 for one index per byte; 4 for two indices per byte, the upper half first.
        block: The number of elements of a block; the last block may be shorter. None derives it
            from the number of scales.

    Raises:
        CheckpointMismatchError: A tensor has another type or length.
    """
    indices, table, scales = tensors
    if not isinstance(indices, Tensor) or indices.dtype != torch.uint8:
        return None
    if problem := flaw(indices):
        raise member.fail(name, f"is {problem}")
    indices = indices.detach().reshape(-1)
    if bits == 4:
        indices = torch.stack([indices >> 4, indices & 15], dim=-1).view(-1)
    count = member.param.numel()
    if indices.numel() != count or not count:
        raise member.fail(name, f"has {indices.numel()} codes, and the parameter {count} elements")
    table = member.checked(f"{name}: map", table, (1 << bits,)).float()
    if not isinstance(scales, Tensor) or scales.dim() != 1 or not 0 < scales.numel() <= count:
        raise member.fail(f"{name}: scales", f"is {told(scales)}, not a row of numbers")
    scales = member.checked(f"{name}: scales", scales, scales.shape).float().contiguous()
    block = block or count // scales.numel()
    # The number of blocks is rounded up, since the last block may be shorter.
    if -(-count // block) != scales.numel():
        raise member.fail(f"{name}: scales", f"is {told(scales)}, for {count} codes")
    return Codes(indices, table, scales, block)
