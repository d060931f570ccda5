"""Slots that are kept in codecs of 8 bits: of which parameters, and what they begin at."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg._core.state_allocation import laid_out
from thalweg._engines.codecs import CODECS
from thalweg._engines.codecs.codec import Codec
from thalweg._engines.codecs.records import decode_tensor as decode_tensor
from thalweg._engines.codecs.records import encode_array, encode_tensor
from thalweg._engines.codecs.records import lower_of as lower_of
from thalweg.formula import Slot
from thalweg.variable import numpy_copy

LEAST = 4096  # elements of a parameter below which its slots stay float32


def codec_of(slot: Slot, param: Tensor) -> Codec | None:
    """The codec in which a parameter's slot is kept; None where it is float32, or what it was."""
    codec = None if slot.storage is None else CODECS[slot.storage]
    return codec if codec is None or codec.is_beside or param.numel() >= LEAST else None


def likeness_of(codec: Codec, param: Tensor) -> Tensor:
    """A tensor without memory that has the shape and dtype of the records of a parameter's slot."""
    return torch.empty(codec.bytes_of(param.numel()), dtype=torch.uint8, device="meta")


def _laid_out(
    likes: Sequence[Tensor], dtypes: Sequence[torch.dtype], params: Sequence[Tensor]
) -> list[Tensor]:
    """Zeros of the shapes of tensors, where parameters are."""
    homes = [param.device for param in params]
    made: dict[int, Tensor] = {}
    for home in dict.fromkeys(homes):
        own = [k for k, each in enumerate(homes) if each == home]
        given = [likes[k] for k in own], [dtypes[k] for k in own]
        made |= zip(own, laid_out(*given, 0, device=home), strict=True)
    return [made[k] for k in range(len(params))]


def make_slots(slot: Slot, params: Sequence[Tensor], starts: Sequence[float]) -> list[Tensor]:
    """New slots that may be encoded, each filled with a number."""
    codecs = [codec_of(slot, param) for param in params]
    likes = [
        param if codec is None else likeness_of(codec, param)
        for codec, param in zip(codecs, params, strict=True)
    ]
    dtypes = [torch.float32 if codec is None else torch.uint8 for codec in codecs]
    made = _laid_out(likes, dtypes, params)
    for codec, param, own, start in zip(codecs, params, made, starts, strict=True):
        if start and codec is None:
            own.fill_(start)
        elif start and codec is not None:
            _fill(codec, own, param.numel(), start)
    return made


def _fill(codec: Codec, records: Tensor, count: int, number: float) -> None:
    """Set records to so many times a number."""
    block = torch.full((codec.block,), number, dtype=torch.float32, device="cpu")
    rows = records.view(-1, codec.record_bytes)
    rows.copy_(encode_tensor(codec, block))
    last = count % codec.block
    if last:
        rows[-1].copy_(torch.from_numpy(encode_array(codec, numpy_copy(block[:last]))))
