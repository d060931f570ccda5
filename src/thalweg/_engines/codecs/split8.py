"""split8: numbers of 24 bits, whose upper 16 are the variable, a bfloat16; the slot has the rest.

A number is rounded to the nearest that has 16 digits, ties away from zero, and that again to a
bfloat16 of 8, ties away from zero. A code is the difference, from -128 to 127 of 256ths of what a
last place of the bfloat16 is worth, along the numbers of its sign: so both are one integer of 24
bits, of which the code is the lower part. NaN, infinities and zeros are the bfloat16's, whatever
the code: what becomes of a variable that others set to zero is zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thalweg._engines.codecs.codec import Codec, as_it_is

Float32 = npt.NDArray[np.float32]
Uint16 = npt.NDArray[np.uint16]
Uint8 = npt.NDArray[np.uint8]

CORRECTION = "correction"  # what the slot is called
HALF = 0x80  # half of what a code's last place is worth, and half of a bfloat16's, in codes
INFINITY = 0x7F80  # the bits of a bfloat16
NAN = 0x7FC000  # the 24 bits of NaN


def split_numbers(
    numbers: Float32, bits: npt.NDArray[np.uint32] | None = None
) -> tuple[Uint16, Uint8]:
    """The bits of bfloat16, and codes.

    Args:
        numbers: Of any shape.
        bits: Random ones, of which the lower 8 round to 24 bits in place of the nearest.
    """
    number_bits = np.ascontiguousarray(numbers).view(np.uint32)
    incremented_bits = number_bits + (np.uint32(HALF) if bits is None else bits & np.uint32(0xFF))
    is_nan = (number_bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    words = np.where(is_nan, np.uint32(NAN), incremented_bits >> np.uint32(8))
    upper = (words + np.uint32(HALF)) >> np.uint32(8)
    return upper.astype(np.uint16), words.astype(np.uint8)


def lower_beside(numbers: Float32, upper: Uint16) -> Uint8:
    """The codes of numbers beside bfloat16 that others have rounded, at most half a place away."""
    words = (numbers.view(np.uint32).astype(np.int64) + HALF) >> 8
    codes = np.clip(words - (upper.astype(np.int64) << 8), -128, 127)
    is_finite = (upper & np.uint16(0x7FFF)) < INFINITY
    return (codes * is_finite).astype(np.int8).view(np.uint8)


def join_numbers(upper: Uint16, codes: Uint8) -> Float32:
    """The numbers of which that is the upper part and the rest."""
    size = upper & np.uint16(0x7FFF)
    is_nonzero_finite = (size != 0) & (size < INFINITY)
    signed = codes.view(np.int8).astype(np.int32) * is_nonzero_finite
    words = (upper.astype(np.int32) << 16) + (signed << 8)
    return words.view(np.float32)


SPLIT8 = Codec("split8", block=1, signed=True, encode=as_it_is, decode=as_it_is, is_beside=True)
