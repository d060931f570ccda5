"""The engine of GPUs: the rules as Triton kernels over tables of addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.ground.lazily import offered

if TYPE_CHECKING:
    from thalweg.engines.cuda.group import Group
    from thalweg.engines.cuda.sparse import RowsPart

__all__ = ["Group", "RowsPart"]

_HOMES = {"Group": "group", "RowsPart": "sparse"}


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
