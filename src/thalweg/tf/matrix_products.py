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
    """Return the product of matrices, or of batches of matrices.

    An adjoint is the conjugate of the transposed matrix. `a_is_sparse`, `b_is_sparse` are ignored.
    Raise InvalidArgumentError if an operand is not a matrix, or both transposed and adjoint.
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        raise InvalidArgumentError("Give one of transpose and adjoint for a matrix.")

    def product(lhs: Tensor, rhs: Tensor) -> Tensor:
        if min(lhs.dim(), rhs.dim()) < 2:
            shapes = f"{tuple(lhs.shape)} and {tuple(rhs.shape)}"
            raise InvalidArgumentError(f"matmul takes matrices, not tensors of shapes {shapes}.")
        lhs = lhs.mT if transpose_a else lhs.mH if adjoint_a else lhs
        return lhs @ (rhs.mT if transpose_b else rhs.mH if adjoint_b else rhs)

    return call(product, *pair(a, b), name=name or "MatMul")


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Tensor:
    """Return the sum of products over pairs of axes: a count of last and first axes, or lists."""
    if not isinstance(axes, int):
        axes = [
            [axis_or_axes] if isinstance(axis_or_axes, int) else [*map(int, axis_or_axes)]
            for axis_or_axes in axes
        ]
    return call(lambda x, y: torch.tensordot(x, y, axes), *pair(a, b), name=name or "Tensordot")


def einsum(equation: str, *inputs: object, name: str | None = None) -> Tensor:
    """Compute a sum of products by Einstein's summation convention."""
    operands = [tensor(item) for item in inputs]
    return call(lambda *tensors: torch.einsum(equation, *tensors), *operands, name=name or "einsum")
