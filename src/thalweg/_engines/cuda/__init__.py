"""Engine for CUDA GPUs: rules as Triton kernels over tables of tensor addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg._base.lazy import offered

if TYPE_CHECKING:
    from thalweg._engines.cuda.kernel_group import Group
    from thalweg._engines.cuda.sparse import RowsPart
    from thalweg._engines.cuda.tree_reduction import LaunchedTree

__all__ = ["Group", "LaunchedTree", "RowsPart"]

_HOMES = {"Group": "kernel_group", "LaunchedTree": "tree_reduction", "RowsPart": "sparse"}


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
