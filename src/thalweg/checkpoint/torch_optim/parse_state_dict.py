"""Reader of the state dict of a `torch.optim` optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._core.grads_and_vars import check_variables, distinct, flatten
from thalweg._core.param_groups import params_of
from thalweg._core.state import flaw, kept, mismatch, raise_mismatch, shown
from thalweg._formats.json_text import as_object
from thalweg.checkpoint.torch_optim.counterparts import NAMES, family_of
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import name_of

Group = dict[str, Any]


@dataclass(frozen=True)
class Parameter:
    """A parameter in a torch optimizer's state dict.

    Attributes:
        name: The name; None if the state dict has no names.
        group: The group that has the parameter.
        state: The parameter's state; empty before the first gradient.
    """

    name: str | None
    group: Group
    state: Mapping[str, Any]


@dataclass(frozen=True)
class TorchState:
    """The state dict of a torch optimizer.

    Attributes:
        family: The name of the class in `torch.optim`.
        groups: The param groups.
        parameters: The parameters of all groups, in order.
    """

    family: str
    groups: Sequence[Group]
    parameters: Sequence[Parameter]


def read(state_or_optimizer: Any) -> TorchState:
    """Validate and return the state of a torch optimizer.

    Args:
        state_or_optimizer: An optimizer of `torch.optim`, or the result of its `state_dict()`.

    Raises:
        InvalidTypeError: The argument is of another type, or of a class without a counterpart.
        CheckpointMismatchError: The state is damaged.
    """
    if isinstance(state_or_optimizer, torch.optim.Optimizer):
        state_or_optimizer = state_or_optimizer.state_dict()
    state_dict: Mapping[Any, Any] = {}
    if isinstance(state_or_optimizer, Mapping):
        state_dict = cast("Mapping[Any, Any]", state_or_optimizer)
    if not state_dict.keys() >= {"state", "param_groups"}:
        raise InvalidTypeError(
            "The state must be an optimizer of torch.optim or its state_dict(), not"
            f" {shown(state_or_optimizer)}."
        )
    states, groups = _states_and_groups(state_dict)
    family = family_of(groups)
    if family is None:
        raise InvalidTypeError(
            "The state is of none of those of torch.optim that can be taken over:"
            f" {', '.join(NAMES)}."
        )
    keys = [key for group in groups for key in group["params"]]
    names = [name for group in groups for name in group.get("param_names", group["params"])]
    param_groups = [group for group in groups for _ in group["params"]]
    problems = [f"the state of {shown(key)} is of no parameter" for key in states.keys() - {*keys}]
    if len(names) != len(keys) or len({*keys}) != len(keys):
        problems.append("parameters and their names are not the same number, or come twice")
    if any(number_option(group, "lr") is None for group in groups):
        problems.append("a group has no number for its 'lr'")
    raise_mismatch(problems, _title_of(family))
    are_named = all(isinstance(name, str) for name in names)
    parameters = [
        Parameter(name if are_named else None, group, states.get(key, {}))
        for key, name, group in zip(keys, names, param_groups, strict=True)
    ]
    return TorchState(family, groups, parameters)


def _states_and_groups(state_dict: Mapping[object, object]) -> tuple[dict[Any, Any], list[Group]]:
    """Return ({parameter key: state}, groups); raise CheckpointMismatchError for invalid types."""
    states, groups = state_dict["state"], state_dict["param_groups"]
    problems: list[str] = []
    if not isinstance(states, dict) or not all(
        isinstance(entries, dict) for entries in cast("dict[Any, Any]", states).values()
    ):
        problems.append("'state' is no dict of dicts")
    group_list = cast("list[Any]", groups) if isinstance(groups, list) else []
    if not group_list or not all(map(_is_group, group_list)):
        problems.append("'param_groups' is no list of groups with their 'params'")
    raise_mismatch(problems, "The state of torch.optim")
    return cast("dict[Any, Any]", states), cast("list[Group]", groups)


def _is_group(group: Any) -> bool:
    """Return True for a dict with a list of parameter numbers or names."""
    if not isinstance(group, dict):
        return False
    fields = as_object(group)
    key_lists = [fields.get("params"), fields.get("param_names", [])]
    if not all(isinstance(keys, list) for keys in key_lists):
        return False
    return all(isinstance(key, int | str) for keys in key_lists for key in cast("list[Any]", keys))


def _title_of(class_name: str) -> str:
    """Return the subject of messages: "The state of torch.optim.Adam"."""
    return f"The state of torch.optim.{class_name}"


def match_parameters(
    torch_state: TorchState, state_or_optimizer: object, variables: object
) -> list[tuple[Parameter, Tensor]]:
    """Return (parameter, variable) pairs of a torch optimizer.

    A list is matched by identity if an element is a parameter of the torch optimizer. Other
    variables are matched by name if all parameters and all variables have names. Without all names,
    they are matched by order.

    Args:
        state_or_optimizer: The torch optimizer that the state was read from, or its state dict.
        variables: Variables, or {torch's name: variable}; None for the optimizer's parameters.

    Raises:
        InvalidArgumentError: `variables` is None and `state_or_optimizer` is a state dict. Or the
            dict `variables` has a value that is not one variable, or a variable under two names.
        CheckpointMismatchError: Names or the number of parameters differ.
    """
    params: list[Tensor] = []
    if isinstance(state_or_optimizer, torch.optim.Optimizer):
        params = params_of(state_or_optimizer.param_groups)
    elif variables is None:
        raise InvalidArgumentError(
            "Give the variables, in the order of torch's parameters or by their names."
        )
    names, tensors = _names_and_variables(params if variables is None else variables)
    indices = {id(param): index for index, param in enumerate(params)}
    if names is None and any(id(var) in indices for var in tensors):
        return _match_by_identity(torch_state, indices, tensors)
    names = _names_of(tensors) if names is None else names
    if names is None or any(parameter.name is None for parameter in torch_state.parameters):
        return _match_by_order(torch_state, tensors)
    return _match_by_name(torch_state, names, tensors)


def _names_and_variables(variables: object) -> tuple[list[str] | None, list[Tensor]]:
    """Return (names, variables); names are the keys of a dict, or None if there is no dict.

    Raise InvalidArgumentError if a value of the dict is not one variable, or two are the same.
    """
    if not isinstance(variables, Mapping):
        tensors = distinct(flatten(variables))
        check_variables(tensors)
        return None, tensors
    mapping = cast("Mapping[Any, Any]", variables)
    nests = {name: flatten(variable) for name, variable in mapping.items()}
    names_by_id: dict[int, list[str]] = {}
    for name, nest in nests.items():
        if len(nest) != 1:
            raise InvalidArgumentError(f"{name!r} must name one variable, not {len(nest)}.")
        names_by_id.setdefault(id(nest[0]), []).append(name)
    for names in names_by_id.values():
        if len(names) > 1:
            raise InvalidArgumentError(
                f"{' and '.join(map(repr, names))} name the same variable, which has one state:"
                " give it one of torch's names."
            )
    tensors = [variable for (variable,) in nests.values()]
    check_variables(tensors)
    return list(nests), tensors


def _names_of(variables: Sequence[Tensor]) -> list[str] | None:
    """Return the names of variables; None if a variable has no name, or two share a name."""
    names = [name_of(var, "").split(":")[0] for var in variables]
    has_names = all(name not in ("", "Variable") for name in names)
    return names if has_names and len({*names}) == len(names) else None


def _match_by_order(
    torch_state: TorchState, tensors: Sequence[Tensor]
) -> list[tuple[Parameter, Tensor]]:
    """Return (parameter, variable) pairs in order; raise if the counts differ."""
    count = len(torch_state.parameters)
    if len(tensors) != count:
        problem = f"there are {count} parameters, and {len(tensors)} variables"
        raise mismatch([problem], _title_of(torch_state.family))
    return list(zip(torch_state.parameters, tensors, strict=True))


def _match_by_name(
    torch_state: TorchState, names: Sequence[str], tensors: Sequence[Tensor]
) -> list[tuple[Parameter, Tensor]]:
    """Return (parameter, variable) pairs in the order of `names`; raise if names differ."""
    saved_names = [parameter.name for parameter in torch_state.parameters]
    parameters = dict(zip(saved_names, torch_state.parameters, strict=True))
    problems = [f"'{name}' is none of its parameters" for name in names if name not in parameters]
    problems += [f"'{name}' belongs to nothing here" for name in saved_names if name not in names]
    raise_mismatch(problems, _title_of(torch_state.family))
    return [(parameters[name], var) for name, var in zip(names, tensors, strict=True)]


def _match_by_identity(
    torch_state: TorchState, indices: Mapping[int, int], tensors: Sequence[Tensor]
) -> list[tuple[Parameter, Tensor]]:
    """Return (parameter, variable) pairs; `indices` is {id(variable): index of the parameter}.

    Raise CheckpointMismatchError unless the variables are exactly the optimizer's parameters.
    """
    ids = {id(var) for var in tensors}
    problems = [
        f"{name_of(var)!r} is none of its parameters" for var in tensors if id(var) not in indices
    ]
    problems += [
        f"its parameter {index} is not given" for key, index in indices.items() if key not in ids
    ]
    raise_mismatch(problems, _title_of(torch_state.family))
    return [(torch_state.parameters[indices[id(var)]], var) for var in tensors]


def as_number(entry: Any) -> float | None:
    """Return a number, also from a tensor of one element; None for other values."""
    try:
        if isinstance(entry, Tensor):
            entry = kept(entry).item() if flaw(entry) is None else None
        is_scalar = isinstance(entry, int | float) and not isinstance(entry, bool)
        return float(entry) if is_scalar else None
    except Exception:  # Tensor subclasses that fail, several elements, integers too large.
        return None


def is_on(group: Group, key: str) -> bool:
    """Return True if an option of a group is True or a number other than 0."""
    return group.get(key) is True or bool(as_number(group.get(key)))


def number_option(group: Group, key: str) -> float | None:
    """Return a number of a group or None; "betas.0" is the first element of "betas"."""
    key, _, index = key.partition(".")
    option = group.get(key)
    if index:
        pair = cast("Sequence[Any]", option) if isinstance(option, tuple | list) else ()
        option = pair[int(index)] if len(pair) == 2 else None
    return as_number(option)
