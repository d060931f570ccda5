"""What kernels call that round by random bits, or have slots in codes of 8 bits.

Integers are of 32 bits without a sign, as in `thalweg._engines.philox`, `codecs.records` and
`codecs.split8`, which say what is computed here; numbers are float32.
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
def words_of(group, step, stream_number, stream, low, high):
    """Four words for each group of eight elements, by its number (int64)."""
    lower = (group & 0xFFFFFFFF).to(tl.uint32)
    upper = (((group >> 32) << 8) | stream).to(tl.uint32)
    return philox_impl(lower, step, stream_number, upper, low, high)


@triton.jit
def bits_of(position, step, number, stream, low, high, COUNT: tl.constexpr, ALIGNED: tl.constexpr):
    """16 bits for each of some elements that follow one another.

    Args:
        position: That of the first one in the whole variable, int64.
        step, number, stream: As for `thalweg._engines.philox.draw_bits`.
        low, high: The key.
        COUNT: How many elements.
        ALIGNED: Whether `position` is a multiple of eight.
    """
    group = (position >> 3) + tl.arange(0, COUNT // 8)
    w0, w1, w2, w3 = words_of(group, step, number, stream, low, high)
    if not ALIGNED:  # then eight elements have words of two groups, of which some are left out
        w4, w5, w6, w7 = words_of(group + 1, step, number, stream, low, high)
        skips_two_words, skips_one_word = (position & 4) != 0, (position & 2) != 0
        w0, w1, w2 = (
            tl.where(skips_two_words, w2, w0),
            tl.where(skips_two_words, w3, w1),
            tl.where(skips_two_words, w4, w2),
        )
        w3, w4, w5 = (
            tl.where(skips_two_words, w5, w3),
            tl.where(skips_two_words, w6, w4),
            tl.where(skips_two_words, w7, w5),
        )
        w0, w1, w2 = (
            tl.where(skips_one_word, w1, w0),
            tl.where(skips_one_word, w2, w1),
            tl.where(skips_one_word, w3, w2),
        )
        w3, w4 = tl.where(skips_one_word, w4, w3), tl.where(skips_one_word, w5, w4)
        skips_half_word = (position & 1) != 0
        w0 = tl.where(skips_half_word, (w0 >> 16) | (w1 << 16), w0)
        w1 = tl.where(skips_half_word, (w1 >> 16) | (w2 << 16), w1)
        w2 = tl.where(skips_half_word, (w2 >> 16) | (w3 << 16), w2)
        w3 = tl.where(skips_half_word, (w3 >> 16) | (w4 << 16), w3)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (COUNT,))


@triton.jit
def to_bfloat16_by(x, random_bits):
    """A number as bfloat16, rounded by random bits."""
    x_bits = x.to(tl.uint32, bitcast=True)
    magnitude = x_bits & 0x7FFFFFFF
    carried_bits = x_bits + tl.where(
        magnitude < 0x7F7F0000, random_bits, ((x_bits >> 16) & 1) + 0x7FFF
    )
    upper_bits = tl.where(magnitude > 0x7F800000, 0x7FC0, carried_bits >> 16)
    return upper_bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def to_float16_by(x, random_bits):
    """The same as float16."""
    x_bits = x.to(tl.uint32, bitcast=True)
    magnitude = x_bits & 0x7FFFFFFF
    exponent = magnitude >> 23
    unit_exponent = tl.where(exponent > 113, exponent, 113) - 10  # a last place
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


# Numbers of which a bfloat16 is the upper part


@triton.jit
def joined(upper, code):
    """The number of a bfloat16 and a code."""
    upper_bits = upper.to(tl.int16, bitcast=True).to(tl.uint16, bitcast=True).to(tl.int32)
    magnitude = upper_bits & 0x7FFF
    code_bits = tl.where((magnitude != 0) & (magnitude < 0x7F80), code.to(tl.int32) << 8, 0)
    return ((upper_bits << 16) + code_bits).to(tl.float32, bitcast=True)


@triton.jit
def _word_of(x, random_bits):
    """A number rounded to 24 bits by 8 of others."""
    x_bits = x.to(tl.uint32, bitcast=True)
    return tl.where(
        (x_bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC000, (x_bits + (random_bits & 0xFF)) >> 8
    )


@triton.jit
def upper_of(x, random_bits):
    """The bfloat16 of a number."""
    upper_bits = (_word_of(x, random_bits) + 0x80) >> 8
    return upper_bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def lower_of(x, random_bits):
    """Its code."""
    return _word_of(x, random_bits).to(tl.int8)


# Records of codecs


@triton.jit
def records(addresses, element):
    """The records at an address in a table, as elements of a type; they begin at words."""
    return tl.multiple_of(tl.load(addresses).to(tl.pointer_type(element)), 4)


@triton.jit
def store_where(start, offsets, values, mask, MASKED: tl.constexpr):
    """Write a part of records, of which integers lose what does not fit."""
    values = values.to(start.dtype.element_ty)
    if MASKED:
        tl.store(start + offsets, values, mask=mask)
    else:
        tl.store(start + offsets, values)


@triton.jit
def tile_of(x, offsets, length, MASKED: tl.constexpr):
    """Numbers of a tile, with zeros beyond the last element."""
    x = tl.broadcast_to(x, offsets.shape)
    if MASKED:
        x = tl.where(offsets < length, x, 0.0)
    return x


@triton.jit
def peaks_of(x, PARTS: tl.constexpr):
    """The bits of the largest magnitude of each block, of so many rows; NaN is above infinity."""
    peaks = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    if PARTS > 1:
        ROWS: tl.constexpr = x.shape[0]
        block_peaks = tl.max(tl.reshape(peaks, (ROWS // PARTS, PARTS)), axis=1)
        peaks = tl.reshape(
            tl.broadcast_to(tl.expand_dims(block_peaks, 1), (ROWS // PARTS, PARTS)), (ROWS,)
        )
    return tl.expand_dims(peaks, 1)


@triton.jit
def _is_usual(peaks):
    return (peaks > LEAST_PEAK) & (peaks <= LARGEST_PEAK)


@triton.jit
def scale_of(peaks):
    """By what numbers are divided."""
    return tl.where(_is_usual(peaks), peaks, 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def usual(x, peaks):
    """Numbers of blocks that have a scale; of others zeros."""
    return tl.where(_is_usual(peaks), x, 0.0)


@triton.jit
def kept_of(peaks):
    """The bits of what is kept as a scale."""
    return tl.where(_is_usual(peaks), peaks, tl.where(peaks > LARGEST_PEAK, NAN, 0))


@triton.jit
def dithers_of(element, step):
    """Dithers of elements of a parameter (int64) in a step; see `_engines/codecs/dither.py`."""
    rank = (element + (element // PERIOD) * TURN) & (PERIOD - 1)
    total = rank.to(tl.uint32) * ELEMENT_STRIDE + step.to(tl.uint32) * STEP_STRIDE
    return tl.where(step < 0, 0.5, ((total >> SHIFT).to(tl.float32) + 0.5) * UNIT)


@triton.jit
def positive_code(x, dithers, SMALLEST_CODE: tl.constexpr):
    """The bits of codes of real ones that are not negative."""
    dithered = tl.where(x > SMALLEST_CODE, x, SMALLEST_CODE * 1.0) + dithers
    return tl.where(x > 0.0, dithered, 0.0).to(tl.int32)


@triton.jit
def signed_code(x, dithers):
    """The bits of codes of real ones of any sign."""
    magnitude = tl.abs(x)
    dithered = x * tl.where(magnitude < 1.0, magnitude, 1.0) + tl.where(x < 0.0, -dithers, dithers)
    return dithered.to(tl.int32)
