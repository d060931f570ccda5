"""What kernels call that round by random bits, or have slots in codes of 8 bits.

Integers are of 32 bits without a sign, as in `thalweg.engines.philox`, `codecs.records` and
`codecs.split8`, which say what is computed here; numbers are float32.
"""

# Code for Triton, which has no types.
# pyright: basic
# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl

from thalweg.engines.cuda.functions import to_float16

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
        step, number, stream: As for `thalweg.engines.philox.draw_bits`.
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
