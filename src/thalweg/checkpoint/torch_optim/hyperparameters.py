"""Hyperparameters of an optimizer, under the names that its rule has for them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._core.hyperparameters import as_hyper, is_number


def constant_hypers(optimizer: Any) -> dict[str, float]:
    """Return the hyperparameters of an optimizer that are numbers, not schedules or callables."""
    given: dict[str, Any] = {}
    if is_classic(optimizer):
        hypers: dict[str, str] = getattr(optimizer, "HYPERS", {})
        given = {name: getattr(optimizer, attribute) for name, attribute in hypers.items()}
        given["weight_decay"] = getattr(optimizer, "_weight_decay", None)
    else:
        numbers, exact = optimizer._hyper.numbers(), getattr(optimizer, "EXACT", {})
        names = getattr(optimizer, "NAMES", {})
        for hyper in optimizer._choose_rule().hypers:
            own = numbers.get(names.get(hyper.name, hyper.name))
            given[hyper.name] = (
                getattr(optimizer, exact[hyper.name]) if hyper.name in exact else own
            )
    return {name: _as_float(value) for name, value in given.items() if _is_plain(value)}


def is_classic(optimizer: object) -> bool:
    """Return True if an optimizer is one of `thalweg.v1`."""
    return getattr(optimizer, "_needs_variables", False)


def current_hypers(optimizer: Any) -> dict[str, float]:
    """Return all hyperparameters as the next step will have them; schedules and callables are
    called.
    """
    if is_classic(optimizer):
        values: dict[str, Any] = optimizer._read_values()
        names = [*getattr(optimizer, "HYPERS", {}), "decoupled_decay"]
        found = {
            name: float(as_hyper(values[name], np.float64)) for name in names if name in values
        }
        if "decoupled_decay" in found:
            found["weight_decay"] = found.pop("decoupled_decay")
        return found
    with optimizer._hyper:
        scalars = optimizer._hyper_scalars(np.float64)
    return {name: float(value) for name, value in scalars.items()}


def beta_of(optimizer: Any, name: str) -> Any:
    """Return a hyperparameter of an optimizer of `thalweg.v1` as it was given; of a callable its
    value.
    """
    return optimizer._call_if_callable(getattr(optimizer, optimizer.HYPERS[name]))


def decay_of(optimizer: Any) -> float:
    """Return the `decay` of the learning rate of an optimizer of Keras; 0 for others."""
    has_decay = "decay" not in {hyper.name for hyper in optimizer._choose_rule().hypers}
    return float(getattr(optimizer, "_initial_decay", 0.0)) if has_decay else 0.0


def _is_plain(value: object) -> bool:
    is_scalar = isinstance(value, Tensor) and not is_symbolic(value) and value.numel() == 1
    return is_number(value) or is_scalar


def _as_float(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)
