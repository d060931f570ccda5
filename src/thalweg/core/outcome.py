"""All or nothing: saying of an exception what has happened, and undoing what must not have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from thalweg.errors import InvalidArgumentError
from thalweg.variable import variable_constraint

_NOT_TAKEN = "The step was not taken: no variable and no slot has changed."
_TAKEN = "The step was taken"


@contextlib.contextmanager
def not_taken() -> Iterator[None]:
    """Say of an exception that nothing has changed."""
    try:
        yield
    except BaseException as error:
        if _NOT_TAKEN not in getattr(error, "__notes__", ()):
            error.add_note(_NOT_TAKEN)
        raise


def add_taken(error: BaseException) -> None:
    """Say of an exception that it came after the step, unless it says so."""
    if not any(note.startswith(_TAKEN) for note in getattr(error, "__notes__", ())):
        error.add_note(f"{_TAKEN}.")


@contextlib.contextmanager
def restored(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Put these tensors back from copies if the block fails."""
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, value in zip(tensors, kept, strict=True):
                tensor.copy_(value)
        raise


def constrain(var: Tensor, title: str) -> list[BaseException]:
    """Replace a variable's value by what its constraint, if it has one, makes of it.

    Args:
        var: The variable.
        title: Its name for messages.

    Returns:
        What the constraint raised: the update is done by now, and the step goes on.
    """
    constraint = variable_constraint(var)
    if constraint is None:
        return []
    try:
        value = constraint(var)
        if value.shape != var.shape or value.dtype != var.dtype:
            raise InvalidArgumentError(
                f"The constraint of '{title}' returned {value.dtype} of shape"
                f" {tuple(value.shape)}, expected {var.dtype} of shape {tuple(var.shape)}."
            )
        with torch.no_grad():
            var.copy_(value)
    except BaseException as error:
        error.add_note(f"The step was taken, but without the constraint of '{title}'.")
        return [error]
    return []


def raise_first(errors: Sequence[BaseException]) -> None:
    """Raise the most urgent of the errors, noting the others.

    An interruption comes before any other exception, so that it is never lost.
    """
    if not errors:
        return
    first = next((error for error in errors if not isinstance(error, Exception)), errors[0])
    for error in errors:
        if error is not first:
            first.add_note(f"Also: {type(error).__name__}: {error}")
    raise first
