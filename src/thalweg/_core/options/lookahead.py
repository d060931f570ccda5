"""Lookahead: slow weights, interpolated toward the parameters every few steps.

Zhang et al. 2019, algorithm 1; https://arxiv.org/abs/1907.08610.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from thalweg._base.exports import exported_from
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._core.hyperparameters import as_number
from thalweg._core.options.base import Option
from thalweg.errors import InvalidArgumentError
from thalweg.formula import Rule, where

SLOW = "slow"
SHARE = "slow_share"


def look_ahead(var: Any, slow: Any, *, slow_share: Any) -> Any:
    """Return the new variable and slow weight of an element; a share of 0 changes neither."""
    new_slow = slow + slow_share * (var - slow)
    return where(slow_share != 0, new_slow, var), where(slow_share != 0, new_slow, slow)


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Lookahead(Option):
    """Lookahead with slow weights in the state of each parameter.

    Attributes:
        lookahead: Number of steps between updates of the slow weights, `slow` in the state. An
            update moves them toward the parameter and sets the parameter to them. They are float32
            for 16-bit parameters.
        lookahead_alpha: Interpolation factor in (0, 1].
    """

    begins = (SLOW,)
    changes_state = True
    counts = True
    lookahead: int | None = None
    lookahead_alpha: float = 0.5

    def __post_init__(self) -> None:
        interval, alpha = self.lookahead, float(as_number("lookahead_alpha", self.lookahead_alpha))
        if interval is not None:
            if isinstance(interval, bool) or not isinstance(interval, Integral) or interval < 1:
                raise InvalidArgumentError(
                    "lookahead must be None or a positive number of steps, not"
                    f" {show_value(interval)}."
                )
            object.__setattr__(self, "lookahead", int(interval))
        if not 0 < alpha <= 1:
            raise InvalidArgumentError(
                f"lookahead_alpha must be in (0, 1], not {show_value(self.lookahead_alpha)}."
            )
        object.__setattr__(self, "lookahead_alpha", alpha)
        if interval is None and alpha != type(self).lookahead_alpha:
            raise InvalidArgumentError(f"lookahead_alpha={alpha} needs lookahead: set it, too.")

    def rule(self, rule: Rule) -> Rule:
        """Return the rule followed by Lookahead, with the slow weights as last slot."""
        with importing:
            from thalweg._core.options.post_update import follow_rule
        return follow_rule(rule, f"{rule.name} with slow weights", look_ahead, SLOW)

    def scalars(self, lacked: Container[str], step: object) -> dict[str, Tensor | float]:
        return {SHARE: self._choose_alpha(step)}

    def _choose_alpha(self, step: Any) -> Tensor | float:
        """Return the interpolation factor after `step` earlier steps; 0 between updates."""
        interval = self.lookahead or 1
        # A loaded step count may have a fraction, so a remainder of 0 is not a safe test.
        if isinstance(step, Tensor):
            alpha = torch.full_like(step, self.lookahead_alpha, dtype=torch.float64)
            return torch.where((step + 1) // interval > step // interval, alpha, 0.0)
        return self.lookahead_alpha if (step + 1) // interval > step // interval else 0.0
