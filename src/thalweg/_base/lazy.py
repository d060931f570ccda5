"""Lazy attributes, and names that a package imports at first access.

`functools.cached_property` of Python 3.11 holds one lock for all instances of a class while one of
them computes: threads wait for each other, and a child that is forked meanwhile waits for ever.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, Self, TypeVar, overload

from thalweg._base.locks import importing

T = TypeVar("T")

# Packages that lower layers offer names of, and functions that import them. `thalweg` registers
# them, so that a lower layer imports nothing from a higher one.
UPPER_PACKAGES: dict[str, Callable[[], Any]] = {}


class lazy(Generic[T]):
    """Attribute like `functools.cached_property`, without a lock: two threads may compute it.

    Args:
        function: `function(instance)` returns the value.
    """

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type[object]) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[object]) -> T: ...
    def __get__(self, instance: object, owner: type[object]) -> Self | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value


def offered(
    module_name: str, modules: Mapping[str, str], name: str, package: str | None = None
) -> Any:
    """Import an attribute from a submodule, store it in a module, and return it.

    The module's `__getattr__` calls this function. If `name` is a submodule, import and return it.

    Args:
        module_name: The name of the module.
        modules: {attribute: submodule}, or {attribute: "submodule:name"} if the names differ. A
            submodule must not read a lazy attribute at import: two threads could deadlock.
        name: The name of the attribute, or of a submodule.
        package: Optional. The name of the submodules' package; by default `module_name`.

    Raises:
        AttributeError: `name` is neither in `modules` nor a submodule.
    """
    package = package or module_name
    if name not in modules:
        if not name.startswith("_") and find_spec(f"{package}.{name}") is not None:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {module_name!r} has no attribute {name!r}")
    module, _, attribute = modules[name].partition(":")
    with importing:
        value = getattr(import_module(f"{package}.{module}"), attribute or name)
    setattr(sys.modules[module_name], name, value)
    return value


def offering(
    module_name: str, modules: Mapping[str, str], lists: Mapping[str, Iterable[str]], kind: type[T]
) -> tuple[Callable[[str], T], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package with lazily imported attributes.

    Args:
        module_name: The name of the package, whose `__all__` contains all names.
        modules: As for `offered`.
        lists: {attribute: names}. The value of such an attribute is a tuple of the named objects.
        kind: The type of an attribute for type checkers.
    """

    def get(name: str) -> Any:
        if name not in lists:
            return offered(module_name, modules, name)
        names = tuple(offered(module_name, modules, entry) for entry in lists[name])
        # Of two threads the first stores its tuple, and both return that tuple.
        return vars(sys.modules[module_name]).setdefault(name, names)

    def list_names() -> list[str]:
        return sorted(vars(sys.modules[module_name])["__all__"])

    return get, list_names
