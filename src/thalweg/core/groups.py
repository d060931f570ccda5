"""Parameters in groups, as optimizers of torch's kind have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from thalweg.variable import titles_of

Group = dict[str, Any]
Params = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[Group]  # as torch takes them


def titles_in(groups: Sequence[Group], params: Sequence[Tensor]) -> list[str]:
    """The names of parameters for messages: those that groups give them, else their own."""
    names = {
        id(param): name
        for group in groups
        for param, name in zip(group["params"], group.get("param_names", ()))
    }
    return [names.get(id(p), title) for p, title in zip(params, titles_of(params), strict=True)]


def states_of(state: Mapping[object, object]) -> list[tuple[Tensor, dict[str, Any]]]:
    """The states of parameters; what else is in the state of an optimizer is the user's."""
    return [(k, own) for k, own in state.items() if isinstance(k, Tensor) and isinstance(own, dict)]
