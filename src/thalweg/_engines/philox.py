"""Random bits, and stochastic rounding to 16 bits with them; equal on every engine.

Philox4x32-10 (Salmon et al. 2011) computes four words of 32 bits from a key and a counter. The key
is the seed of a training. The counter has the index of a group of eight elements in the full
variable, and the indices of step, variable and stored tensor. Each element of a group receives 16
bits. Therefore the bits do not depend on threads, ranks or restarts.
"""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.random_bits import GROUP, ElementRuns, Positions

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF

Key = tuple[int, int]
# The number of the variable, the positions of its elements, and their number.
DrawnElements = tuple[int, Positions, int]


def philox(counter: tuple[Any, ...], key: Key) -> tuple[Any, ...]:
    """Return four random words of 32 bits for each counter.

    Args:
        counter: Four words of 32 bits, each an int or an int64 tensor.
        key: Two words.
    """
    (first, second), (c0, c1, c2, c3), (k0, k1) = MULTIPLIERS, counter, key
    for _ in range(ROUNDS):
        # Products may overflow int64, which keeps all 64 bits.
        first_product, second_product = c0 * first, c2 * second
        c0 = (second_product >> 32 & MASK) ^ c1 ^ k0
        c1 = second_product & MASK
        c2 = (first_product >> 32 & MASK) ^ c3 ^ k1
        c3 = first_product & MASK
        k0, k1 = (k0 + INCREMENTS[0]) & MASK, (k1 + INCREMENTS[1]) & MASK
    return c0, c1, c2, c3


def draw_bits(
    variables: Sequence[DrawnElements],
    step: int,
    stream: int,
    key: Key,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return 16 random bits for each element of some variables, an int32 vector.

    Args:
        variables: A triple for each variable: index in the optimizer; positions of the elements in
            the full variable (an int is the first of adjacent positions); number of elements.
        step: The number of the step.
        stream: The index of the stored tensor: 0 for the variable, 1 for its first slot ...
        key: Two words of the seed.
    """
    groups: list[Tensor] = []
    variable_indices: list[Tensor] = []
    selections: list[tuple[int, Any]] = []
    for variable_index, origin, count in variables:
        group, selection = _locate_groups(origin, count, device)
        groups.append(group)
        variable_indices.append(torch.full_like(group, variable_index))
        selections.append((len(group), selection))
    group, variable_index = torch.cat(groups), torch.cat(variable_indices)
    # The lower 8 bits are the stream; groups from 2**32 on need the others.
    high = (group >> 32) << 8 | stream
    outputs = torch.stack(philox((group & MASK, step, variable_index, high), key), dim=-1)
    halves = torch.stack([outputs & 0xFFFF, outputs >> 16], dim=-1).to(torch.int32)
    rows = torch.split(halves.view(-1, GROUP), [count for count, _ in selections])
    pairs = zip(rows, selections, strict=True)
    return torch.cat([row.reshape(-1)[selection] for row, (_, selection) in pairs])


def _locate_groups(origin: Positions, count: int, device: torch.device | str) -> tuple[Tensor, Any]:
    """Return the groups that the elements of a shard lie in: groups of eight adjacent positions.

    Args:
        origin: The position of the first element, or the positions of all `count` elements.

    Returns:
        The group numbers, ascending; and a slice or tensor that selects the elements from the
        flattened groups.
    """
    if not isinstance(origin, ElementRuns):
        first = origin // GROUP
        stop = max(-(-(origin + count) // GROUP), first)
        start = origin - first * GROUP
        return torch.arange(first, stop, dtype=torch.int64, device=device), slice(
            start, start + count
        )
    positions = origin.positions()
    groups, rows = np.unique(positions // GROUP, return_inverse=True)
    index = torch.from_numpy(rows * GROUP + positions % GROUP)
    return torch.from_numpy(groups).to(device), index.to(device)


def round_to_bfloat(values: Tensor, bits: Tensor) -> Tensor:
    """Return float32 values rounded stochastically to bfloat16.

    The mean of rounded values is the value. Infinities, NaN and values beyond the largest bfloat16
    are rounded to nearest.

    Args:
        bits: 16 random bits for each value, int32.
    """
    value_bits = values.view(torch.int32)
    magnitude = value_bits & 0x7FFFFFFF
    nearest = value_bits + ((value_bits >> 16 & 1) + 0x7FFF)
    rounded_bits = torch.where(magnitude < 0x7F7F0000, value_bits + bits, nearest)
    upper_halves = torch.where(magnitude > 0x7F800000, 0x7FC0, rounded_bits >> 16)
    return upper_halves.to(torch.int16).view(torch.bfloat16)


def round_to_half(values: Tensor, bits: Tensor) -> Tensor:
    """Return float32 values rounded stochastically to float16; see `round_to_bfloat`."""
    magnitude = values.view(torch.int32) & 0x7FFFFFFF
    # The exponent of a unit in the last place of float16.
    unit_exponent = (magnitude >> 23).clamp(min=113) - 10
    unit = (unit_exponent << 23).view(torch.float32)
    inverse = ((254 - unit_exponent) << 23).view(torch.float32)
    multiples = magnitude.view(torch.float32) * inverse
    floor = multiples.floor()
    remainder = (multiples - floor) * 65536 + bits
    rounded_values = ((floor + (remainder >= 65536)) * unit).copysign(values).to(torch.float16)
    return torch.where(magnitude < 0x477FE000, rounded_values, values.to(torch.float16))  # 65504


def round_randomly(values: Tensor, dtype: torch.dtype, bits: Tensor) -> Tensor:
    """Return float32 values rounded stochastically to float16 or bfloat16."""
    return (round_to_half if dtype == torch.float16 else round_to_bfloat)(values, bits)
