"""The CPU engine: formulas compiled into loops over raw memory, on torch's own threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg._base.lazy import offered

# Registers the handler that resets torch's threads in forked processes.
from thalweg._engines.cpu import openmp as openmp

if TYPE_CHECKING:
    from thalweg._engines.cpu.kernel_group import Group
    from thalweg._engines.cpu.small_matrices import ShortGroup, find_short
    from thalweg._engines.cpu.sparse import SparsePlan

__all__ = ["Group", "ShortGroup", "SparsePlan", "find_short"]

_HOMES = {
    "Group": "kernel_group",
    "ShortGroup": "small_matrices",
    "SparsePlan": "sparse",
    "find_short": "small_matrices",
}


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
