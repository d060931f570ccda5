"""Which attributes of an optimizer a framework asks for, or sets."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SEEN: dict[str, set[str]] = defaultdict(set)


def _note(name: str) -> None:
    if not name.startswith("__"):
        _SEEN[sys._getframe(2).f_globals.get("__name__", "")].add(name)


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
    """A subclass that notes who asks for which attribute; its name is the class's own."""
    return type(cls.__name__, (_Watched, cls), {})


@contextmanager
def touching(*frameworks: str) -> Iterator[set[str]]:
    """What modules of frameworks touched, when the `with` block has ended."""
    _SEEN.clear()
    found: set[str] = set()
    yield found
    for module, names in _SEEN.items():
        if f"{module}.".startswith(tuple(f"{each}." for each in frameworks)):
            found |= names


def assert_known(found: set[str], known: str) -> None:
    """Assert that a framework asks for nothing that it did not ask for before.

    Args:
        found: What it touched.
        known: The list that is kept, separated by spaces.
    """
    assert found, "nothing was watched"
    new = sorted(found - set(known.split()))
    assert not new, f"This release also asks an optimizer for {', '.join(new)}."
