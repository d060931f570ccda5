"""Weights of losses and metrics, and means that are 0 where nothing weighs anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg.errors import InvalidArgumentError


def quotient(total: Any, count: Any) -> Tensor:
    """Return the quotient, 0 where `count` is 0."""
    empty = count == 0
    return torch.where(empty, 0, total / torch.where(empty, 1, count))


def check_weights(weights: Any, values: Any, what: str) -> None:
    """TensorFlow's rule of how weights broadcast, which is narrower than that of arithmetic.

    Args:
        weights: A tensor.
        values: What they weigh.
        what: What those are called.

    Raises:
        InvalidArgumentError: The weights are no number, and have other dimensions.
    """
    sizes = tuple(weights.shape)
    fits = len(sizes) == values.dim() and all(
        size in (1, own) for size, own in zip(sizes, values.shape, strict=True)
    )
    if sizes and not fits:
        raise InvalidArgumentError(
            f"weights of shape {sizes} cannot be broadcast to {what} of shape"
            f" {tuple(values.shape)}: they need as many dimensions, each the same or 1."
        )
