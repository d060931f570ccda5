"""Calling what users wrote: hooks and constraints, and saying of their exceptions what happened."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from thalweg.errors import InvalidArgumentError
from thalweg.variable import name_of, variable_constraint

ApplyState = dict[tuple[str, torch.dtype], dict[str, Any]]

_NOT_TAKEN = "The step was not taken: no variable and no slot has changed."


def call(hook: Callable[..., Any], args: tuple[Any, ...], apply_state: ApplyState) -> Any:
    """Call a hook, with `apply_state` if it takes it: older subclasses' hooks do not."""
    code = getattr(hook, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code is None or "apply_state" in names or code.co_flags & 0x08:
        return hook(*args, apply_state=apply_state)
    return hook(*args)


@contextlib.contextmanager
def not_taken() -> Iterator[None]:
    """Say of an exception that nothing has changed."""
    try:
        yield
    except BaseException as error:
        if _NOT_TAKEN not in getattr(error, "__notes__", ()):
            error.add_note(_NOT_TAKEN)
        raise


def constrain(var: Tensor) -> list[BaseException]:
    """Replace a variable's value by what its constraint, if it has one, makes of it.

    Returns:
        What the constraint raised: the update is done by now, and the step goes on.
    """
    constraint = variable_constraint(var)
    if constraint is None:
        return []
    title = name_of(var)
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
