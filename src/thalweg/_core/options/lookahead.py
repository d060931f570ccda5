"""Lookahead: slow weights that every few steps go a part of the way, from where steps go on.

Zhang et al. 2019, algorithm 1; https://arxiv.org/abs/1907.08610.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import cache
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
    """Once per element; a share of 0 stands for a step between."""
    moved = slow + slow_share * (var - slow)
    return where(slow_share != 0, moved, var), where(slow_share != 0, moved, slow)


@cache
def with_slow_weights(rule: Rule) -> Rule:
    """The rule with slow weights as a last slot."""
    with importing:
        from thalweg._core.options.post_update import follow_rule
    return follow_rule(rule, f"{rule.name} with slow weights", look_ahead, SLOW)


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class Lookahead(Option):
    """Slow weights of each parameter, to which it returns.

    Attributes:
        lookahead: Slow weights of each parameter are kept in its state, as `slow`. In every step
            whose number is a multiple of this one they go `lookahead_alpha` of the way to the
            parameter, which becomes what they are. They are float32 for parameters of 16 bits.
        lookahead_alpha: The share of the way.
    """

    begins = (SLOW,)
    changes_state = True
    counts = True
    lookahead: int | None = None
    lookahead_alpha: float = 0.5

    def __post_init__(self) -> None:
        every, alpha = self.lookahead, float(as_number("lookahead_alpha", self.lookahead_alpha))
        if every is not None:
            if isinstance(every, bool) or not isinstance(every, Integral) or every < 1:
                raise InvalidArgumentError(
                    "lookahead must be None or a number of steps from 1 on, not"
                    f" {show_value(every)}."
                )
            object.__setattr__(self, "lookahead", int(every))
        if not 0 < alpha <= 1:
            raise InvalidArgumentError(
                f"lookahead_alpha must be in (0, 1], not {show_value(self.lookahead_alpha)}."
            )
        object.__setattr__(self, "lookahead_alpha", alpha)
        if every is None and alpha != type(self).lookahead_alpha:
            raise InvalidArgumentError(f"lookahead_alpha={alpha} is of no use without lookahead.")

    def rule(self, rule: Rule) -> Rule:
        return with_slow_weights(rule)

    def scalars(self, lacked: Container[str], step: object) -> dict[str, Tensor | float]:
        return {SHARE: self._share(step)}

    def _share(self, step: Any) -> Tensor | float:
        """How far the slow weights go in the step after `step` others."""
        every = self.lookahead or 1
        # A count that somebody put there may have a fraction.
        if isinstance(step, Tensor):
            share = torch.full_like(step, self.lookahead_alpha, dtype=torch.float64)
            return torch.where((step + 1) // every > step // every, share, 0.0)
        return self.lookahead_alpha if (step + 1) // every > step // every else 0.0
