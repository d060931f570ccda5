"""The names of a graph's nodes, unique as TensorFlow 1 makes them: add, add_1, add_2."""

from __future__ import annotations

import re

from thalweg.errors import InvalidArgumentError

_FIRST = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_LATER = re.compile(r"[A-Za-z0-9_.\\/>-]*")


class UniqueNames:
    """Set of used names, compared without case."""

    def __init__(self) -> None:
        self._uses: dict[str, int] = {}

    def make_unique(self, name: str, mark_as_used: bool = True) -> str:
        """Return `name`, or the first of name_1, name_2, ... that is not used; ignore case."""
        # TensorFlow compares names without case, too.
        key = name.lower()
        count = self._uses.get(key, 0)
        unique_name = name
        while unique_name.lower() in self._uses:
            unique_name = f"{name}_{max(count, 1)}"
            count = max(count, 1) + 1
        if mark_as_used:
            self._uses[key] = max(count, 1)
            self._uses.setdefault(unique_name.lower(), 1)
        return unique_name

    def mark_used(self, name: str) -> None:
        """Reserve a name."""
        self._uses.setdefault(name.lower(), 1)


def check_name(name: str, scope: str = "") -> str:
    """Return `name`; raise InvalidArgumentError if it is not valid for a node inside `scope`."""
    pattern = _LATER if scope else _FIRST
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise InvalidArgumentError(
            f"{name!r} is not a valid name: expected letters, digits and any of . _ - / which "
            "starts with a letter, a digit or a dot."
        )
    return name


def node_name_from(name: str) -> str:
    """Return the name of a function or class with characters that node names allow."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_") or "node"
