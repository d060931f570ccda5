"""In-place updates of rows, as in TensorFlow's scatter operations."""

from __future__ import annotations

import torch

from thalweg._base.context_managers import no_grad
from thalweg.errors import InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import check_held, name_of, to_tensor

UPDATES = ("add", "sub", "mul", "div", "min", "max", "update")
_OPERATORS = {"mul": torch.mul, "div": torch.div, "min": torch.minimum, "max": torch.maximum}


@no_grad()
def scatter(var: torch.Tensor, indices: object, updates: object, update: str) -> None:
    """Update the rows of `var` at `indices` in place, in the order of `indices`.

    Args:
        var: A tensor of shape (rows, *row shape).
        indices: int32 or int64, of any shape; a row may occur several times.
        updates: A tensor of shape (*indices shape, *row shape), or one that broadcasts to it.
        update: An element of `UPDATES`. "update" sets a row to its last entry in `updates`.

    Raises:
        InvalidArgumentError: An index is not in [0, rows), or the shapes do not match; `var` is
            unchanged.
        LayoutError: A tensor has no memory.
    """
    check_held(var)
    index, update_values = to_tensor(indices), to_tensor(updates, var.dtype)
    check_held(index, f"What indexes '{name_of(var)}'")
    check_held(update_values, f"What '{name_of(var)}' is updated with")
    index, update_values = index.to(var.device), update_values.to(var.device)
    rows = index.reshape(-1)
    IndexedSlices(rows, rows).check_range(len(var))
    shape = (*index.shape, *var.shape[1:])
    try:
        values = update_values.expand(shape).reshape(-1, *var.shape[1:])
    except RuntimeError:
        raise InvalidArgumentError(
            f"Updates of shape {tuple(update_values.shape)} do not fit indices of shape"
            f" {tuple(index.shape)} into a tensor of shape {tuple(var.shape)}; expected {shape}."
        ) from None
    target, rows = var.detach(), rows.long()
    if update in ("add", "sub"):
        target.index_add_(0, rows, values, alpha=1 if update == "add" else -1)
    elif update == "update":
        # On a CPU, `index_copy_` writes the rows in order; elsewhere the order is undefined.
        if rows.device.type != "cpu":
            values = repeat_last(values, rows, len(var))
        target.index_copy_(0, rows, values)
    else:
        # One indexed operation would apply only one of the updates of a repeated row.
        for row, value in zip(rows.tolist(), values, strict=True):  # pyright: ignore
            target[row] = _OPERATORS[update](target[row], value)


def repeat_last(values: torch.Tensor, rows: torch.Tensor, row_count: int) -> torch.Tensor:
    """Return `values`, where all values of a repeated row are replaced by its last one.

    Args:
        values: A tensor with a value for each element of `rows`.
        rows: Row indices in [0, row_count), of shape (number of values,) and dtype int64.
    """
    positions = torch.arange(len(rows), dtype=torch.int64, device=rows.device)
    last_positions = positions.new_zeros(row_count).scatter_reduce_(0, rows, positions, "amax")
    return values[last_positions[rows]]
