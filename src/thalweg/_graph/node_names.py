"""Names that a graph's nodes may have."""

from __future__ import annotations

import re

from thalweg.errors import InvalidArgumentError

_FIRST = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_LATER = re.compile(r"[A-Za-z0-9_.\\/>-]*")


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
