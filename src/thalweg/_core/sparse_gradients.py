"""Sparse gradients whose rows are added up before anybody looks at their elements.

Torch's `coalesce` adds in an order that depends on the machine, and 16-bit rows in 16 bits. Here
rows are added as they came, in float32 at least, as by a rule that adds them up itself.
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
    pairs: list[tuple[Any, Tensor]], titles_of: Callable[[Sequence[Tensor]], list[str]]
) -> list[tuple[Any, Tensor]]:
    """The pairs, in which sparse gradients name each row once, and rows ascend.

    Args:
        pairs: Gradients and what a step updates by them.
        titles_of: Gives names of that, for messages.

    Raises:
        LayoutError: A sparse gradient has no memory that holds its elements.
    """
    if not any(map(is_sparse, [grad for grad, _ in pairs])):
        return pairs
    return [
        (summed(grad, var.dtype, *titles_of([var])) if is_sparse(grad) else grad, var)
        for grad, var in pairs
    ]


def rows_of(grad: Tensor, title: str) -> IndexedSlices:
    """A sparse gradient as slices.

    Raises:
        LayoutError: Its indices have no memory that holds them.
    """
    check_memory(grad._indices(), f"The indices of the gradient of '{title}'")
    return IndexedSlices.from_sparse(grad)


def check_inside(tensor: Tensor, what: str) -> None:
    """Refuse indices of a sparse tensor at which torch would read and write beyond its shape.

    Args:
        tensor: The tensor.
        what: What it is, as a message begins.

    Raises:
        InvalidArgumentError: Names the first.
    """
    sparse_shape = tensor.shape[: tensor.sparse_dim()]
    sizes = torch.tensor(sparse_shape, dtype=torch.int64, device=tensor.device)[:, None]
    indices = tensor._indices()
    beyond = ((indices < 0) | (indices >= sizes)).any(0).nonzero()
    if len(beyond):
        at = int(beyond[0])
        raise InvalidArgumentError(
            f"{what} has shape {tuple(tensor.shape)}, and indices[{at}] ="
            f" {cast('list[int]', indices[:, at].tolist())} is not in it."
        )


def is_misplaced(tensor: Tensor) -> bool:
    """Whether torch adds a sparse tensor elsewhere than asked, where that does not begin with its
    storage: it adds single elements, if they are coalesced, at twice the offset.
    """
    return not tensor.dense_dim() and (tensor.is_coalesced() or tensor._nnz() < 2)


def summed(grad: Tensor, dtype: torch.dtype, title: str) -> Tensor:
    """A sparse gradient that names each row once, and rows ascend; itself if it does so.

    Args:
        grad: The gradient. One that no rule takes is left as it is.
        dtype: That of the sums of 16-bit rows, if it is float32; they are rounded once else.
        title: The variable's name for messages.

    Raises:
        LayoutError: It has no memory that holds its elements.
    """
    if grad.sparse_dim() != 1 or grad.is_complex():
        return grad
    rows = rows_of(grad.detach(), title)
    check_readable([rows], [title])
    indices, values = rows.indices, rows.values
    if bool((indices[1:] > indices[:-1]).all()):
        return grad
    # On the CPU, where torch adds one row after the other; a sum begins with its first row.
    named, places = cast("tuple[Tensor, Tensor]", indices.cpu().unique(return_inverse=True))
    if named[0] < 0 or named[-1] >= len(grad):
        return grad  # whoever refuses it says which entry
    own = values.cpu()
    own = own.float() if own.dtype in REDUCED else own
    sums = torch.full((len(named), *own.shape[1:]), -0.0, dtype=own.dtype, device="cpu")
    sums.index_add_(0, places, own)
    if dtype != torch.float32:
        sums = sums.to(values.dtype)
    return torch.sparse_coo_tensor(
        named[None].to(grad.device),
        sums.to(grad.device),
        grad.shape,
        dtype=sums.dtype,
        device=grad.device,
        is_coalesced=True,
        check_invariants=False,
    )
