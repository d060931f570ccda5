"""Cautious decay: elements decay where steps make them smaller (Chen et al. 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.core.options.option import Others
from thalweg.core.options.sphere import Sphere
from thalweg.core.options.step_wrapper import StepWrapper, read
from thalweg.formula import Rule
from thalweg.rules import wrappers


@dataclass(frozen=True, kw_only=True)
class CautiousDecay(StepWrapper):
    """Elements decay where their step makes them smaller, and nowhere else.

    Attributes:
        cautious_decay: Decoupled decay, as AdamW's, is left out of the elements that a step moves
            away from 0. Rules without such decay are refused.
            https://arxiv.org/abs/2510.12402
    """

    cautious_decay: bool = False

    def check_beside(self, others: Others) -> None:
        self._refuse_beside(others, (Sphere,), "a sphere leaves no decay")

    def rule(self, rule: Rule) -> Rule:
        return read(wrappers.cautious_decay(rule))
