"""Steps on a sphere: parameters keep their norms (Hyperball, 2026)."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.core.options.step_wrapper import StepWrapper, read
from thalweg.formula import Rule
from thalweg.rules import wrappers


@dataclass(frozen=True, kw_only=True)
class Sphere(StepWrapper):
    """Parameters keep the norm that they begin with.

    Attributes:
        sphere: A step is as long as its parameter, times the rate, and leads to a parameter of the
            norm that it had before its first step, which is kept in its state, as `radius`. Decay
            has no effect beside it. A parameter that begins at 0 takes the rule's own steps, of
            which a warning tells. https://arxiv.org/abs/2606.16899
    """

    changes_state = True
    without = ("radius", "is 0 and has no sphere, so sphere=True leaves its steps as they are.")
    sphere: bool = False

    def rule(self, rule: Rule) -> Rule:
        return read(wrappers.sphere(rule))
