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
def words_of(group, step, number, stream, low, high):
    """Four words for each group of eight elements, by its number (int64)."""
    lower = (group & 0xFFFFFFFF).to(tl.uint32)
    upper = (((group >> 32) << 8) | stream).to(tl.uint32)
    return philox_impl(lower, step, number, upper, low, high)


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
        is_far, is_odd = (position & 4) != 0, (position & 2) != 0
        w0, w1, w2 = tl.where(is_far, w2, w0), tl.where(is_far, w3, w1), tl.where(is_far, w4, w2)
        w3, w4, w5 = tl.where(is_far, w5, w3), tl.where(is_far, w6, w4), tl.where(is_far, w7, w5)
        w0, w1, w2 = tl.where(is_odd, w1, w0), tl.where(is_odd, w2, w1), tl.where(is_odd, w3, w2)
        w3, w4 = tl.where(is_odd, w4, w3), tl.where(is_odd, w5, w4)
        is_half = (position & 1) != 0
        w0 = tl.where(is_half, (w0 >> 16) | (w1 << 16), w0)
        w1 = tl.where(is_half, (w1 >> 16) | (w2 << 16), w1)
        w2 = tl.where(is_half, (w2 >> 16) | (w3 << 16), w2)
        w3 = tl.where(is_half, (w3 >> 16) | (w4 << 16), w3)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (COUNT,))


@triton.jit
def to_bfloat16_by(x, bits):
    """A number as bfloat16, rounded by random bits."""
    own = x.to(tl.uint32, bitcast=True)
    size = own & 0x7FFFFFFF
    moved = own + tl.where(size < 0x7F7F0000, bits, ((own >> 16) & 1) + 0x7FFF)
    found = tl.where(size > 0x7F800000, 0x7FC0, moved >> 16)
    return found.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def to_float16_by(x, bits):
    """The same as float16."""
    own = x.to(tl.uint32, bitcast=True)
    size = own & 0x7FFFFFFF
    exponent = size >> 23
    least = tl.where(exponent > 113, exponent, 113) - 10  # a last place
    unit = (least << 23).to(tl.float32, bitcast=True)
    places = size.to(tl.float32, bitcast=True) * ((254 - least) << 23).to(tl.float32, bitcast=True)
    whole = tl.floor(places)
    share = (places - whole) * 65536.0 + bits.to(tl.float32)
    found = (tl.where(share >= 65536.0, whole + 1.0, whole) * unit).to(tl.float16)
    moved = found.to(tl.int16, bitcast=True) | ((own >> 16) & 0x8000).to(tl.int16)
    nearest = to_float16(x).to(tl.int16, bitcast=True)
    return tl.where(size < 0x477FE000, moved, nearest).to(tl.float16, bitcast=True)


# Numbers of which a bfloat16 is the upper part


@triton.jit
def joined(upper, code):
    """The number of a bfloat16 and a code."""
    wide = upper.to(tl.int16, bitcast=True).to(tl.uint16, bitcast=True).to(tl.int32)
    size = wide & 0x7FFF
    rest = tl.where((size != 0) & (size < 0x7F80), code.to(tl.int32) << 8, 0)
    return ((wide << 16) + rest).to(tl.float32, bitcast=True)


@triton.jit
def _word_of(x, bits):
    """A number rounded to 24 bits by 8 of others."""
    own = x.to(tl.uint32, bitcast=True)
    return tl.where((own & 0x7FFFFFFF) > 0x7F800000, 0x7FC000, (own + (bits & 0xFF)) >> 8)


@triton.jit
def upper_of(x, bits):
    """The bfloat16 of a number."""
    moved = (_word_of(x, bits) + 0x80) >> 8
    return moved.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def lower_of(x, bits):
    """Its code."""
    return _word_of(x, bits).to(tl.int8)


# Records of codecs


@triton.jit
def records(addresses, element):
    """The records at an address in a table, as elements of a type; they begin at words."""
    return tl.multiple_of(tl.load(addresses).to(tl.pointer_type(element)), 4)


@triton.jit
def word_pointer(start):
    """Return a pointer to bytes as one to 32-bit integers."""
    return start.to(tl.pointer_type(tl.int32), bitcast=True)


@triton.jit
def store_where(start, at, value, is_there, MASKED: tl.constexpr):
    """Write a part of records, of which integers lose what does not fit."""
    value = value.to(start.dtype.element_ty)
    if MASKED:
        tl.store(start + at, value, mask=is_there)
    else:
        tl.store(start + at, value)


@triton.jit
def tile_of(x, at, length, MASKED: tl.constexpr):
    """Numbers of a tile, with zeros beyond the last element."""
    x = tl.broadcast_to(x, at.shape)
    if MASKED:
        x = tl.where(at < length, x, 0.0)
    return x


@triton.jit
def peaks_of(x, PARTS: tl.constexpr):
    """The bits of the largest magnitude of each block, of so many rows; NaN is above infinity."""
    peaks = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    if PARTS > 1:
        ROWS: tl.constexpr = x.shape[0]
        several = tl.max(tl.reshape(peaks, (ROWS // PARTS, PARTS)), axis=1)
        peaks = tl.reshape(
            tl.broadcast_to(tl.expand_dims(several, 1), (ROWS // PARTS, PARTS)), (ROWS,)
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
def positive_code(x, dithers, LEAST: tl.constexpr):
    """The bits of codes of real ones that are not negative."""
    moved = tl.where(x > LEAST, x, LEAST * 1.0) + dithers
    return tl.where(x > 0.0, moved, 0.0).to(tl.int32)


@triton.jit
def signed_code(x, dithers):
    """The bits of codes of real ones of any sign."""
    size = tl.abs(x)
    moved = x * tl.where(size < 1.0, size, 1.0) + tl.where(x < 0.0, -dithers, dithers)
    return moved.to(tl.int32)
