"""Option for exponential moving averages of parameters."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from thalweg._base.exports import exported_from
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._core.hyperparameters import as_number
from thalweg._core.options.base import Option
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Rule
from thalweg.rules.average import EMA, WEIGHT, average


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Average(Option):
    """Exponential moving average of each parameter.

    Attributes:
        ema_decay: Decay of the average, in [0, 1). The average is `ema` in the state, and float32
            for parameters of 16 bits. None keeps no average.
    """

    begins = (EMA,)
    changes_state = True
    ema_decay: float | None = None

    def __post_init__(self) -> None:
        if self.ema_decay is not None:
            decay = float(as_number("ema_decay", self.ema_decay))
            if not 0 <= decay < 1:
                raise InvalidArgumentError(
                    f"ema_decay must be in [0, 1), not {show_value(self.ema_decay)}."
                )
            object.__setattr__(self, "ema_decay", decay)

    def rule(self, rule: Rule) -> Rule:
        """Return the rule followed by a moving average of its variable, as last slot."""
        with importing:
            from thalweg._core.options.post_update import follow_rule
        return follow_rule(rule, f"{rule.name} with an average", average, EMA)

    def scalars(self, lacked: Container[str], step: object) -> dict[str, Tensor | float]:
        return {WEIGHT: self._choose_weight(EMA in lacked, step)}

    def _choose_weight(self, is_new: bool, step: object) -> Tensor | float:
        """Return the weight of the parameter in its average: 1 in the first step."""
        weight = 1 - cast("float", self.ema_decay)
        if isinstance(step, Tensor) and not is_new:
            return torch.where(step == 0, torch.ones_like(step, dtype=torch.float64), weight)
        return 1.0 if is_new or not step else weight
