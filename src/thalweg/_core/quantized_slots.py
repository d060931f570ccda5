"""Slots encoded with 8 bits: selection of codecs and initial values."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg._core.dtensor import beside, is_on_mesh, local
from thalweg._core.state_allocation import laid_out
from thalweg._engines.codecs import CODECS
from thalweg._engines.codecs.codec import Codec
from thalweg._engines.codecs.records import decode_tensor as decode_tensor
from thalweg._engines.codecs.records import encode_numbers, encode_tensor
from thalweg._engines.codecs.records import lower_of as lower_of
from thalweg.formula import Slot

# Slots of parameters with fewer elements stay float32.
LEAST = 4096


def codec_of(slot: Slot, param: Tensor) -> Codec | None:
    """Return the 8-bit codec of a parameter's slot; None if the slot is not encoded.

    Small parameters, with fewer than 4,096 elements, have no encoded slots. A DTensor has encoded
    slots only if its rows are whole blocks of the codec. The codec of split weights is returned for
    every parameter.
    """
    codec = None if slot.storage is None else CODECS[slot.storage]
    if codec is None or codec.is_beside:
        return codec
    # The condition reads the full shape, so that all meshes choose the same codec.
    is_cuttable = not is_on_mesh(param) or codec.divides(param.shape)
    return codec if param.numel() >= LEAST and is_cuttable else None


def likeness_of(codec: Codec, param: Tensor) -> Tensor:
    """Return a meta tensor with the shape and dtype of the encoded slot of a parameter.

    For a DTensor whose rows are not whole blocks, these are the ones of a full tensor's slot.
    """
    flat = (codec.bytes_of(param.numel()),)
    has_rows = is_on_mesh(param) and codec.divides(param.shape)
    shape = codec.shape_of_rows(param.shape) if has_rows else flat
    return torch.empty(shape, dtype=torch.uint8, device="meta")


def make_slots(slot: Slot, params: Sequence[Tensor], starts: Sequence[float]) -> list[Tensor]:
    """Create a slot for each parameter, filled with the parameter's number in `starts`.

    An encoded slot is a tensor of bytes; other slots are float32. Slots of DTensors are DTensors.
    """
    codecs = [codec_of(slot, param) for param in params]
    shards = list(map(local, params))
    likes = [
        shard if codec is None else likeness_of(codec, shard)
        for codec, shard in zip(codecs, shards, strict=True)
    ]
    dtypes = [torch.float32 if codec is None else torch.uint8 for codec in codecs]
    slots = laid_out(likes, dtypes, 0, devices=[shard.device for shard in shards])
    for codec, shard, tensor, start in zip(codecs, shards, slots, starts, strict=True):
        if start and codec is None:
            tensor.fill_(start)
        elif start and codec is not None:
            _fill(codec, tensor, shard.numel(), start)
    rows = zip(codecs, params, slots, strict=True)
    return [
        beside(tensor, param) if codec is None else records_beside(codec, tensor, param)
        for codec, param, tensor in rows
    ]


def records_beside(codec: Codec, records: Tensor, param: Tensor) -> Tensor:
    """Return the encoded slot of a parameter's local part; for a DTensor, wrapped as a DTensor."""
    if not is_on_mesh(param):
        return records
    rows = records.view(codec.shape_of_rows(local(param).shape))
    return beside(rows, param, likeness_of(codec, param))


def with_rows(codec: Codec, records: Tensor, param: Tensor) -> Tensor:
    """Return encoded bytes viewed with the dimensions of their parameter, for a state.

    Return the bytes unchanged if their number is wrong, or if the parameter's rows are not whole
    blocks of the codec.
    """
    is_complete = records.numel() == codec.bytes_of(param.numel()) and records.is_contiguous()
    has_rows = is_complete and codec.divides(param.shape)
    return records.view(codec.shape_of_rows(param.shape)) if has_rows else records


def as_kept(codec: Codec, records: Tensor, param: Tensor) -> Tensor:
    """Return encoded bytes as a view in the shape of the parameter's slot.

    Return `records` itself if it has the slot's shape already, or cannot be viewed in this shape:
    if it is a DTensor, is not contiguous, or is neither flat nor in the shape from `with_rows`.
    """
    shape = likeness_of(codec, param).shape
    shapes = (codec.bytes_of(param.numel()),), codec.shape_of_rows(param.shape)
    has_record_shape = records.shape != shape and tuple(records.shape) in shapes
    has_bytes = records.numel() == shape.numel() and records.is_contiguous()
    can_view = has_record_shape and has_bytes and not is_on_mesh(records)
    return records.detach().view(shape) if can_view else records


def shape_entry(param: Tensor) -> Tensor:
    """Return the value of `ENCODED_SHAPE` in the state of a parameter."""
    return torch.tensor(param.shape, dtype=torch.int64, device=param.device)


def _fill(codec: Codec, records: Tensor, count: int, value: float) -> None:
    """Fill encoded bytes such that each of their `count` elements decodes to `value`."""
    block = torch.full((codec.block,), value, dtype=torch.float32, device="cpu")
    rows = records.view(-1, codec.record_bytes)
    rows.copy_(encode_tensor(codec, block))
    partial_size = count % codec.block
    if partial_size:
        rows[-1].copy_(encode_numbers(codec, block[:partial_size]))
