"""Parameters in groups, as optimizers of torch's kind have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from thalweg.variable import UNNAMED, name_of, titles_of

Group = dict[str, Any]
Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Group]  # as torch takes them


def parameter_names(groups: Sequence[Group], params: Sequence[Tensor]) -> list[str]:
    """The names of parameters for messages: those that groups give them, their own, or places."""
    names = names_in(groups, params)
    if None not in names:
        return [name for name in names if name is not None]
    places = {
        id(param): f"parameter {at} of group {place}"
        for place, group in enumerate(groups)
        for at, param in enumerate(group["params"])
    }
    named = zip(params, names, titles_of(params), strict=True)
    return [name or places.get(id(param), title) for param, name, title in named]


def names_in(groups: Sequence[Group], params: Sequence[Tensor]) -> list[str | None]:
    """The names of parameters that groups give them, else their own; None for those without."""
    given = {
        id(param): name
        for group in groups
        for param, name in zip(group["params"], group.get("param_names", ()))
    }
    own = (None if name_of(param) == UNNAMED else name_of(param) for param in params)
    return [given.get(id(param), name) for param, name in zip(params, own, strict=True)]


def states_of(state: Mapping[object, object]) -> list[tuple[Tensor, dict[str, Any]]]:
    """The states of parameters; what else is in the state of an optimizer is the user's."""
    return [(k, own) for k, own in state.items() if isinstance(k, Tensor) and isinstance(own, dict)]
