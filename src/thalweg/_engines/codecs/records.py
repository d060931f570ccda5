"""Encoding of numbers as records (a scale and 8-bit codes per block) with torch, and decoding."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.codecs.codec import LARGEST_PEAK, LEAST_PEAK, NAN, SCALE_BYTES, Codec
from thalweg._engines.codecs.dither import dithers_of, round_codes
from thalweg._engines.codecs.split8 import join_numbers, lower_beside, split_numbers
from thalweg._engines.low_precision_copies import is_nearest
from thalweg._engines.numpy_functions import numpy_formula
from thalweg._engines.protocol import Scalars
from thalweg._engines.random_bits import SCALARS, UNCOUNTED, Positions
from thalweg._engines.torch_functions import torch_formula
from thalweg.formula import Formula

_ONE_BITS = 0x3F800000  # the bits of 1.0


def _evaluate(formula: Formula, *tensors: Tensor) -> Tensor:
    """Return the result of a codec's formula over tensors.

    CPU tensors are computed by NumPy, because torch's threads would not flush denormals.
    """
    device = tensors[0].device
    if device.type != "cpu":
        return torch_formula(formula, torch.float32, device, 2)(*tensors)[0]
    with np.errstate(all="ignore"):
        results = numpy_formula(formula, np.float32)(*(tensor.numpy() for tensor in tensors))
    return torch.from_numpy(np.asarray(results[0]))


def encode_numbers(codec: Codec, values: Tensor, dithers: Tensor | None = None) -> Tensor:
    """Return the records that encode numbers, uint8 of shape (codec.bytes_of(len(values)),).

    Args:
        values: Float32 numbers in one dimension.
        dithers: The dither of each number, from `dithers_of`. None rounds to the nearest codes.
    """
    blocks = _in_blocks(codec, values)
    numbers = _evaluate(codec.prepare, blocks)
    # Compared as integers: denormals are not flushed to zero, and NaN is the largest.
    peaks = (numbers.view(torch.int32) & 0x7FFFFFFF).amax(1, keepdim=True)
    has_scale = (peaks > LEAST_PEAK) & (peaks <= LARGEST_PEAK)
    scales = torch.where(has_scale, peaks, _ONE_BITS).view(torch.float32)
    finite_numbers = torch.where(has_scale, numbers, 0)
    codes = _evaluate(codec.encode, finite_numbers, scales)
    unusual = torch.where(peaks > LARGEST_PEAK, NAN, 0)
    scale_bits = torch.where(has_scale, peaks, unusual).to(torch.int32)
    if dithers is None:
        integer_codes = codes.round().to(torch.int16)
    else:
        integer_codes = round_codes(codec, codes, _in_blocks(codec, dithers))
    # Signed codecs read the code 128 as -128.
    code_bytes = (integer_codes & 0xFF).to(torch.uint8)
    return torch.cat([scale_bits.view(torch.uint8), code_bytes], 1).reshape(-1)


def _in_blocks(codec: Codec, values: Tensor) -> Tensor:
    """Return numbers as an array with a row for each block; the last row is padded with 0."""
    missing = -len(values) % codec.block
    if missing:
        values = torch.cat([values, values.new_zeros(missing)])
    return values.view(-1, codec.block)


def decode_numbers(codec: Codec, records: Tensor, count: int) -> Tensor:
    """Return the first `count` numbers of records, float32 in one dimension."""
    rows = records.reshape(-1, codec.record_bytes)
    scales = rows[:, :SCALE_BYTES].contiguous().view(torch.float32)
    codes = rows[:, SCALE_BYTES:]
    codes = (codes.contiguous().view(torch.int8) if codec.signed else codes).to(torch.float32)
    return _evaluate(codec.decode, codes, scales).reshape(-1)[:count]


def encode_tensor(codec: Codec, values: Tensor) -> Tensor:
    """Return the records of a tensor, a new uint8 tensor, in row-major order of its elements.

    Numbers get the nearest code. If `codec.positive`, a code above 0 is at least `codec.least`. The
    records of `split8` are the lower bits of the numbers.
    """
    flat = _flatten(values)
    if codec.is_beside:
        return split_numbers(flat)[1]
    dithers = dithers_of(len(flat), -1, device=flat.device) if codec.positive else None
    return encode_numbers(codec, flat, dithers)


def encode_results(
    codec: Codec, values: Tensor, scalars: Scalars, extents: Iterable[tuple[int, Positions]]
) -> Tensor:
    """Encode the new values of one or several slots; return the records, slot after slot.

    Args:
        values: The values of all slots, concatenated.
        scalars: The scalars of the step. Without a step number, all dithers are 0.5.
        extents: (size, positions of the elements in the full parameter) for each slot.
    """
    flat, step = _flatten(values), int({**UNCOUNTED, **scalars}[SCALARS[0]])
    dithers = [dithers_of(size, step, origin, flat.device) for size, origin in extents]
    return encode_numbers(codec, flat, torch.cat(dithers))


def decode_tensor(codec: Codec, records: Tensor, var: Tensor) -> Tensor:
    """Return the numbers of records, a new float32 tensor of the variable's shape and device.

    Args:
        var: The variable. For `split8`, its bfloat16 numbers are the upper bits of the result.
    """
    records = records.detach().contiguous().view(-1)
    if codec.is_beside:
        return join_numbers(var.detach().contiguous().view(-1), records).view(var.shape)
    return decode_numbers(codec, records, var.numel()).view(var.shape)


def split_tensor(values: Tensor, bits: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the upper bits of numbers, a bfloat16 tensor, and the lower bits, `split8` records.

    Args:
        bits: Random bits for each number, as for `split_numbers`.
    """
    upper, codes = split_numbers(_flatten(values), bits)
    return upper.view(values.shape), codes


def _flatten(values: Tensor) -> Tensor:
    return values.detach().float().contiguous().view(-1)


def lower_of(values: Tensor, upper: Tensor | None = None) -> Tensor:
    """Return `split8` records: uint8 corrections from the nearest bfloat16 to each number.

    A number halfway between two bfloat16 numbers is restored too small if the smaller one is
    corrected. The error is 1/256 of their distance.

    Args:
        upper: Optional. A bfloat16 for each number. It is corrected if no bfloat16 is nearer.
    """
    flat = _flatten(values)
    base = flat.to(torch.bfloat16)
    if upper is not None:
        upper_flat = upper.detach().to(flat.device).contiguous().reshape(-1)
        base = torch.where(is_nearest(flat, upper_flat), upper_flat, base)
    return lower_beside(flat, base)
