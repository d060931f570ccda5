"""Selection of the variables to train and to regularize."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._graph import GraphVariable
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import Variable, name_of, named_variables

Variables = torch.nn.Module | Iterable[Any]  # variables, or pairs of a name and a variable
Chooses = Callable[[str, Any], bool]


def listed(variables: Variables) -> list[Any]:
    """Return the variables, with gradient, of a module, of (name, variable) pairs or an iterable.

    Variables of modules and pairs are given their names.

    Raises:
        TypeError: An item is not a variable.
    """
    if isinstance(variables, torch.nn.Module):
        selected_variables: list[Any] = named_variables(variables)
    else:
        items: list[Any] = list(variables)
        are_pairs = bool(items) and all(isinstance(item_or_pair, tuple) for item_or_pair in items)
        selected_variables = named_variables(items) if are_pairs else items
    for var in selected_variables:
        if not isinstance(var, Tensor | GraphVariable):
            raise InvalidTypeError(
                "variables must be a module, its named parameters, or variables; among them is"
                f" {show_value(var)}."
            )
    return [
        var for var in selected_variables if isinstance(var, GraphVariable) or var.requires_grad
    ]


def regularized(variables: Sequence[Tensor], choose: Chooses | None) -> list[Any]:
    """Return variables selected by a function of (name, variable), by default of 2+ dimensions."""
    if choose is None:
        return [var for var in variables if len(var.shape) >= 2]
    return [var for var in variables if choose(_name(var), var)]


def trained(variables: Sequence[Tensor], frozen: re.Pattern[str] | None) -> list[Any]:
    """Return the variables whose name does not match the pattern at its beginning.

    Raises:
        ValueError: No variable is left.
        TypeError: A pattern is given, and a variable has no name.
    """
    trained_variables = list(variables)
    if frozen is not None:
        for index, var in enumerate(variables):
            if not (isinstance(var, Variable | GraphVariable) or hasattr(var, "_thalweg_name")):
                raise InvalidTypeError(
                    f"freeze_variables_regex goes by names, but variable {index}, of shape"
                    f" {tuple(var.shape)}, has none. Give the model or its named parameters."
                )
        trained_variables = [var for var in variables if frozen.match(_name(var)) is None]
    if not trained_variables:
        reason = f": freeze_variables_regex {frozen.pattern!r} matches all" if frozen else ""
        raise InvalidArgumentError(f"There are no variables to train{reason}.")
    return trained_variables


def _name(variable: Tensor) -> str:
    return variable.name if isinstance(variable, GraphVariable) else name_of(variable)
