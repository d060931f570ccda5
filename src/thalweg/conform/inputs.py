"""The parameters and gradients that both optimizers are given."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

STEPS = 20
SHAPES: tuple[tuple[int, ...], ...] = ((), (7,), (24, 16), (16, 24), (6, 8, 3, 3))
MATRICES = tuple(shape for shape in SHAPES if len(shape) == 2)

Shapes = tuple[tuple[int, ...], ...]


def params_of(shapes: Shapes) -> list[Tensor]:
    """Parameters in [-1/8, 1/8], so small that float32 resolves the steps of a small rate."""
    return [_values(shape, 1000 + place, 1024.0).requires_grad_()
            for place, shape in enumerate(shapes)]  # fmt: skip


def gradients_of(step: int, shapes: Shapes) -> list[Tensor]:
    """Gradients of a step, from 0; every third step has larger ones."""
    scale = 32.0 if step % 3 == 0 else 256.0
    return [_values(shape, 17 * step + place, scale) for place, shape in enumerate(shapes)]


def _values(shape: tuple[int, ...], seed: int, scale: float) -> Tensor:
    # Whole numbers of a linear congruence: the same on every machine, with every version.
    count = int(np.prod(shape, dtype=np.int64))
    mixed = (np.arange(count, dtype=np.uint64) + np.uint64(1000003 * (seed + 1))) * np.uint64(
        6364136223846793005
    )
    whole = (mixed >> np.uint64(40)) % np.uint64(257)
    return torch.from_numpy((whole.astype(np.float32) - 128) / np.float32(scale)).reshape(shape)
