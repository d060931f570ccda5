"""Which parameters of a module are meant: by name, class of module or number of dimensions."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor
from torch.nn import Module

from thalweg.errors import InvalidArgumentError, InvalidTypeError, did_you_mean


def owners_of(module: Module) -> dict[int, list[Module]]:
    """The modules that own each parameter, by its `id`: several where it is tied."""
    found: dict[int, list[Module]] = {}
    for owner in module.modules():
        for param in owner.parameters(recurse=False):
            found.setdefault(id(param), []).append(owner)
    return found


def check_selects(found: Collection[Any], selector: Any, names: Iterable[str], what: str) -> None:
    """Refuse a selector that selects nothing.

    Raises:
        InvalidArgumentError: It does not; says what it may have meant.
    """
    if not found:
        parts = {part for name in names for part in name.split(".")}
        near = did_you_mean(selector, parts) if isinstance(selector, str) else ""
        raise InvalidArgumentError(f"{what} {selector!r} selects no parameter. {near}".rstrip())


def called(selector: str, name: str) -> bool:
    """Whether a name is called so: by a part of it between dots, or a pattern over all of it."""
    return selector in name.split(".") or fnmatchcase(name, selector)


def selects(selector: Any, name: str, param: Tensor, owners: Iterable[Module], what: str) -> bool:
    """Whether a parameter is selected.

    Raises:
        InvalidTypeError: The selector is of another type.
    """
    if isinstance(selector, str):
        return called(selector, name)
    if isinstance(selector, type) and issubclass(selector, Module):
        return any(isinstance(owner, selector) for owner in owners)
    if isinstance(selector, int) and not isinstance(selector, bool):
        return param.dim() <= selector
    raise InvalidTypeError(
        f"{what} must hold names, classes of modules or numbers of dimensions, not {selector!r}."
    )
