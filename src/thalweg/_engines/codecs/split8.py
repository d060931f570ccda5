"""split8: 24-bit numbers as the nearest bfloat16, the variable, and a correction, the slot.

A number is rounded to 16 significant bits, ties away from zero, and then to a bfloat16 of 8
significant bits, ties away from zero. A code is the difference, from -128 to 127, in 256ths of a
last place of the bfloat16, counted away from zero. Together they are one 24-bit integer, whose
lower part is the code. NaN, infinities and zeros come from the bfloat16 alone: a variable that
other code sets to zero is zero.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from thalweg._engines.codecs.codec import Codec, as_it_is

Float32 = npt.NDArray[np.float32]
Uint16 = npt.NDArray[np.uint16]
Uint8 = npt.NDArray[np.uint8]

CORRECTION = "correction"  # the name of the slot
HALF = 0x80  # half of a bfloat16's last place, in codes; half of a code, in bits of float32
INFINITY = 0x7F80  # the bits of a bfloat16
NAN = 0x7FC000  # the 24 bits of NaN


def split_numbers(
    numbers: Float32, bits: npt.NDArray[np.uint32] | None = None
) -> tuple[Uint16, Uint8]:
    """Return the bits of the nearest bfloat16 numbers, and codes, both of the shape of `numbers`.

    A code is an int8 in the bits of a uint8: the 24-bit number less 256 times the bits of the
    bfloat16. NaN becomes the NaN of bfloat16 with code 0.

    Args:
        numbers: Numbers of any shape.
        bits: Optional. Random bits, of which the lower 8 round to 24 bits in place of the nearest.
    """
    number_bits = np.ascontiguousarray(numbers).view(np.uint32)
    incremented_bits = number_bits + (np.uint32(HALF) if bits is None else bits & np.uint32(0xFF))
    is_nan = (number_bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    words = np.where(is_nan, np.uint32(NAN), incremented_bits >> np.uint32(8))
    upper = (words + np.uint32(HALF)) >> np.uint32(8)
    return upper.astype(np.uint16), words.astype(np.uint8)


def lower_beside(numbers: Float32, upper: Uint16) -> Uint8:
    """Return the codes of numbers for given bfloat16 bits, at most half a last place away."""
    words = (numbers.view(np.uint32).astype(np.int64) + HALF) >> 8
    codes = np.clip(words - (upper.astype(np.int64) << 8), -128, 127)
    is_finite = (upper & np.uint16(0x7FFF)) < INFINITY
    return (codes * is_finite).astype(np.int8).view(np.uint8)


def join_numbers(upper: Uint16, codes: Uint8) -> Float32:
    """Return the numbers of bfloat16 bits and codes."""
    size = upper & np.uint16(0x7FFF)
    is_nonzero_finite = (size != 0) & (size < INFINITY)
    signed = codes.view(np.int8).astype(np.int32) * is_nonzero_finite
    words = (upper.astype(np.int32) << 16) + (signed << 8)
    return words.view(np.float32)


SPLIT8 = Codec("split8", block=1, signed=True, encode=as_it_is, decode=as_it_is, is_beside=True)
