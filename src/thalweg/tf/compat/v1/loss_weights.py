"""Weights of losses and metrics, and weighted means."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg.errors import InvalidArgumentError


def quotient(total: Any, count: Any) -> Tensor:
    """Return the quotient, 0 where `count` is 0."""
    empty = count == 0
    return torch.where(empty, 0, total / torch.where(empty, 1, count))


def squeeze_column(operand: Tensor, rank: int) -> Tensor:
    """Return `operand` without a last dimension of size 1, if `rank` dimensions remain."""
    is_column = operand.dim() == rank + 1 and operand.shape[-1] == 1
    return operand.squeeze(-1) if is_column else operand


def check_weights(weights: Any, values: Any, values_name: str) -> None:
    """Raise InvalidArgumentError unless weights fit a tensor of values.

    Args:
        weights: A scalar, or a tensor that broadcasts to `values` and has as many dimensions.
        values: The weighted tensor.
        values_name: Name of the values in messages.
    """
    sizes = tuple(weights.shape)
    fits = len(sizes) == values.dim() and all(
        size in (1, value_size) for size, value_size in zip(sizes, values.shape, strict=True)
    )
    if sizes and not fits:
        raise InvalidArgumentError(
            f"weights of shape {sizes} cannot be broadcast to {values_name} of shape"
            f" {tuple(values.shape)}: they need as many dimensions, each the same or 1."
        )
