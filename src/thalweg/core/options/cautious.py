"""Cautious steps: no element moves against its gradient (Liang et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.core.options.option import Others
from thalweg.core.options.sphere import Sphere
from thalweg.core.options.step_wrapper import StepWrapper, read
from thalweg.core.options.trust_ratio import MEASURES, TrustRatio
from thalweg.formula import Rule
from thalweg.rules import wrappers


@dataclass(frozen=True, kw_only=True)
class Cautious(StepWrapper):
    """No element moves against its gradient.

    Attributes:
        cautious: Elements whose step would go against their gradient stay, and the steps of the
            others are divided by their share of the parameter, which counts as at least 0.001.
            https://arxiv.org/abs/2411.16085
    """

    cautious: bool = False

    def check_beside(self, others: Others) -> None:
        self._refuse_beside(others, (TrustRatio, Sphere), MEASURES)

    def rule(self, rule: Rule) -> Rule:
        return read(wrappers.cautious(rule))
