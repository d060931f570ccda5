"""The CPU engine: formulas compiled into loops over raw memory, on torch's own threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.engines.cpu import team as team  # which sees to torch's threads at each fork
from thalweg.ground.lazily import offered

if TYPE_CHECKING:
    from thalweg.engines.cpu.group import Group, make_group
    from thalweg.engines.cpu.short import find_short
    from thalweg.engines.cpu.sparse import SparsePlan

__all__ = ["Group", "SparsePlan", "find_short", "make_group"]

_HOMES = {
    "Group": "group",
    "SparsePlan": "sparse",
    "find_short": "short",
    "make_group": "group",
}


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
