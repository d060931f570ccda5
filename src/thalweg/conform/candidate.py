"""Side of a comparison: the constructor of an optimizer, and its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thalweg.conform.errors import ConformError
from thalweg.errors import did_you_mean

# What chooses how a step is computed, not what.
MACHINERY = frozenset({
    "capturable", "differentiable", "foreach", "fused", "fused_unscale", "in_backward", "masters",
    "wide_sums",
})  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """An optimizer class, or a function that makes an optimizer, and its arguments.

    Attributes:
        make: Is called with parameters and the arguments.
        name: What messages call it.
        arguments: Those that are not its defaults.
        group: What the group has beside the parameters, for one that is made of groups.
    """

    make: Callable[..., Any]
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    group: Mapping[str, Any] = field(default_factory=dict)

    def with_arguments(self, **arguments: object) -> Candidate:
        """Return a copy of the side with these arguments, too.

        Raises:
            ConformError: It takes no argument of that name.
        """
        known = self._parameters()
        takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())
        for name in arguments:
            if not takes_any and name not in self.defaults():
                named = did_you_mean(name, self.defaults())
                raise ConformError(
                    f"{self.name} has no argument '{name}'. {named or self._list_arguments()}"
                )
        return replace(self, arguments={**self.arguments, **arguments})

    def check_arguments(self) -> None:
        """See whether it has all arguments that it cannot be made without.

        Raises:
            ConformError: One is missing; names it.
        """
        missing = [name for name, each in list(self._parameters().items())[1:]
                   if each.default is each.empty and name not in self.arguments
                   and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]  # fmt: skip
        if missing:
            words = "the argument" if len(missing) == 1 else "the arguments"
            named = ", ".join(f"'{name}'" for name in missing)
            raise ConformError(f"{self.name} cannot be made without {words} {named}.")

    def defaults(self) -> dict[str, Any]:
        """Return its arguments after the parameters, with their defaults; `Parameter.empty` for
        none.
        """
        return {
            name: each.default
            for name, each in list(self._parameters().items())[1:]
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        }

    def known_values(self) -> dict[str, Any]:
        """Return arguments and defaults by name, without defaults that select how a step is
        computed.
        """
        defaults = {
            name: value
            for name, value in self.defaults().items()
            if name not in MACHINERY and value is not inspect.Parameter.empty
        }
        return {**defaults, **self.arguments}

    def wants_model(self) -> bool:
        """Return True if the first argument of the constructor is a module, by its name."""
        first = next(iter(self._parameters()), "")
        return first in ("model", "module", "net", "network")

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.make).parameters
        except (TypeError, ValueError):  # written in C
            return {}

    def _list_arguments(self) -> str:
        names = [name for name in self.defaults() if name not in MACHINERY]
        return f"It takes {', '.join(names)}."


def as_side(thing: Any, name: str = "") -> Candidate:
    """Return a class or function as a `Candidate`; one that is a `Candidate` already as it is."""
    if isinstance(thing, Candidate):
        return thing
    return Candidate(thing, name or getattr(thing, "__name__", repr(thing)))


def shared_arguments(theirs: Candidate, ours: Candidate) -> dict[str, Any]:
    """Return their values of the arguments that ours has, too, of the same kind."""
    own = ours.defaults()
    return {
        name: value
        for name, value in theirs.known_values().items()
        if name in own
        and name not in MACHINERY
        and name not in ours.arguments
        and _is_like(value, own[name])
    }


def _is_like(value: object, other: object) -> bool:
    if isinstance(value, bool) or isinstance(other, bool):
        return type(value) is type(other)
    if isinstance(value, int | float):
        return not isinstance(other, str | tuple | list)  # None, or a mark that it is required, too
    if isinstance(value, tuple | list):
        return isinstance(other, tuple | list) and len(value) == len(other)
    return False
