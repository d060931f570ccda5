"""Dithered rounding of 8-bit codes, which keeps small changes of numbers on average.

A mean square moves by a thousandth in a step, and two codes of 8 bits may differ by a third.
Rounded to the nearest code, it stays where it is: it neither grows with the gradients nor falls
with them, and what is far below the largest number of its block becomes 0, so that a step divides
by epsilon. A step therefore adds a number from 0 to 1, the dither, and drops the fraction. A code
goes up as often as the number is near the upper one, and the mean of the codes is the number.

The dither is `element * ELEMENT_STRIDE + step * STEP_STRIDE`, modulo 2**32, as a fraction. From
step to step it moves by the golden ratio, so that the dithers of any run of steps are spread
evenly: a number that falls by a fiftieth of a code in each step loses a code every fifty steps.
Random bits would lose a code at random times, and spread three times as wide after a long fall. It
depends on nothing but the number of the step and the place of the element in its parameter, and
costs a multiplication. Step numbers repeat after 2**24. Optimizers that do not count their steps,
such as SGD and Lion, divide by no slot: their dither is a half, for the nearest code.

Three details:

* A positive number has at least the code `least`. The smallest code may hold for a number that
  has grown three times as large by chance; where codes begin at 3, that is rare. The largest step
  over random histories is then at most 3 times that of float32 (`test_dither.py`). What is smaller
  than 1/85 of the largest root in a block (1/250 of `dynamic8_positive`) takes smaller steps in
  return.
* A number of both signs that is below the first code goes up by the square of its share. With the
  share itself a mean of gradients that is almost 0 would be a whole code too often: its magnitude
  would be four times too large.
* A dither is one of 2**16, half a unit away from 0 and 1: what is a code stays that code.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thalweg._engines.codecs.codec import Codec
from thalweg._engines.random_bits import Positions, tensor_of_positions

PERIOD = 256  # distinct dithers of a step
TURN = 151  # change of rank between elements that are a period apart
ELEMENT_STRIDE = 0x6A09E667  # fractional bits of the square root of 2
STEP_STRIDE = 0x9E3779B9  # fractional bits of the golden ratio
MASK = 0xFFFFFFFF
SHIFT = 18  # unused low bits of a sum
UNIT = 2.0**-14


def dithers_of(
    count: int, step: int, origin: Positions = 0, device: torch.device | str = "cpu"
) -> Tensor:
    """Return the float32 dithers of `count` elements in a step; 0.5 if `step` is negative.

    Args:
        origin: The positions of the elements in the full parameter. An int is the first position.
    """
    if step < 0:
        return torch.full((count,), 0.5, dtype=torch.float32, device=device)
    elements = tensor_of_positions(origin, count, device)
    ranks = (elements + (elements // PERIOD) * TURN) % PERIOD
    sums = (ranks * ELEMENT_STRIDE + (step * STEP_STRIDE & MASK)) & MASK
    return ((sums >> SHIFT).to(torch.float32) + 0.5) * UNIT


def round_codes(codec: Codec, codes: Tensor, dithers: Tensor) -> Tensor:
    """Round real codes to int16 codes: add the dither of each code, and drop the fraction.

    Args:
        codec: If `codec.positive`, codes above 0 become at least `codec.least`, and other codes 0.
        codes: Real numbers from `Codec.encode`.
        dithers: The dither of each code, from `dithers_of`.
    """
    if codec.positive:
        dithered = codes.clamp(min=codec.least) + dithers
        return torch.where(codes > 0, dithered, 0).to(torch.int16)
    small = codes * codes.abs().clamp(max=1)
    return (small + torch.copysign(dithers, codes)).to(torch.int16)
