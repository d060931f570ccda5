"""Groups of parameters: their options under the names that rules have for them."""

from __future__ import annotations

from typing import Any

Group = dict[str, Any]

_NAMES = {"lr": "learning_rate", "eps": "epsilon"}
_PAIRS = {
    "betas": ("beta1", "beta2"),
    "etas": ("eta_minus", "eta_plus"),
    "step_sizes": ("step_size_min", "step_size_max"),
}


def hypers_of(group: Group) -> dict[str, Any]:
    """A group's options under the names of hyperparameters."""
    found: dict[str, Any] = {}
    for key, value in group.items():
        if key in _PAIRS:
            found.update(zip(_PAIRS[key], value, strict=True))
        else:
            found[_NAMES.get(key, key)] = value
    return found
