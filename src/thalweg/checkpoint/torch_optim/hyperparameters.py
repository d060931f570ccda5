"""Hyperparameters of an optimizer by the names in its rule."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._core.hyperparameters import as_hyper, is_number


def constant_hypers(optimizer: Any) -> dict[str, float]:
    """Return the hyperparameters of an optimizer that are numbers, not schedules or callables."""
    hypers: dict[str, Any] = {}
    if is_classic(optimizer):
        attributes: dict[str, str] = getattr(optimizer, "HYPERS", {})
        hypers = {name: getattr(optimizer, attribute) for name, attribute in attributes.items()}
        hypers["weight_decay"] = getattr(optimizer, "_weight_decay", None)
    else:
        numbers, exact = optimizer._hyper.numbers(), getattr(optimizer, "EXACT", {})
        names = getattr(optimizer, "NAMES", {})
        for hyper in optimizer._choose_rule().hypers:
            number = numbers.get(names.get(hyper.name, hyper.name))
            hypers[hyper.name] = (
                getattr(optimizer, exact[hyper.name]) if hyper.name in exact else number
            )
    return {name: _as_float(hyper) for name, hyper in hypers.items() if _is_constant(hyper)}


def is_classic(optimizer: object) -> bool:
    """Return True if an optimizer is one of `thalweg.v1`."""
    return getattr(optimizer, "_needs_variables", False)


def current_hypers(optimizer: Any) -> dict[str, float]:
    """Return all hyperparameters as the next step will use them; schedules and callables are
    called.
    """
    if is_classic(optimizer):
        values: dict[str, Any] = optimizer._read_values()
        names = [*getattr(optimizer, "HYPERS", {}), "decoupled_decay"]
        hypers = {
            name: float(as_hyper(values[name], np.float64)) for name in names if name in values
        }
        if "decoupled_decay" in hypers:
            hypers["weight_decay"] = hypers.pop("decoupled_decay")
        return hypers
    with optimizer._hyper:
        scalars = optimizer._hyper_scalars(np.float64)
    return {name: float(scalar) for name, scalar in scalars.items()}


def beta_of(optimizer: Any, name: str) -> Any:
    """Return a hyperparameter of a `thalweg.v1` optimizer as it was given, or a callable's
    value.
    """
    return optimizer._call_if_callable(getattr(optimizer, optimizer.HYPERS[name]))


def decay_of(optimizer: Any) -> float:
    """Return the learning rate's `decay` of a Keras optimizer; 0 for others."""
    has_decay = "decay" not in {hyper.name for hyper in optimizer._choose_rule().hypers}
    return float(getattr(optimizer, "_initial_decay", 0.0)) if has_decay else 0.0


def _is_constant(hyper: object) -> bool:
    """Return True for hyperparameters that are numbers."""
    is_scalar = isinstance(hyper, Tensor) and not is_symbolic(hyper) and hyper.numel() == 1
    return is_number(hyper) or is_scalar


def _as_float(hyper: Any) -> float:
    """Return a number or scalar tensor as a float."""
    return float(hyper.detach() if isinstance(hyper, Tensor) else hyper)
