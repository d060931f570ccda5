"""Random bits, and stochastic rounding to 16 bits with them; equal on every engine.

Philox4x32-10 (Salmon et al. 2011) computes four words of 32 bits from a key and a counter. The key
is the seed of a training. The counter has the position of an element in the full variable, in
groups of eight, and the numbers of the step, the variable and the stored stream. Each of the eight
elements of a call receives 16 bits. Therefore the bits do not depend on threads, ranks or restarts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.random_bits import GROUP, SCALARS, Positions, positions_of

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF

Words = npt.NDArray[np.uint64]


def philox(counter: tuple[Words, int, int, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """Return the four random words of each counter, 32 bits each in uint64.

    Args:
        counter: Four words of 32 bits, each in 64.
        key: Two words.
    """
    mask, (first, second) = np.uint64(MASK), map(np.uint64, MULTIPLIERS)
    c0, c1, c2, c3 = (np.asarray(part, np.uint64) for part in counter)
    k0, k1 = key
    for _ in range(ROUNDS):
        first_product, second_product = first * c0, second * c2
        c0 = (second_product >> np.uint64(32)) ^ c1 ^ np.uint64(k0)
        c1 = second_product & mask
        c2 = (first_product >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c3 = first_product & mask
        k0, k1 = (k0 + INCREMENTS[0]) & MASK, (k1 + INCREMENTS[1]) & MASK
    return c0, c1, c2, c3


def draw_bits(
    count: int, origin: Positions, step: int, number: int, stream: int, key: tuple[int, int]
) -> npt.NDArray[np.uint32]:
    """Return 16 random bits for each of `count` elements, as (count,) uint32.

    Args:
        count: The number of elements.
        origin: The positions of the elements in the full variable, or that of the first of adjacent
            ones.
        step, number: The numbers of the step and of the variable.
        stream: The stored number of an element: 0 for the variable, 1 for its first slot ...
        key: Two words of the seed.
    """
    positions = positions_of(origin, count)
    groups, rows = np.unique(positions // GROUP, return_inverse=True)
    groups = groups.astype(np.uint64)
    high = (groups >> np.uint64(32)) << np.uint64(8) | np.uint64(stream)
    counter = groups & np.uint64(MASK), step, number, high
    words = np.stack(np.broadcast_arrays(*philox(counter, key)), axis=-1)
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=-1)
    return halves.astype(np.uint32).reshape(-1, GROUP)[rows, positions % GROUP]


def round_to_bfloat(
    values: npt.NDArray[np.float32], bits: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint16]:
    """Return the bits of values rounded stochastically to bfloat16.

    The upper neighbor is chosen with the probability that makes the mean exact. Infinities, NaN
    and values beyond the largest bfloat16 are rounded to nearest.
    """
    words = values.view(np.uint32)
    magnitude = words & np.uint32(0x7FFFFFFF)
    rounded_words = np.where(
        magnitude < np.uint32(0x7F7F0000), words + bits, words + ((words >> 16 & 1) + 0x7FFF)
    )
    upper_halves = np.where(
        magnitude > np.uint32(0x7F800000), np.uint32(0x7FC0), rounded_words >> 16
    )
    return upper_halves.astype(np.uint16)


def round_to_half(
    values: npt.NDArray[np.float32], bits: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint16]:
    """Return the bits of values rounded stochastically to float16; see `round_to_bfloat`."""
    magnitude = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
    # The exponent of a unit in the last place of float16.
    unit_exponent = np.maximum(magnitude >> np.uint32(23), np.uint32(113)) - np.uint32(10)
    unit = (unit_exponent << np.uint32(23)).view(np.float32)
    inverse = ((np.uint32(254) - unit_exponent) << np.uint32(23)).view(np.float32)
    with np.errstate(all="ignore"):
        multiples = magnitude.view(np.float32) * inverse
        floor = np.floor(multiples)
        remainder = (multiples - floor) * np.float32(65536) + bits.astype(np.float32)
        rounded_magnitude = (floor + (remainder >= 65536).astype(np.float32)) * unit
        nearest = values.astype(np.float16).view(np.uint16)
        sign = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16) & np.uint16(0x8000)
        rounded_bits = rounded_magnitude.astype(np.float16).view(np.uint16) | sign
    return np.where(magnitude < np.uint32(0x477FE000), rounded_bits, nearest)  # 65504


def round_tensor(
    values: Tensor,
    var: Tensor,
    dtype: torch.dtype,
    position: tuple[int, Positions],
    stream: int,
    scalars: Mapping[str, Any],
) -> Tensor:
    """Return values rounded stochastically to 16 bits, with bits in the variable's memory order.

    Args:
        values: The new values of the variable or of a slot, of the variable's shape, in float32.
        var: The variable.
        dtype: float16 or bfloat16.
        position: The number of the variable, and the positions of its elements in the full one.
        stream: As for `draw_bits`.
        scalars: The scalars of kernels, with the step and the words of the seed.
    """
    template = var if layout.is_dense(var) else torch.empty(var.shape, dtype=dtype, device="meta")
    new_values = torch.empty_like(
        template, dtype=dtype, device="cpu", memory_format=torch.preserve_format
    )
    numbers = torch.empty_like(new_values, dtype=torch.float32).copy_(values)
    flat = numbers.as_strided((var.numel(),), (1,)).numpy()
    step, low, high = (int(scalars[name]) for name in SCALARS)
    bits = draw_bits(var.numel(), position[1], step, position[0], stream, (low, high))
    round_to = round_to_half if dtype == torch.float16 else round_to_bfloat
    rounded_bits = torch.from_numpy(round_to(flat, bits).view(np.int16)).view(dtype)  # pyright: ignore
    new_values.as_strided((var.numel(),), (1,)).copy_(rounded_bits)
    return new_values.to(values.device)
