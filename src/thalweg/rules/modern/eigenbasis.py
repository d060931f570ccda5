"""Shampoo's factors and their eigenvectors, of batches of matrices.

A side that is too long has an empty factor and an empty basis.
"""

# Pyright takes `torch` for the package beside this one.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false
import torch

from thalweg._base.device_numbers import decompose

_TINY = 1e-30  # added to a factor's diagonal before its first eigenvectors


def side(rows, columns, *, largest, of_columns):
    """Return the shape of a side's factor; (0, 0) for a side that is too long."""
    size = columns if of_columns else rows
    return (size, size) if size <= largest else (0, 0)


def turn(matrices, rows, columns):
    """Return matrices rotated into the eigenbases; an empty basis leaves a side unchanged."""
    rotated = rows.mT @ matrices if rows.numel() else matrices
    return rotated @ columns if columns.numel() else rotated


def turn_back(matrices, rows, columns):
    """Rotate matrices back from the basis."""
    rotated = rows @ matrices if rows.numel() else matrices
    return rotated @ columns.mT if columns.numel() else rotated


def first_basis(factor):
    """Return the eigenvectors (batch, n, n) of `factor`, by decreasing eigenvalue.

    Return an empty factor itself. A factor with NaN or infinity is replaced by the identity.
    """
    if not factor.numel():
        return factor
    eye = torch.eye(factor.shape[1], dtype=factor.dtype, device=factor.device)
    # One non-finite factor would make `eigh` fail for the whole batch.
    is_finite = factor.isfinite().all(2, keepdim=True).all(1, keepdim=True)
    factor = torch.where(is_finite, factor, eye)
    vectors = decompose(lambda x: torch.linalg.eigh(x).eigenvectors, factor + _TINY * eye)
    return vectors.flip(2)


def next_basis(factor, basis):
    """Return (basis after a power iteration, sorting order of the old vectors; None if empty)."""
    if not factor.numel():
        return basis, None
    powered = factor @ basis
    # Rows and columns of the mean squares move with their basis vectors: see `reorder`.
    order = (basis * powered).sum(1).argsort(dim=1, descending=True)
    index = order.unsqueeze(1).expand_as(powered)
    return decompose(lambda x: torch.linalg.qr(x).Q, powered.gather(2, index)), order


def reorder(square, rows, columns):
    """Return mean squares in the order of `next_basis`; None keeps the order of a side."""
    if rows is not None:
        square = square.gather(1, rows.unsqueeze(2).expand_as(square))
    if columns is not None:
        square = square.gather(2, columns.unsqueeze(1).expand_as(square))
    return square


def whiten(factor, basis, epsilon):
    """Return KL-Shampoo's divisor of gradients for a side; None for a side without a factor."""
    if not basis.numel():
        return None
    values = (basis * (factor @ basis)).sum(1, keepdim=True).clamp(min=epsilon)
    return (basis / (values * basis.shape[1])) @ basis.mT


def add_product(factor, grad, whitening, weight):
    """Return `factor` interpolated to grad @ whitening @ grad.T; None means no whitening."""
    if not factor.numel():
        return factor
    square = grad @ grad.mT if whitening is None else grad @ whitening @ grad.mT
    return factor + weight * (square - factor)
