"""A trust ratio: steps are as long as their parameters, times the rate (You et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.core.options.option import Others
from thalweg.core.options.sphere import Sphere
from thalweg.core.options.step_wrapper import StepWrapper, read
from thalweg.formula import Rule
from thalweg.rules import wrappers

MEASURES = "what one measures of a step would follow from what the other has measured"


@dataclass(frozen=True, kw_only=True)
class TrustRatio(StepWrapper):
    """Steps are as long as their parameters, times the rate.

    Attributes:
        trust_ratio: The step of each parameter is multiplied by the parameter's norm over that of
            the step without its rate, where neither is 0: LAMB's way with Adam, LARS' with SGD.
            https://arxiv.org/abs/1904.00962
    """

    trust_ratio: bool = False

    def check_beside(self, others: Others) -> None:
        self._refuse_beside(others, (Sphere,), MEASURES)

    def rule(self, rule: Rule) -> Rule:
        return read(wrappers.trust_ratio(rule))
