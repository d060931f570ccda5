"""Records of a codec as arrays: encoded and decoded by NumPy, as kernels do to the last bit."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thalweg.engines.codecs.codec import (
    LARGEST_PEAK,
    LEAST_PEAK,
    NAN,
    SCALE_BYTES,
    Codec,
)
from thalweg.engines.codecs.split8 import PLACES
from thalweg.engines.numpy_functions import numpy_formula
from thalweg.variable import numpy_copy

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

_SIGN = np.uint32(0x7FFFFFFF)  # all bits but it
_ONE = 0x3F800000  # 1, as bits


def encode_array(codec: Codec, numbers: Float32) -> Bytes:
    """The records of numbers, of shape (codec.bytes_of(len(numbers)),).

    Args:
        codec: The codec.
        numbers: Of one dimension.
    """
    records = np.zeros((-(-len(numbers) // codec.block), codec.record_bytes), np.uint8)
    blocks = np.zeros((len(records), codec.block), np.float32)
    blocks.reshape(-1)[: len(numbers)] = numbers
    with np.errstate(all="ignore"):
        prepared: Any = numpy_formula(codec.prepare, np.float32)(blocks)[0]
    # Compared as integers, which no flag of the processor takes for zeros, and puts NaN on top.
    peaks = (prepared.view(np.uint32) & _SIGN).max(1, keepdims=True)
    is_usual = (peaks > LEAST_PEAK) & (peaks <= LARGEST_PEAK)
    scales = np.where(is_usual, peaks, np.uint32(_ONE)).view(np.float32)
    with np.errstate(all="ignore"):
        usual = np.where(is_usual, prepared, np.float32(0))
        codes: Any = numpy_formula(codec.encode, np.float32)(usual, scales)[0]
    unusual = np.where(peaks > LARGEST_PEAK, np.uint32(NAN), np.uint32(0))
    kept = np.where(is_usual, peaks, unusual)
    records[:, :SCALE_BYTES] = kept.view(np.uint8)
    records[:, SCALE_BYTES:] = np.rint(codes).astype(np.int16).astype(np.uint8)
    return records.reshape(-1)


def decode_array(codec: Codec, records: Bytes, count: int) -> Float32:
    """The numbers that records hold, `count` of them."""
    rows = records.reshape(-1, codec.record_bytes)
    scales = np.ascontiguousarray(rows[:, :SCALE_BYTES]).view(np.float32)
    kind = np.int8 if codec.signed else np.uint8
    codes = rows[:, SCALE_BYTES:].view(kind).astype(np.float32)
    with np.errstate(all="ignore"):
        numbers: Any = numpy_formula(codec.decode, np.float32)(codes, scales)[0]
    return numbers.reshape(-1)[:count]


def encode_tensor(codec: Codec, numbers: Tensor, beside: Tensor | None = None) -> Tensor:
    """The records of a tensor on the CPU, a new uint8 tensor, in the order of its elements.

    Args:
        codec: The codec.
        numbers: The tensor.
        beside: The variable, in bfloat16, which a codec that `is_beside` reads.
    """
    flat = numbers.detach().float().contiguous().reshape(-1)
    if codec.is_beside and beside is not None:
        return torch.from_numpy(_encode_beside(codec, numpy_copy(flat), _exponents_of(beside)))
    return torch.from_numpy(encode_array(codec, numpy_copy(flat)))


def _exponents_of(var: Tensor) -> npt.NDArray[np.uint32]:
    """The exponents of a bfloat16's elements, of which that of a code's last place is told."""
    bits = var.detach().to(torch.bfloat16).contiguous().view(torch.int16).reshape(-1).numpy()
    exponents = (bits.view(np.uint16) >> 7 & 255).astype(np.uint32)
    return np.maximum(exponents, np.uint32(PLACES + 1))


def _encode_beside(codec: Codec, numbers: Float32, exponents: npt.NDArray[np.uint32]) -> Bytes:
    inverse = ((np.uint32(254 + PLACES) - exponents) << np.uint32(23)).view(np.float32)
    with np.errstate(all="ignore"):
        codes: Any = numpy_formula(codec.encode, np.float32)(numbers, inverse)[0]
    found = np.zeros(codec.bytes_of(len(numbers)), np.uint8)
    with np.errstate(all="ignore"):
        found[: len(numbers)] = np.rint(np.where(codes == codes, codes, 0)).astype(np.int16)
    return found


def decode_tensor(codec: Codec, records: Tensor, like: Tensor) -> Tensor:
    """The numbers that records on the CPU hold, a new float32 tensor of the shape of another."""
    own = numpy_copy(records.detach().contiguous())
    if codec.is_beside:
        places = ((_exponents_of(like) - np.uint32(PLACES)) << np.uint32(23)).view(np.float32)
        codes = own.view(np.int8)[: like.numel()].astype(np.float32)
        numbers: Any = numpy_formula(codec.decode, np.float32)(codes, places)[0]
        return torch.from_numpy(numbers).view(like.shape)
    made = decode_array(codec, own, like.numel())
    return torch.from_numpy(np.ascontiguousarray(made)).view(like.shape)
