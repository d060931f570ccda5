"""Parameters and gradients for both optimizers."""

# torch does not annotate `from_numpy`.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

STEPS = 20
SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (24, 16), (16, 24), (6, 8, 3, 3))
MATRICES = tuple(shape for shape in SHAPES if len(shape) == 2)

Shapes = tuple[tuple[int, ...], ...]


def params_of(shapes: Shapes) -> list[Tensor]:
    """Return parameters in [-1/8, 1/8], where float32 resolves steps of a small learning rate."""
    return [_values(shape, 1000 + index, 1024.0).requires_grad_()
            for index, shape in enumerate(shapes)]  # fmt: skip


def gradients_of(step: int, shapes: Shapes) -> list[Tensor]:
    """Return the gradients of a step, counted from 0; those of every third step are larger."""
    scale = 32.0 if step % 3 == 0 else 256.0
    return [_values(shape, 17 * step + index, scale) for index, shape in enumerate(shapes)]


def _values(shape: tuple[int, ...], seed: int, scale: float) -> Tensor:
    """Return a tensor of pseudorandom integers in [-128, 128], divided by `scale`."""
    # A linear congruence of integers has the same values on every machine and version.
    # Values are multiples of a power of 2, which float32 holds exactly.
    count = int(np.prod(shape, dtype=np.int64))
    mixed = (np.arange(count, dtype=np.uint64) + np.uint64(1000003 * (seed + 1))) * np.uint64(
        6364136223846793005
    )
    integers = (mixed >> np.uint64(40)) % np.uint64(257)
    return torch.from_numpy((integers.astype(np.float32) - 128) / np.float32(scale)).reshape(shape)
