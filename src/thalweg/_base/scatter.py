"""`scatter`: rows of a tensor changed in place, as TensorFlow's scatter operations do."""

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
    """Change the rows of `var` that `indices` names, one after the other.

    Args:
        var: A tensor of shape (rows, *row shape), written in place.
        indices: int32 or int64, of any shape; a row may be named twice.
        updates: A tensor of shape (*indices shape, *row shape), or one that broadcasts to it.
        update: One of `UPDATES`; "update" sets the row, the last value that is given for it.

    Raises:
        InvalidArgumentError: An index is not in [0, rows), or the shapes do not fit. Nothing has
            changed then.
        LayoutError: The storage of one of them was cut.
    """
    check_held(var)
    places, given = to_tensor(indices), to_tensor(updates, var.dtype)
    check_held(places, f"What indexes '{name_of(var)}'")
    check_held(given, f"What '{name_of(var)}' is updated with")
    places, given = places.to(var.device), given.to(var.device)
    rows = places.reshape(-1)
    IndexedSlices(rows, rows).check_range(len(var))
    shape = (*places.shape, *var.shape[1:])
    try:
        values = given.expand(shape).reshape(-1, *var.shape[1:])
    except RuntimeError:
        raise InvalidArgumentError(
            f"Updates of shape {tuple(given.shape)} do not fit indices of shape"
            f" {tuple(places.shape)} into a tensor of shape {tuple(var.shape)}; expected {shape}."
        ) from None
    own, rows = var.detach(), rows.long()
    if update in ("add", "sub"):
        own.index_add_(0, rows, values, alpha=1 if update == "add" else -1)
    elif update == "update":
        own.index_copy_(0, rows, values)
    else:
        for row, value in zip(rows.tolist(), values, strict=True):
            own[row] = _OPERATORS[update](own[row], value)
