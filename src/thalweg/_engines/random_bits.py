"""Inputs of random bits (see `philox`): positions of elements, and scalars of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.array_types import Int64

GROUP = 8  # elements of one call of Philox
STEPS = 1 << 24  # after which the bits of a variable repeat; a scalar of float32 counts so far
SEEDS = 1 << 48
NARROW = frozenset(("float16", "bfloat16"))  # the dtypes that are rounded randomly
SCALARS = ("draw_step", "draw_key_low", "draw_key_high")  # of kernels
# Scalars of optimizers that do not count steps: codes are rounded to the nearest.
UNCOUNTED = {SCALARS[0]: -1.0}


@dataclass(frozen=True, eq=False)
class ElementRuns:
    """Positions of the elements of a shard in the full variable, as runs of adjacent positions.

    Attributes:
        firsts: (runs,) the position of the first element of each run.
        lengths: (runs,) the number of elements of each run.
    """

    firsts: Int64
    lengths: Int64

    def positions(self) -> Int64:
        steps = np.arange(int(self.lengths.sum()), dtype=np.int64)
        offsets = np.cumsum(self.lengths) - self.lengths
        return steps + np.repeat(self.firsts - offsets, self.lengths)


# The positions of the elements of a variable: that of the first one, if all are adjacent.
Positions = int | ElementRuns
# The number of the random stream of a variable, or None for the nearest numbers; and positions.
Place = tuple[int | None, Positions]


def tensor_of_positions(origin: Positions, count: int, device: torch.device | str) -> Tensor:
    """Return the position of each of `count` elements, as an int64 tensor of a device."""
    if isinstance(origin, ElementRuns):
        return torch.from_numpy(origin.positions()).to(device)  # pyright: ignore[reportUnknownMemberType]
    return torch.arange(origin, origin + count, dtype=torch.int64, device=device)


def scalars_of(seed: int, step: Any) -> dict[str, Any]:
    """Return {name: scalar} for kernels that draw random bits.

    Args:
        step: The number of the step from 0: a number, or a tensor, which stays on its device.
    """
    # A scalar may be float32, which has all integers up to 2**24.
    low, high = map(float, (seed % STEPS, seed // STEPS))
    return {**step_scalar(step), SCALARS[1]: low, SCALARS[2]: high}


def step_scalar(step: Any) -> dict[str, Any]:
    """Return {name: scalar} for the number of a step; see `scalars_of`."""
    # A number, a tensor or a symbol.
    remainder = step % STEPS
    return {SCALARS[0]: float(remainder) if isinstance(remainder, int | float) else remainder}
