"""Sums of duplicate rows of sparse gradients, for uses that need each row once.

Torch's `coalesce` adds in an order that depends on the machine, and 16-bit rows in 16 bits. Here
rows are added in their order, and in float32 at least, as by rules that sum rows themselves.
"""

# Types of a few of torch's functions are unknown.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._core.validation import check_readable
from thalweg._engines.layout import check_memory
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import REDUCED

is_sparse: Any = Tensor.is_sparse.__get__  # pyright: ignore


def all_summed(
    pairs: list[tuple[Any, Tensor]], get_labels: Callable[[Sequence[Tensor]], list[str]]
) -> list[tuple[Any, Tensor]]:
    """Return the pairs, with repeated rows of sparse gradients summed; see `summed`.

    Args:
        pairs: (gradient, tensor to update). The list itself is returned if no gradient is sparse.
        get_labels: `get_labels([tensor])` returns a list with the tensor's name.

    Raises:
        LayoutError: A sparse gradient has no memory that holds its elements.
    """
    if not any(map(is_sparse, [grad for grad, _ in pairs])):
        return pairs
    return [
        (summed(grad, var.dtype, *get_labels([var])) if is_sparse(grad) else grad, var)
        for grad, var in pairs
    ]


def rows_of(grad: Tensor, label: str) -> IndexedSlices:
    """Return a sparse gradient as `IndexedSlices`, without a copy.

    Raises:
        LayoutError: The storage of the gradient's indices was freed or truncated.
    """
    check_memory(grad._indices(), f"The indices of the gradient of '{label}'")
    return IndexedSlices.from_sparse(grad)


def check_inside(tensor: Tensor, description: str) -> None:
    """Raise an error if a sparse tensor has an index outside of its shape.

    Args:
        description: The beginning of the message, such as "The gradient of 'w'".

    Raises:
        InvalidArgumentError: An index is outside of the shape; the message names the first.
    """
    sparse_shape = tensor.shape[: tensor.sparse_dim()]
    sizes = torch.tensor(sparse_shape, dtype=torch.int64, device=tensor.device)[:, None]
    indices = tensor._indices()
    invalid_indices = ((indices < 0) | (indices >= sizes)).any(0).nonzero()
    if len(invalid_indices):
        index = int(invalid_indices[0])
        raise InvalidArgumentError(
            f"{description} has shape {tuple(tensor.shape)}, and indices[{index}] ="
            f" {cast('list[int]', indices[:, index].tolist())} is not in it."
        )


def is_misplaced(tensor: Tensor) -> bool:
    """Return True if torch would add a sparse tensor to a view at wrong elements.

    Torch has this error for tensors without dense dimensions that are coalesced or have at most one
    entry.
    """
    return not tensor.dense_dim() and (tensor.is_coalesced() or tensor._nnz() < 2)


def summed(grad: Tensor, dtype: torch.dtype, label: str) -> Tensor:
    """Return a sparse gradient with unique ascending rows. Repeated rows are summed.

    Rows are added in their order, 16-bit rows in float32. `grad` itself is returned if its rows are
    unique and ascending, if a row is out of range, or if no rule supports `grad`.

    Args:
        dtype: The dtype of the variable. With float32, sums of 16-bit rows stay float32. With other
            dtypes, sums are rounded to the dtype of the rows.
        label: The variable's name, for the message.

    Raises:
        LayoutError: The storage of the gradient was freed or truncated.
    """
    if grad.sparse_dim() != 1 or grad.is_complex():
        return grad
    rows = rows_of(grad.detach(), label)
    check_readable([rows], [label])
    indices, values = rows.indices, rows.values
    if bool((indices[1:] > indices[:-1]).all()):
        return grad
    # On the CPU, torch adds one row after the other.
    row_indices, places = cast("tuple[Tensor, Tensor]", indices.cpu().unique(return_inverse=True))
    if row_indices[0] < 0 or row_indices[-1] >= len(grad):
        # A later check raises, with the entry.
        return grad
    host_values = values.cpu()
    host_values = host_values.float() if host_values.dtype in REDUCED else host_values
    # A sum that begins with -0 has the bits of its first row, also if that is -0.
    sums = torch.full(
        (len(row_indices), *host_values.shape[1:]), -0.0, dtype=host_values.dtype, device="cpu"
    )
    sums.index_add_(0, places, host_values)
    if dtype != torch.float32:
        sums = sums.to(values.dtype)
    return torch.sparse_coo_tensor(
        row_indices[None].to(grad.device),
        sums.to(grad.device),
        grad.shape,
        dtype=sums.dtype,
        device=grad.device,
        is_coalesced=True,
        check_invariants=False,
    )
