"""Selection of the variables that a config trains, and of those that it regularizes."""

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
    """Return the variables of a module, of pairs of a name and a variable, or of an iterable.

    Those of modules and pairs answer to their names from now on; those that need no gradient are
    left out.

    Raises:
        TypeError: There is something else among them.
    """
    if isinstance(variables, torch.nn.Module):
        found: list[Any] = named_variables(variables)
    else:
        given: list[Any] = list(variables)
        are_pairs = bool(given) and all(isinstance(each, tuple) for each in given)
        found = named_variables(given) if are_pairs else given
    for each in found:
        if not isinstance(each, Tensor | GraphVariable):
            raise InvalidTypeError(
                "variables must be a module, its named parameters, or variables; among them is"
                f" {show_value(each)}."
            )
    return [each for each in found if isinstance(each, GraphVariable) or each.requires_grad]


def regularized(variables: Sequence[Tensor], choose: Chooses | None) -> list[Any]:
    """Return the variables that a function of name and variable chooses; by default those of two
    dimensions or more.
    """
    if choose is None:
        return [each for each in variables if len(each.shape) >= 2]
    return [each for each in variables if choose(_name(each), each)]


def trained(variables: Sequence[Tensor], frozen: re.Pattern[str] | None) -> list[Any]:
    """Return the variables whose name does not match the pattern at its beginning.

    Raises:
        ValueError: There are none.
        TypeError: A name is needed, and a variable has none.
    """
    kept = list(variables)
    if frozen is not None:
        for index, each in enumerate(variables):
            if not (isinstance(each, Variable | GraphVariable) or hasattr(each, "_thalweg_name")):
                raise InvalidTypeError(
                    f"freeze_variables_regex goes by names, but variable {index}, of shape"
                    f" {tuple(each.shape)}, has none. Give the model or its named parameters."
                )
        kept = [each for each in variables if frozen.match(_name(each)) is None]
    if not kept:
        reason = f": freeze_variables_regex {frozen.pattern!r} matches all" if frozen else ""
        raise InvalidArgumentError(f"There are no variables to train{reason}.")
    return kept


def _name(variable: Tensor) -> str:
    return variable.name if isinstance(variable, GraphVariable) else name_of(variable)
