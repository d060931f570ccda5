"""Public module names of objects that private modules define."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


def exported_from(module: str) -> Callable[[T], T]:
    """Return a decorator that sets an object's `__module__` to a public module.

    Documentation and pickles then name the public module. Place the decorator above `dataclass`,
    which looks up annotations in the defining module.
    """

    def set_module(public: T) -> T:
        public.__module__ = module
        return public

    return set_module
