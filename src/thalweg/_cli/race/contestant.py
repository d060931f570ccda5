"""A contestant of the race."""

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
    """An optimizer in the race.

    Args:
        name: The name in tables.
        make: Makes the optimizer with a learning rate, or with its own if that is None.
        learning_rate: The learning rate to make it with.
        source: The module it comes from, or the text of the entry for an object of the user.
        arguments: The other arguments that it is made with.
    """

    name: str
    make: Callable[[float | None], Optimizer]
    learning_rate: float | None
    source: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
