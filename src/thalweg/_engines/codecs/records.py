"""Encoding and decoding of records with NumPy, bit for bit as in kernels.

Tensors on other devices are copied to the host, and results back to the device.
"""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thalweg._engines.codecs.codec import (
    LARGEST_PEAK,
    LEAST_PEAK,
    NAN,
    SCALE_BYTES,
    Codec,
)
from thalweg._engines.codecs.dither import dithers_of, round_codes
from thalweg._engines.codecs.split8 import join_numbers, lower_beside, split_numbers
from thalweg._engines.low_precision_copies import is_nearest
from thalweg._engines.numpy_functions import numpy_formula
from thalweg._engines.random_bits import Positions
from thalweg.variable import numpy_copy

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

_MAGNITUDE_MASK = np.uint32(0x7FFFFFFF)  # all bits but the sign
_ONE_BITS = 0x3F800000  # the bits of 1.0


def encode_array(codec: Codec, numbers: Float32, dithers: Float32 | None = None) -> Bytes:
    """Return the records of numbers, of shape (codec.bytes_of(len(numbers)),).

    Args:
        codec: The codec.
        numbers: Numbers in one dimension.
        dithers: The dither of each number, from `dithers_of`; None for the nearest codes.
    """
    records = np.zeros((-(-len(numbers) // codec.block), codec.record_bytes), np.uint8)
    blocks = np.zeros((len(records), codec.block), np.float32)
    blocks.reshape(-1)[: len(numbers)] = numbers
    with np.errstate(all="ignore"):
        prepared_numbers: Any = numpy_formula(codec.prepare, np.float32)(blocks)[0]
    # Compared as integers: denormals are not flushed to zero, and NaN is the largest.
    peaks = (prepared_numbers.view(np.uint32) & _MAGNITUDE_MASK).max(1, keepdims=True)
    has_scale = (peaks > LEAST_PEAK) & (peaks <= LARGEST_PEAK)
    scales = np.where(has_scale, peaks, np.uint32(_ONE_BITS)).view(np.float32)
    with np.errstate(all="ignore"):
        scaled_numbers = np.where(has_scale, prepared_numbers, np.float32(0))
        codes: Any = numpy_formula(codec.encode, np.float32)(scaled_numbers, scales)[0]
    unusual = np.where(peaks > LARGEST_PEAK, np.uint32(NAN), np.uint32(0))
    scale_bits = np.where(has_scale, peaks, unusual)
    records[:, :SCALE_BYTES] = scale_bits.view(np.uint8)
    if dithers is None:
        integer_codes = np.rint(codes).astype(np.int16)
    else:
        padded = np.zeros(blocks.size, np.float32)
        padded[: len(dithers)] = dithers
        integer_codes = round_codes(codec, codes, padded.reshape(blocks.shape))
    records[:, SCALE_BYTES:] = integer_codes.astype(np.uint8)
    return records.reshape(-1)


def decode_array(codec: Codec, records: Bytes, count: int) -> Float32:
    """Return the first `count` numbers of records."""
    rows = records.reshape(-1, codec.record_bytes)
    scales = np.ascontiguousarray(rows[:, :SCALE_BYTES]).view(np.float32)
    kind = np.int8 if codec.signed else np.uint8
    codes = rows[:, SCALE_BYTES:].view(kind).astype(np.float32)
    with np.errstate(all="ignore"):
        numbers: Any = numpy_formula(codec.decode, np.float32)(codes, scales)[0]
    return numbers.reshape(-1)[:count]


def encode_tensor(
    codec: Codec, numbers: Tensor, step: int | None = None, origin: Positions = 0
) -> Tensor:
    """Return the records of a tensor, a new uint8 tensor, in the order of its elements.

    Args:
        codec: The codec.
        numbers: The tensor.
        step: The number of the step that computed the numbers, or -1, as for `dithers_of`. None
            for numbers from outside of a step: they get the nearest code, but a positive number of
            a positive codec never becomes 0.
        origin: The positions of the numbers in the full parameter.
    """
    flat = numpy_copy(numbers.detach().float().contiguous().reshape(-1))
    if codec.is_beside:
        return torch.from_numpy(split_numbers(flat)[1]).to(numbers.device)
    is_nearest = step is None and not codec.positive
    dithers = None if is_nearest else dithers_of(len(flat), -1 if step is None else step, origin)
    return torch.from_numpy(encode_array(codec, flat, dithers)).to(numbers.device)


def decode_tensor(codec: Codec, records: Tensor, var: Tensor) -> Tensor:
    """Return the numbers of records, a new float32 tensor of the variable's shape and device.

    Args:
        codec: The codec.
        records: The records.
        var: The variable; for `split8` the bfloat16 that has the upper bits.
    """
    record_array = numpy_copy(records.detach().contiguous())
    if codec.is_beside:
        bits = numpy_copy(var.detach().contiguous().view(torch.int16).reshape(-1))
        numbers = join_numbers(bits.view(np.uint16), record_array)
    else:
        numbers = np.ascontiguousarray(decode_array(codec, record_array, var.numel()))
    return torch.from_numpy(numbers).view(var.shape).to(var.device)


def split_tensor(
    numbers: Tensor, bits: npt.NDArray[np.uint32] | None = None
) -> tuple[Tensor, Tensor]:
    """Return a bfloat16 tensor of the upper bits of numbers, and the records of `split8`.

    Args:
        numbers: The numbers.
        bits: Random bits for each number, as for `split_numbers`.
    """
    flat = numpy_copy(numbers.detach().float().contiguous().reshape(-1))
    upper, codes = split_numbers(flat, bits)
    upper_tensor = torch.from_numpy(upper.view(np.int16)).view(torch.bfloat16).view(numbers.shape)
    return upper_tensor.to(numbers.device), torch.from_numpy(codes).to(numbers.device)


def lower_of(numbers: Tensor, upper: Tensor | None = None) -> Tensor:
    """Return the records of `split8` for numbers whose upper bits are already in bfloat16.

    torch rounds ties to even: for a tie half a place up, the restored number is a 256th too low.

    Args:
        numbers: The numbers.
        upper: Optional. bfloat16 numbers, used where they are a nearest one; elsewhere, and by
            default, the upper bits are those that torch rounds to.
    """
    flat = numbers.detach().float().contiguous().reshape(-1)
    base = flat.to(torch.bfloat16)
    if upper is not None:
        upper_flat = upper.detach().to(flat.device).contiguous().reshape(-1)
        base = torch.where(is_nearest(flat, upper_flat), upper_flat, base)
    bits = numpy_copy(base.view(torch.int16)).view(np.uint16)
    return torch.from_numpy(lower_beside(numpy_copy(flat), bits)).to(numbers.device)
