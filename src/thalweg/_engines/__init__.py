"""The engines: they update memory by formulas, and know no algorithm's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg._base.lazy import offered
from thalweg._engines.copies import resumed, saturated
from thalweg._engines.dispatcher import Dispatcher, check_gradients
from thalweg._engines.given import check_scalars, given_to, prepared
from thalweg._engines.layout import compute_dtype
from thalweg._engines.selection import Selection, check_name, current, engine

if TYPE_CHECKING:
    from thalweg._engines.check import check_rule
    from thalweg._engines.reference import transform
    from thalweg._engines.tensors import Tensors

__all__ = [
    "Dispatcher",
    "Selection",
    "Tensors",
    "check_gradients",
    "check_name",
    "check_rule",
    "check_scalars",
    "compute_dtype",
    "current",
    "engine",
    "given_to",
    "prepared",
    "resumed",
    "saturated",
    "transform",
]

_HOMES = {"Tensors": "tensors", "check_rule": "check", "transform": "reference"}


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
