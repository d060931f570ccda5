"""Engines: update tensors in place by the formulas of any rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg._base.lazy import offered
from thalweg._engines.dispatcher import Dispatcher, check_gradients
from thalweg._engines.engine_selection import Selection, check_name, current, engine
from thalweg._engines.formula_arguments import apply_prepare, bind_arguments, check_scalars
from thalweg._engines.layout import compute_dtype
from thalweg._engines.low_precision_copies import resumed, saturated

if TYPE_CHECKING:
    from thalweg._engines.reference import transform
    from thalweg._engines.rule_check import check_rule
    from thalweg._engines.tensor_reductions import Tensors

__all__ = [
    "Dispatcher",
    "Selection",
    "Tensors",
    "apply_prepare",
    "bind_arguments",
    "check_gradients",
    "check_name",
    "check_rule",
    "check_scalars",
    "compute_dtype",
    "current",
    "engine",
    "resumed",
    "saturated",
    "transform",
]

_HOMES = {"Tensors": "tensor_reductions", "check_rule": "rule_check", "transform": "reference"}


def __getattr__(name: str) -> Any:
    return offered(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
