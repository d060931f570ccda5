"""split8: numbers of 24 bits, stored as a bfloat16 (the variable) and a correction (the slot).

A number is rounded to 16 significant bits, ties away from zero, and then to a bfloat16 of 8
significant bits, ties away from zero. A code is the difference, from -128 to 127, in 256ths of a
last place of the bfloat16, counted away from zero. Together they are one 24-bit integer, whose
lower part is the code. NaN, infinities and zeros come from the bfloat16 alone: a variable that
other code sets to zero is zero.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg._engines.codecs.codec import Codec, as_it_is

CORRECTION = "correction"  # the name of the slot
HALF = 0x80  # half of a bfloat16's last place, in codes; half of a code, in bits of float32
INFINITY = 0x7F80  # the bits of a bfloat16
NAN = 0x7FC000  # the 24 bits of NaN


def split_numbers(values: Tensor, bits: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the nearest bfloat16 numbers, and codes in uint8, both of the shape of `values`.

    A code is the upper 24 bits of a number minus the bits of the bfloat16: an int8, stored as a
    uint8. NaN becomes the NaN of bfloat16 with code 0.

    Args:
        values: Float32 numbers of any shape.
        bits: Optional. Random integers for stochastic rounding to 24 bits; the lower 8 bits are
            used. By default numbers are rounded to nearest.
    """
    value_bits = values.view(torch.int32)
    incremented_bits = value_bits + (HALF if bits is None else bits & 0xFF)
    is_nan = (value_bits & 0x7FFFFFFF) > 0x7F800000
    rounded_bits = torch.where(is_nan, NAN, (incremented_bits >> 8) & 0xFFFFFF)
    # Sign-extended, as int16 has it.
    upper = (rounded_bits + HALF) << 8 >> 16
    return upper.to(torch.int16).view(torch.bfloat16), (rounded_bits & 0xFF).to(torch.uint8)


def lower_beside(values: Tensor, upper: Tensor) -> Tensor:
    """Return uint8 codes that correct the bfloat16 `upper` to the float32 `values`.

    A correction outside [-128, 127] is clamped. The code is 0 if `upper` is infinite or NaN.
    """
    rounded_bits = (values.view(torch.int32).long() + HALF) >> 8
    upper_bits = upper.view(torch.int16).long()
    codes = (rounded_bits - (upper_bits << 8)).clamp(-128, 127)
    is_finite = (upper_bits & 0x7FFF) < INFINITY
    return (codes * is_finite).to(torch.int8).view(torch.uint8)


def join_numbers(upper: Tensor, codes: Tensor) -> Tensor:
    """Return the float32 numbers of bfloat16 numbers and codes."""
    upper_bits = upper.view(torch.int16).int()
    size = upper_bits & 0x7FFF
    is_nonzero_finite = (size != 0) & (size < INFINITY)
    signed = codes.view(torch.int8).int() * is_nonzero_finite
    return ((upper_bits << 16) + (signed << 8)).view(torch.float32)


SPLIT8 = Codec("split8", block=1, signed=True, encode=as_it_is, decode=as_it_is, is_beside=True)
