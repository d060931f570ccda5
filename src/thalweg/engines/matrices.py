"""Variables as matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import dtype_name

Shape = Callable[[int, int], tuple[int, ...]]  # of a slot, of rows and columns


def matrix_shape(var: Tensor) -> tuple[int, int]:
    """Rows and columns of a variable: its first dimension, and all others."""
    return var.shape[0], var.shape[1:].numel()


def check_matrices(rule: str, variables: Sequence[Tensor], titles: Sequence[str]) -> None:
    """Refuse variables that are no matrices.

    Args:
        rule: What they are for, in words.
        variables, titles: The variables, with a name for each.

    Raises:
        InvalidArgumentError: One has fewer than two dimensions.
        InvalidTypeError: One has another dtype than float32, float64 and bfloat16.
    """
    for var, title in zip(variables, titles, strict=True):
        if var.dim() < 2:
            raise InvalidArgumentError(
                f"'{title}' has shape {tuple(var.shape)}, and {rule} is for matrices, of two"
                " dimensions or more: select another rule for it, such as AdamW."
            )
        if var.dtype not in (torch.float32, torch.float64, torch.bfloat16):
            raise InvalidTypeError(
                f"'{title}' is {dtype_name(var.dtype)}, and {rule} is for float32, float64 and"
                " bfloat16."
            )


def shaped_like(var: Tensor, shape: Shape) -> Tensor:
    """A tensor without memory, of the shape of a slot beside a variable."""
    return torch.empty(shape(*matrix_shape(var)), dtype=var.dtype, device="meta")
