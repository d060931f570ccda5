"""Contestant of a race."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg._cli.registry.apply_gradients_adapter import ApplyGradientsAdapter
from thalweg.keras import optimizers
from thalweg.v1 import train

Optimizer = optimizers.Optimizer | train.Optimizer | ApplyGradientsAdapter


@dataclass(frozen=True)
class Contestant:
    """Optimizer that takes part in a race.

    Args:
        name: The name in tables.
        make: `make(learning_rate)` builds the optimizer; None means the optimizer's default.
        learning_rate: The argument of `make`.
        source: The module of the class, or the text of the entry for a user's object.
        arguments: The other arguments of the constructor.
    """

    name: str
    make: Callable[[float | None], Optimizer]
    learning_rate: float | None
    source: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
