"""Attributes of an optimizer that a framework reads or sets."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES: dict[str, set[str]] = defaultdict(set)


def _note(name: str) -> None:
    if not name.startswith("__"):
        _NAMES[sys._getframe(2).f_globals.get("__name__", "")].add(name)


class _Watched:
    def __getattribute__(self, name: str) -> Any:
        _note(name)
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        _note(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        _note(name)
        super().__delattr__(name)


def watched(cls: Any) -> Any:
    """Return a subclass, of the same name, that records attributes by calling module."""
    return type(cls.__name__, (_Watched, cls), {})


@contextmanager
def touching(*frameworks: str) -> Iterator[set[str]]:
    """Yield a set, filled at the end of the block with the names that frameworks used."""
    _NAMES.clear()
    accessed: set[str] = set()
    yield accessed
    for module, names in _NAMES.items():
        if f"{module}.".startswith(tuple(f"{framework}." for framework in frameworks)):
            accessed |= names


def assert_known(accessed: set[str], expected: str) -> None:
    """Assert that a framework uses no attribute outside of a recorded list.

    Args:
        accessed: Names that it used.
        expected: The recorded list, separated by spaces.
    """
    assert accessed, "nothing was watched"
    new = sorted(accessed - set(expected.split()))
    assert not new, f"This release also asks an optimizer for {', '.join(new)}."
