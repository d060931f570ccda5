"""Reader of the state dict of a `torch.optim` optimizer: groups, and the state of each
parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._core.pairs import check_variables, distinct, flatten
from thalweg._core.state import flaw, kept, mismatch, shown
from thalweg._formats.json_text import as_object
from thalweg.checkpoint.torch_optim.counterparts import NAMES, family_of
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import name_of

Group = dict[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A parameter of torch's.

    Attributes:
        name: Its name, or None where torch was given none.
        group: The group it is in.
        state: What was kept for it; nothing before its first gradient.
    """

    name: str | None
    group: Group
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Saved:
    """The state of an optimizer of torch's.

    Attributes:
        family: The class.
        groups: The groups.
        parameters: The parameters of all groups, in order.
    """

    family: str
    groups: Sequence[Group]
    parameters: Sequence[Parameter]


def read(given: Any) -> Saved:
    """Read a state.

    Args:
        given: An optimizer of `torch.optim`, or what its `state_dict()` returned.

    Raises:
        InvalidTypeError: It is something else, or of a class without a counterpart here.
        CheckpointMismatchError: It is damaged.
    """
    if isinstance(given, torch.optim.Optimizer):
        given = given.state_dict()
    own: Mapping[Any, Any] = {}
    if isinstance(given, Mapping):
        own = cast("Mapping[Any, Any]", given)
    if not own.keys() >= {"state", "param_groups"}:
        raise InvalidTypeError(
            "The state must be an optimizer of torch.optim or its state_dict(), not"
            f" {shown(given)}."
        )
    states, groups = _states_and_groups(own)
    family = family_of(groups)
    if family is None:
        raise InvalidTypeError(
            "The state is of none of those of torch.optim that can be taken over:"
            f" {', '.join(NAMES)}."
        )
    keys = [key for group in groups for key in group["params"]]
    names = [name for group in groups for name in group.get("param_names", group["params"])]
    owners = [group for group in groups for _ in group["params"]]
    problems = [f"the state of {shown(key)} is of no parameter" for key in states.keys() - {*keys}]
    if len(names) != len(keys) or len({*keys}) != len(keys):
        problems.append("parameters and their names are not the same number, or come twice")
    if any(number_option(group, "lr") is None for group in groups):
        problems.append("a group has no number for its 'lr'")
    if problems:
        raise mismatch(problems, _title_of(family))
    is_named = all(isinstance(name, str) for name in names)
    parameters = [
        Parameter(name if is_named else None, group, states.get(key, {}))
        for key, name, group in zip(keys, names, owners, strict=True)
    ]
    return Saved(family, groups, parameters)


def _states_and_groups(given: Mapping[object, object]) -> tuple[dict[Any, Any], list[Group]]:
    """The states by parameter and the groups, if they are what they should be."""
    states, groups = given["state"], given["param_groups"]
    problems: list[str] = []
    if not isinstance(states, dict) or not all(
        isinstance(own, dict) for own in cast("dict[Any, Any]", states).values()
    ):
        problems.append("'state' is no dict of dicts")
    found = cast("list[Any]", groups) if isinstance(groups, list) else []
    if not found or not all(map(_is_group, found)):
        problems.append("'param_groups' is no list of groups with their 'params'")
    if problems:
        raise mismatch(problems, "The state of torch.optim")
    return cast("dict[Any, Any]", states), cast("list[Group]", groups)


def _is_group(group: Any) -> bool:
    if not isinstance(group, dict):
        return False
    own = as_object(group)
    parts = [own.get("params"), own.get("param_names", [])]
    if not all(isinstance(part, list) for part in parts):
        return False
    return all(isinstance(key, int | str) for part in parts for key in cast("list[Any]", part))


def _title_of(family: str) -> str:
    return f"The state of torch.optim.{family}"


def match_parameters(
    saved: Saved, given: object, variables: object
) -> list[tuple[Parameter, Tensor]]:
    """Return the parameters with their variables.

    Those of the optimizer are known by what they are; others go by name where both sides have
    names, else by order.

    Args:
        saved: The state.
        given: The optimizer of torch's it was read from, or anything else.
        variables: Variables, or a dict of variables by torch's names. None stands for the
            parameters of the optimizer.

    Raises:
        InvalidArgumentError: There is nothing that says which variables there are.
        CheckpointMismatchError: Names or numbers differ.
    """
    names, found = _names_and_variables(_parameters_of(given) if variables is None else variables)
    own = _places_of_parameters(given)
    if names is None and any(id(var) in own for var in found):
        return _match_by_identity(saved, own, found)
    names = _names_of(found) if names is None else names
    if names is None or any(parameter.name is None for parameter in saved.parameters):
        return _in_order(saved, found)
    return _by_name(saved, names, found)


def _parameters_of(given: object) -> list[Tensor]:
    """The parameters of the optimizer that was given."""
    if not isinstance(given, torch.optim.Optimizer):
        raise InvalidArgumentError(
            "Give the variables, in the order of torch's parameters or by their names."
        )
    return [param for group in given.param_groups for param in group["params"]]


def _names_and_variables(variables: object) -> tuple[list[str] | None, list[Tensor]]:
    """Variables and, of a dict, their names in it."""
    names: list[str] | None = None
    if isinstance(variables, Mapping):
        named = cast("Mapping[Any, Any]", variables)
        names, variables = list(named.keys()), list(named.values())
    found = distinct(flatten(variables))
    check_variables(found)
    return names, found


def _names_of(variables: Sequence[Tensor]) -> list[str] | None:
    """The names that variables have of their own, if these tell them apart."""
    names = [name_of(var, "").split(":")[0] for var in variables]
    has_names = all(name not in ("", "Variable") for name in names)
    return names if has_names and len({*names}) == len(names) else None


def _in_order(saved: Saved, found: Sequence[Tensor]) -> list[tuple[Parameter, Tensor]]:
    count = len(saved.parameters)
    if len(found) != count:
        wrong = f"there are {count} parameters, and {len(found)} variables"
        raise mismatch([wrong], _title_of(saved.family))
    return list(zip(saved.parameters, found, strict=True))


def _by_name(
    saved: Saved, names: Sequence[str], found: Sequence[Tensor]
) -> list[tuple[Parameter, Tensor]]:
    torches = [parameter.name for parameter in saved.parameters]
    known = dict(zip(torches, saved.parameters, strict=True))
    problems = [f"'{name}' is none of its parameters" for name in names if name not in known]
    problems += [f"'{name}' belongs to nothing here" for name in torches if name not in names]
    if problems:
        raise mismatch(problems, _title_of(saved.family))
    return [(known[name], var) for name, var in zip(names, found, strict=True)]


def _match_by_identity(
    saved: Saved, own: Mapping[int, int], found: Sequence[Tensor]
) -> list[tuple[Parameter, Tensor]]:
    """The variables with what was kept for each, where they are the optimizer's parameters."""
    given = {id(var) for var in found}
    problems = [
        f"{name_of(var)!r} is none of its parameters" for var in found if id(var) not in own
    ]
    problems += [
        f"its parameter {index} is not given" for each, index in own.items() if each not in given
    ]
    if problems:
        raise mismatch(problems, _title_of(saved.family))
    return [(saved.parameters[own[id(var)]], var) for var in found]


def _places_of_parameters(given: object) -> dict[int, int]:
    """The places of an optimizer's parameters by `id`."""
    groups = given.param_groups if isinstance(given, torch.optim.Optimizer) else []
    found = [id(param) for group in groups for param in group["params"]]
    return {each: index for index, each in enumerate(found)}


def as_number(value: Any) -> float | None:
    """Return a number, also from a tensor of one element; None for anything else."""
    try:
        if isinstance(value, Tensor):
            value = kept(value).item() if flaw(value) is None else None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None
    except Exception:  # a class of tensors that fails, several elements, an int of many digits
        return None


def is_on(group: Group, key: str) -> bool:
    """Return True if an option of a group is on."""
    return group.get(key) is True or bool(as_number(group.get(key)))


def number_option(group: Group, key: str) -> float | None:
    """Return a number of a group; of "betas.0" the first of "betas"."""
    key, _, index = key.partition(".")
    value = group.get(key)
    if index:
        pair = cast("Sequence[Any]", value) if isinstance(value, tuple | list) else ()
        value = pair[int(index)] if len(pair) == 2 else None
    return as_number(value)
