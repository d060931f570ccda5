"""Products of matrices and tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import call, pair, tensor

__all__ = ["einsum", "matmul", "tensordot"]


def matmul(
    a: object,
    b: object,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return the matrix product, in batches if there are more dimensions; an adjoint is the
    conjugate of the transposed matrix. `a_is_sparse` and `b_is_sparse` are ignored.

    Raises:
        InvalidArgumentError: One of the two is no matrix, or is to be transposed in both ways.
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise InvalidArgumentError("Give one of transpose and adjoint for a matrix.")

    def product(left: Tensor, right: Tensor) -> Tensor:
        if min(left.dim(), right.dim()) < 2:
            shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
            raise InvalidArgumentError(f"matmul takes matrices, not tensors of shapes {shapes}.")
        left = left.mT if transpose_a else left.mH if adjoint_a else left
        return left @ (right.mT if transpose_b else right.mH if adjoint_b else right)

    return call(product, *pair(a, b), name=name or "MatMul")


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Tensor:
    """Return the sum of products over pairs of axes: a number of last and first ones, or two lists,
    or one of each.
    """
    if not isinstance(axes, int):
        axes = [[each] if isinstance(each, int) else [*map(int, each)] for each in axes]
    return call(lambda x, y: torch.tensordot(x, y, axes), *pair(a, b), name=name or "Tensordot")


def einsum(equation: str, *inputs: object, name: str | None = None) -> Tensor:
    """Einstein's summation convention."""
    parts = [tensor(item) for item in inputs]
    return call(lambda *given: torch.einsum(equation, *given), *parts, name=name or "einsum")
