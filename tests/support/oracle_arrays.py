"""Arrays that an oracle in NumPy and the library are both given."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from thalweg import IndexedSlices

Array = np.ndarray[Any, Any]
Gradient = tuple[Array, Any]  # values and indices, or None for all


def starts(shapes: dict[str, tuple[int, ...]], dtype: Any) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def as_gradient(grad: Gradient | None) -> Any:
    if grad is None:
        return None
    values, indices = torch.from_numpy(grad[0].copy()), grad[1]
    return values if indices is None else IndexedSlices(values, torch.from_numpy(indices))
