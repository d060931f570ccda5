"""What is there when it is first asked for: `lazy` attributes, and names that a package offers.

`functools.cached_property` of Python 3.11 holds one lock for all instances of a class while one of
them computes: threads wait for each other, and a child that was forked meanwhile waits for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Generic, Self, TypeVar, overload

from thalweg.locks import importing

T = TypeVar("T")


class lazy(Generic[T]):
    """As `functools.cached_property`, without a lock: two threads may both compute it.

    Args:
        function: Computes it.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> T: ...
    def __get__(self, instance: Any, owner: type[Any]) -> Self | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value


def offered(package: str, homes: Mapping[str, str], name: str) -> Any:
    """What a package offers under a name; for its `__getattr__`.

    Args:
        package: The package.
        homes: The module that has it, for each name. None of these modules asks for such a name
            while it is imported: another thread may hold `importing`, and wait for that module.
        name: The name.

    Raises:
        AttributeError: The package offers no such name.
    """
    if name in homes.values():  # as if it had been imported with the package
        return import_module(f"{package}.{name}")
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with importing:
        value = getattr(import_module(f"{package}.{homes[name]}"), name)
    setattr(sys.modules[package], name, value)
    return value


def offering(
    owner: str, names: Mapping[str, str], package: str | None = None
) -> Callable[[str], Any]:
    """The `__getattr__` of a module that imports what it offers when it is first asked for it.

    Args:
        owner: Name of the module.
        names: For each of the package's modules the names that it has, with spaces between them;
            `ours=its` where the owner's name for something is another. Modules are offered, too.
        package: The package; the owner itself by default.
    """
    package = package or owner
    where: dict[str, tuple[str, str]] = {}
    for module, offered in names.items():
        for each in offered.split():
            ours, _, its = each.partition("=")
            where[ours] = module, its or ours

    def find(name: str) -> Any:
        if name in names:
            return import_module(f"{package}.{name}")
        if name not in where:
            raise AttributeError(f"module {owner!r} has no attribute {name!r}")
        module, its = where[name]
        found = getattr(import_module(f"{package}.{module}"), its)
        setattr(sys.modules[owner], name, found)
        return found

    return find
