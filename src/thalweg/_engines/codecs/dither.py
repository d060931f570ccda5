"""Dithered rounding of 8-bit codes, which keeps small changes of numbers on average.

A mean square moves by a thousandth in a step, and adjacent 8-bit codes may differ by a third. With
rounding to the nearest code, a mean square would not move at all, and a small mean square would
become 0: a step would divide by epsilon. A step therefore adds a number from 0 to 1, the dither, to
the real code, and drops the fraction. On average over the steps, the code equals the real code.

The dither is `element * ELEMENT_STRIDE + step * STEP_STRIDE`, modulo 2**32, as a fraction. It
depends on the step's number and the element's position in the parameter alone. It moves by the
golden ratio in each step, so that the dithers of any run of steps are spread evenly: a number that
falls by a fiftieth of a code in each step loses a code every fifty steps. With random bits, a code
would be lost at random times, and the spread after a long fall would be three times as wide. Step
numbers repeat after 2**24. Optimizers that do not count steps, such as SGD and Lion, divide by no
slot. The dither is then 0.5, which rounds to the nearest code.

Three details:

* A positive number has at least the code `least`. By chance, a number may keep the smallest code
  while it grows to three times its value. If codes begin at 3, that is rare. The largest step over
  random histories is then at most 3 times the step in float32 (`test_dither.py`). In return, steps
  are smaller for roots below 1/85 of the block's largest root (1/250 for `dynamic8_positive`).
* In a signed codec, a real code x between -1 and 1 is replaced by x * |x| before the dither is
  added. Without this, the magnitude of a mean of gradients near 0 would be four times too large.
* A dither is one of 2**16 values, half a unit away from 0 and 1. An integer code is unchanged.
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
    """Return float32 dithers (rounding offsets) of `count` elements in a step.

    All dithers are 0.5 if `step` is negative.

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
        codec: If `codec.positive`, codes above 0 become at least `codec.least`; 0 stays 0.
        codes: Real numbers from `Codec.encode`.
        dithers: The dither of each code, from `dithers_of`.
    """
    if codec.positive:
        dithered = codes.clamp(min=codec.least) + dithers
        return torch.where(codes > 0, dithered, 0).to(torch.int16)
    small = codes * codes.abs().clamp(max=1)
    return (small + torch.copysign(dithers, codes)).to(torch.int16)
