"""`Candidate`: the constructor of an optimizer, and its arguments; and `ConformError`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thalweg.errors import ThalwegError, did_you_mean

# Arguments that select an implementation, and do not change results.
MACHINERY = frozenset({
    "capturable", "differentiable", "foreach", "fused", "fused_unscale", "in_backward", "masters",
    "wide_sums",
})  # fmt: skip


class ConformError(ThalwegError, ValueError):
    """An optimizer cannot be found, constructed or stepped, or its steps cannot be compared."""


@dataclass(frozen=True)
class Candidate:
    """Optimizer class, or function that returns an optimizer, with its arguments.

    Attributes:
        make: `make(params, **arguments)` returns the optimizer.
        name: The name in messages.
        arguments: The arguments that differ from the defaults.
        group: Further entries of the parameter group, for an optimizer that requires groups.
    """

    make: Callable[..., Any]
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    group: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def with_arguments(self, **arguments: object) -> Candidate:
        """Return a copy with further arguments; raise ConformError for an unknown argument."""
        parameters = self._parameters()
        kinds = {parameter.kind for parameter in parameters.values()}
        has_kwargs = inspect.Parameter.VAR_KEYWORD in kinds
        for name in arguments:
            if not has_kwargs and name not in self.defaults():
                suggestion = did_you_mean(name, self.defaults())
                raise ConformError(
                    f"{self.name} has no argument '{name}'. {suggestion or self._list_arguments()}"
                )
        return replace(self, arguments={**self.arguments, **arguments})

    def check_arguments(self) -> None:
        """Raise ConformError, which names the arguments, if required arguments are missing."""
        variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        missing = [name for name, parameter in list(self._parameters().items())[1:]
                   if parameter.default is parameter.empty and name not in self.arguments
                   and parameter.kind not in variadic]  # fmt: skip
        if missing:
            noun = "the argument" if len(missing) == 1 else "the arguments"
            quoted_names = ", ".join(f"'{name}'" for name in missing)
            raise ConformError(f"{self.name} cannot be made without {noun} {quoted_names}.")

    def defaults(self) -> dict[str, Any]:
        """Return the defaults of the arguments after the first; `Parameter.empty` if required."""
        return {
            name: parameter.default
            for name, parameter in list(self._parameters().items())[1:]
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }

    def known_values(self) -> dict[str, Any]:
        """Return arguments and defaults by name, without defaults in `MACHINERY`."""
        defaults = {
            name: value
            for name, value in self.defaults().items()
            if name not in MACHINERY and value is not inspect.Parameter.empty
        }
        return {**defaults, **self.arguments}

    def wants_model(self) -> bool:
        """Return True if the name of the constructor's first parameter stands for a module."""
        first = next(iter(self._parameters()), "")
        return first in ("model", "module", "net", "network")

    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        """Return {name: parameter} of the constructor; the first is that of the parameters."""
        try:
            return inspect.signature(self.make).parameters
        # Functions in C have no signature.
        except (TypeError, ValueError):
            return {}

    def _list_arguments(self) -> str:
        """Return a sentence that names the arguments of the constructor."""
        names = [name for name in self.defaults() if name not in MACHINERY]
        return f"It takes {', '.join(names)}."


def as_side(candidate: Any) -> Candidate:
    """Return a class or function as a `Candidate`; a `Candidate` unchanged."""
    if isinstance(candidate, Candidate):
        return candidate
    return Candidate(candidate, getattr(candidate, "__name__", repr(candidate)))


def shared_arguments(external: Candidate, native: Candidate) -> dict[str, Any]:
    """Return {name: value} of the arguments of `external` to copy to `native`.

    A value may be a default of `external`. An argument is left out if `native` lacks it, has set
    it, or has a default of another type. Arguments in `MACHINERY`, which select an implementation,
    are left out, too.
    """
    defaults = native.defaults()
    return {
        name: value
        for name, value in external.known_values().items()
        if name in defaults
        and name not in MACHINERY
        and name not in native.arguments
        and _is_like(value, defaults[name])
    }


def _is_like(argument: Any, default: Any) -> bool:
    """Return True if both values are bools, numbers, or sequences of equal length.

    A number also fits the default None, and `Parameter.empty` for a required argument.
    """
    if isinstance(argument, bool) or isinstance(default, bool):
        return type(argument) is type(default)
    if isinstance(argument, int | float):
        # None often stands for a number, and `Parameter.empty` for a required argument.
        return not isinstance(default, str | tuple | list)
    if isinstance(argument, tuple | list) and isinstance(default, tuple | list):
        return len(argument) == len(default)  # pyright: ignore[reportUnknownArgumentType]
    return False
