"""Functions of batches of matrices: `tf.linalg`, TensorFlow 1's `tf.matrix_...`, and products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import call, pair, tensor
from thalweg.tf.operators import name_function

__all__ = [
    "band_part", "cholesky", "det", "diag", "diag_part", "eigh", "einsum", "inv", "matmul",
    "matrix_transpose", "solve", "svd", "tensordot", "trace",
]  # fmt: skip


def _of_one(
    function: Callable[[Tensor], Tensor], label: str, doc_start: str
) -> Callable[..., Tensor]:
    def apply(input: object, name: str | None = None) -> Tensor:
        return call(function, tensor(input), name=name or label)

    return name_function(apply, label, f"{doc_start}, of each of several.")


cholesky = _of_one(torch.linalg.cholesky, "cholesky", "The lower factor of Cholesky")
det = _of_one(torch.linalg.det, "det", "The determinant")
diag = _of_one(torch.diag_embed, "diag", "The matrix of a diagonal")
diag_part = _of_one(lambda x: x.diagonal(0, -2, -1), "diag_part", "The diagonal of a matrix")
matrix_transpose = _of_one(lambda x: x.mT, "matrix_transpose", "The matrix with rows as columns")
trace = _of_one(lambda x: x.diagonal(0, -2, -1).sum(-1), "trace", "The sum of the diagonal")


def eigh(tensor: object, name: str | None = None) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues, in ascending order, and eigenvectors of a symmetric matrix."""
    decomposition = call(
        lambda x: tuple(torch.linalg.eigh(x)), as_tensor(tensor), name=name or "eigh"
    )
    return decomposition[0], decomposition[1]


def svd(
    tensor: object, full_matrices: bool = False, compute_uv: bool = True, name: str | None = None
) -> Any:
    """Return (s, u, v) with `tensor == u @ diag(s) @ v.mH`; return s if `compute_uv` is False."""
    matrix, label = as_tensor(tensor), name or "svd"
    if not compute_uv:
        return call(torch.linalg.svdvals, matrix, name=label)

    def decompose(x: object) -> tuple[Tensor, Tensor, Tensor]:
        u, s, vh = torch.linalg.svd(x, full_matrices=full_matrices)
        return s, u, vh.mH

    return tuple(call(decompose, matrix, name=label))


def inv(input: object, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Return the inverse of a matrix, or of its adjoint."""

    def invert(x: Tensor) -> Tensor:
        return torch.linalg.inv(x.mH if adjoint else x)

    return call(invert, tensor(input), name=name or "inv")


def solve(matrix: object, rhs: object, adjoint: bool = False, name: str | None = None) -> Tensor:
    """Return the solutions of linear equations, one in each column."""

    def find(a: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve(a.mH if adjoint else a, b)

    return call(find, *pair(matrix, rhs), name=name or "solve")


def band_part(input: object, num_lower: int, num_upper: int, name: str | None = None) -> Tensor:
    """Return a matrix with zeros outside a band of diagonals; -1 keeps a whole side."""

    def keep(x: Tensor) -> Tensor:
        x = torch.triu(x, -int(num_lower)) if num_lower >= 0 else x
        return torch.tril(x, int(num_upper)) if num_upper >= 0 else x

    return call(keep, tensor(input), name=name or "band_part")


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


# An argument of `svd` has the name `tensor`.
as_tensor = tensor
