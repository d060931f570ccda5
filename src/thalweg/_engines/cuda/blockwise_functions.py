"""Triton functions for stochastic rounding and for slots in 8-bit codes.

Integers are uint32 and numbers are float32, as in the NumPy versions of the same arithmetic:
`thalweg._engines.philox`, `codecs.records` and `codecs.split8`.
"""

# Code for Triton, which has no types.
# pyright: basic
# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl

from thalweg._engines.codecs import codec, dither
from thalweg._engines.cuda.device_functions import to_float16

LEAST_PEAK = tl.constexpr(codec.LEAST_PEAK)
LARGEST_PEAK = tl.constexpr(codec.LARGEST_PEAK)
NAN = tl.constexpr(codec.NAN)
PERIOD, TURN = tl.constexpr(dither.PERIOD), tl.constexpr(dither.TURN)
ELEMENT_STRIDE = tl.constexpr(dither.ELEMENT_STRIDE)
STEP_STRIDE = tl.constexpr(dither.STEP_STRIDE)
SHIFT, UNIT = tl.constexpr(dither.SHIFT), tl.constexpr(dither.UNIT)

# Random bits


@triton.jit
def words_of(group, step, number, stream, low, high):
    """Return four random uint32 words for each group of eight elements, by int64 index."""
    lower = (group & 0xFFFFFFFF).to(tl.uint32)
    upper = (((group >> 32) << 8) | stream).to(tl.uint32)
    return philox_impl(lower, step, number, upper, low, high)


@triton.jit
def bits_of(position, step, number, stream, low, high, COUNT: tl.constexpr, ALIGNED: tl.constexpr):
    """Return 16 random bits for each of COUNT consecutive elements, as uint32.

    Args:
        position: Index of the first element in the unsharded variable, int64.
        step, number, stream: As for `thalweg._engines.philox.draw_bits`.
        low, high: The two words of the key.
        COUNT: Number of elements, a multiple of eight.
        ALIGNED: Whether `position` is a multiple of eight.
    """
    group = (position >> 3) + tl.arange(0, COUNT // 8)
    w0, w1, w2, w3 = words_of(group, step, number, stream, low, high)
    # Eight elements that start inside a group need the end of its words and the next group's begin.
    if not ALIGNED:
        # Bits of the position: skip two words, one word, half a word.
        w4, w5, w6, w7 = words_of(group + 1, step, number, stream, low, high)
        bit2, bit1 = (position & 4) != 0, (position & 2) != 0
        w0, w1, w2 = tl.where(bit2, w2, w0), tl.where(bit2, w3, w1), tl.where(bit2, w4, w2)
        w3, w4, w5 = tl.where(bit2, w5, w3), tl.where(bit2, w6, w4), tl.where(bit2, w7, w5)
        w0, w1, w2 = tl.where(bit1, w1, w0), tl.where(bit1, w2, w1), tl.where(bit1, w3, w2)
        w3, w4 = tl.where(bit1, w4, w3), tl.where(bit1, w5, w4)
        bit0 = (position & 1) != 0
        w0 = tl.where(bit0, (w0 >> 16) | (w1 << 16), w0)
        w1 = tl.where(bit0, (w1 >> 16) | (w2 << 16), w1)
        w2 = tl.where(bit0, (w2 >> 16) | (w3 << 16), w2)
        w3 = tl.where(bit0, (w3 >> 16) | (w4 << 16), w3)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (COUNT,))


@triton.jit
def to_bfloat16_by(x, random_bits):
    """Round the magnitude of a float32 to bfloat16, up or down as 16 random bits decide."""
    x_bits = x.to(tl.uint32, bitcast=True)
    magnitude = x_bits & 0x7FFFFFFF
    carried_bits = x_bits + tl.where(
        magnitude < 0x7F7F0000, random_bits, ((x_bits >> 16) & 1) + 0x7FFF
    )
    upper_bits = tl.where(magnitude > 0x7F800000, 0x7FC0, carried_bits >> 16)
    return upper_bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def to_float16_by(x, random_bits):
    """Return a float32 as float16, its magnitude rounded up or down as 16 random bits decide.

    From 65504 on, numbers are rounded to the nearest.
    """
    x_bits = x.to(tl.uint32, bitcast=True)
    magnitude = x_bits & 0x7FFFFFFF
    exponent = magnitude >> 23
    unit_exponent = tl.where(exponent > 113, exponent, 113) - 10
    unit = (unit_exponent << 23).to(tl.float32, bitcast=True)
    units = magnitude.to(tl.float32, bitcast=True) * ((254 - unit_exponent) << 23).to(
        tl.float32, bitcast=True
    )
    full_units = tl.floor(units)
    fraction = (units - full_units) * 65536.0 + random_bits.to(tl.float32)
    rounded_magnitude = (tl.where(fraction >= 65536.0, full_units + 1.0, full_units) * unit).to(
        tl.float16
    )
    signed_bits = rounded_magnitude.to(tl.int16, bitcast=True) | ((x_bits >> 16) & 0x8000).to(
        tl.int16
    )
    nearest_bits = to_float16(x).to(tl.int16, bitcast=True)
    return tl.where(magnitude < 0x477FE000, signed_bits, nearest_bits).to(tl.float16, bitcast=True)


# float32 split into a bfloat16 and a correction code


@triton.jit
def joined(upper, code):
    """Return the float32 whose upper 16 bits are a bfloat16, corrected by an 8-bit code."""
    upper_bits = upper.to(tl.int16, bitcast=True).to(tl.uint16, bitcast=True).to(tl.int32)
    magnitude = upper_bits & 0x7FFF
    code_bits = tl.where((magnitude != 0) & (magnitude < 0x7F80), code.to(tl.int32) << 8, 0)
    return ((upper_bits << 16) + code_bits).to(tl.float32, bitcast=True)


@triton.jit
def _word_of(x, random_bits):
    """Return a float32 rounded to its upper 24 bits, as an integer, with 8 random bits."""
    x_bits = x.to(tl.uint32, bitcast=True)
    return tl.where(
        (x_bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC000, (x_bits + (random_bits & 0xFF)) >> 8
    )


@triton.jit
def upper_of(x, random_bits):
    """Return the bfloat16 part of a float32 that `joined` restores."""
    upper_bits = (_word_of(x, random_bits) + 0x80) >> 8
    return upper_bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def lower_of(x, random_bits):
    """Return the int8 correction code of a float32 beside its `upper_of`."""
    return _word_of(x, random_bits).to(tl.int8)


# Records of codecs


@triton.jit
def records(addresses, element):
    """Load the address of records; return a pointer to elements of a type, 4-byte aligned."""
    return tl.multiple_of(tl.load(addresses).to(tl.pointer_type(element)), 4)


@triton.jit
def word_pointer(start):
    """Return a pointer to bytes as a pointer to 32-bit integers."""
    return start.to(tl.pointer_type(tl.int32), bitcast=True)


@triton.jit
def store_where(start, offsets, values, mask, MASKED: tl.constexpr):
    """Store values, cut to the integer type of `start`; only where `mask` if MASKED."""
    values = values.to(start.dtype.element_ty)
    if MASKED:
        tl.store(start + offsets, values, mask=mask)
    else:
        tl.store(start + offsets, values)


@triton.jit
def tile_of(x, offsets, length, MASKED: tl.constexpr):
    """Broadcast a number to the shape of a tile, with zeros from `length` on if MASKED."""
    x = tl.broadcast_to(x, offsets.shape)
    if MASKED:
        x = tl.where(offsets < length, x, 0.0)
    return x


@triton.jit
def peaks_of(x, PARTS: tl.constexpr):
    """Return the largest magnitude, as bits, of each block of PARTS rows; NaN is above infinity."""
    peaks = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    if PARTS > 1:
        ROWS: tl.constexpr = x.shape[0]
        block_peaks = tl.max(tl.reshape(peaks, (ROWS // PARTS, PARTS)), axis=1)
        peaks = tl.reshape(
            tl.broadcast_to(tl.expand_dims(block_peaks, 1), (ROWS // PARTS, PARTS)), (ROWS,)
        )
    return tl.expand_dims(peaks, 1)


@triton.jit
def _has_scale(peaks):
    """Return whether the peak of a block is in the range of scales."""
    return (peaks > LEAST_PEAK) & (peaks <= LARGEST_PEAK)


@triton.jit
def scale_of(peaks):
    """Return the scale of each block: its peak, or 1 outside of the range of scales."""
    return tl.where(_has_scale(peaks), peaks, 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def usual(x, peaks):
    """Return the numbers of blocks with a scale, and zeros for other blocks."""
    return tl.where(_has_scale(peaks), x, 0.0)


@triton.jit
def kept_of(peaks):
    """Return the bits to store as a scale: the peak, 0 if it is too small, NaN if too large."""
    return tl.where(_has_scale(peaks), peaks, tl.where(peaks > LARGEST_PEAK, NAN, 0))


@triton.jit
def dithers_of(element, step):
    """Return the dithers of int64 element indices in a step; 0.5 if `step` is negative."""
    rank = (element + (element // PERIOD) * TURN) & (PERIOD - 1)
    total = rank.to(tl.uint32) * ELEMENT_STRIDE + step.to(tl.uint32) * STEP_STRIDE
    return tl.where(step < 0, 0.5, ((total >> SHIFT).to(tl.float32) + 0.5) * UNIT)


@triton.jit
def positive_code(x, dithers, SMALLEST_CODE: tl.constexpr):
    """Return the codes of dithered positive reals, at least SMALLEST_CODE; 0 for others."""
    dithered = tl.where(x > SMALLEST_CODE, x, SMALLEST_CODE * 1.0) + dithers
    return tl.where(x > 0.0, dithered, 0.0).to(tl.int32)


@triton.jit
def signed_code(x, dithers):
    """Return the integer codes of dithered reals of any sign."""
    magnitude = tl.abs(x)
    dithered = x * tl.where(magnitude < 1.0, magnitude, 1.0) + tl.where(x < 0.0, -dithers, dithers)
    return dithered.to(tl.int32)
