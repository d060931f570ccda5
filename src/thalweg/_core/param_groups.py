"""Parameter groups of torch-style optimizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from thalweg.variable import UNNAMED, name_of, titles_of

Group = dict[str, Any]
# The argument `params` of torch.optim.Optimizer.
Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Group]


def params_of(groups: Sequence[Group]) -> list[Any]:
    """Return the parameters of all groups."""
    return [param for group in groups for param in group["params"]]


def group_indices_of(groups: Sequence[Group]) -> list[int]:
    """Return the index of the group of each parameter, in the order of `params_of`."""
    return [index for index, group in enumerate(groups) for _ in group["params"]]


def parameter_names(groups: Sequence[Group], params: Sequence[Tensor]) -> list[str]:
    """Return a name for each of `params`, in order, for messages.

    The name is the entry in `param_names` of the group. A parameter without an entry has its
    tensor's name, or a text such as "parameter 0 of group 1".
    """
    names = names_in(groups, params)
    if None not in names:
        return [name for name in names if name is not None]
    descriptions = {
        id(param): f"parameter {index} of group {group_index}"
        for group_index, group in enumerate(groups)
        for index, param in enumerate(group["params"])
    }
    rows = zip(params, names, titles_of(params), strict=True)
    return [name or descriptions.get(id(param), label) for param, name, label in rows]


def names_in(groups: Sequence[Group], params: Sequence[Tensor]) -> list[str | None]:
    """Return each parameter's name in its group, else its variable's name, else None."""
    group_names = {
        id(param): name
        for group in groups
        for param, name in zip(group["params"], group.get("param_names", ()))
    }
    variable_names = (None if name_of(param) == UNNAMED else name_of(param) for param in params)
    return [group_names.get(id(p), name) for p, name in zip(params, variable_names, strict=True)]


def states_of(state: Mapping[object, object]) -> list[tuple[Tensor, dict[str, Any]]]:
    """Return parameters and their states; other entries of a state belong to the user."""
    return [(p, s) for p, s in state.items() if isinstance(p, Tensor) and isinstance(s, dict)]


def gradient_set_of(groups: Sequence[Group]) -> tuple[bool, ...]:
    """Return for each parameter of the groups whether it has a gradient."""
    return tuple([param.grad is not None for group in groups for param in group["params"]])
