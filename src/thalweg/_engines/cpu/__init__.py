"""The CPU engine: formulas compiled into loops over raw memory, on torch's own threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg._base.lazy import offered
from thalweg._engines.cpu import team as team  # which sees to torch's threads at each fork

if TYPE_CHECKING:
    from thalweg._engines.cpu.group import Group
    from thalweg._engines.cpu.short import ShortGroup, find_short
    from thalweg._engines.cpu.sparse import SparsePlan

__all__ = ["Group", "ShortGroup", "SparsePlan", "find_short"]

_HOMES = {"Group": "group", "ShortGroup": "short", "SparsePlan": "sparse", "find_short": "short"}


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
