"""Functions of batches of matrices: `tf.linalg`, and TensorFlow 1's `tf.matrix_...`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg.tf.convert import call, pair, tensor
from thalweg.tf.operators import name_function

__all__ = [
    "band_part", "cholesky", "det", "diag", "diag_part", "eigh", "inv", "matrix_transpose", "solve",
    "svd", "trace",
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


# An argument of `svd` has the name `tensor`.
as_tensor = tensor
