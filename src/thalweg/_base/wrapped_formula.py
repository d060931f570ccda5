"""Formulas around the step of another formula."""

from __future__ import annotations

from thalweg._base.composed_formula import ComposedFormula, Formula
from thalweg._base.exports import exported_from


@exported_from("thalweg.formula")
class WrappedStepFormula(ComposedFormula):
    """Formula that computes the variable from the step of another formula.

    Args:
        formula: `(var, grad, *slots, *, scalars) -> (var, *slots)`. It returns `moved(base, step)`.
            Without `moved`, the base is the variable, and the step is the variable's change.
        how: `(var, grad, base, step, *, scalars) -> var`. Its result replaces `base + step`.
        decays: True if the base must differ from the variable.
    """

    def __init__(self, formula: Formula, how: Formula, decays: bool = False) -> None:
        super().__init__(formula, how, "within")
        self.formula, self.how, self.decays = formula, how, decays
        self.__name__ = how.__name__


@exported_from("thalweg.formula")
class StepMeasure(WrappedStepFormula):
    """Measure of a rule's step: `how` returns the number of each element that is summed.

    It is computed in the dtype of the update; see `formula.like_update`.
    """

    is_like_update = True
