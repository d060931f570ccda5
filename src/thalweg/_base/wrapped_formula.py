"""Formulas that replace or measure the step (change of a variable) of another formula."""

from __future__ import annotations

from thalweg._base.composed_formula import ComposedFormula, Formula
from thalweg._base.exports import exported_from


@exported_from("thalweg.formula")
class WrappedStepFormula(ComposedFormula):
    """Formula that computes a variable from the step of another formula.

    Args:
        formula: `(var, grad, *slots, *, scalars) -> (var, *slots)`. It may return the variable as
            `moved(base, step)`. Without `moved`, the base is the old variable, and the step is the
            variable's change.
        how: `(var, grad, base, step, *, scalars) -> var`. Its result replaces `base + step`.
        decays: True if engines reject a `formula` whose base is the old variable.
    """

    def __init__(self, formula: Formula, how: Formula, decays: bool = False) -> None:
        super().__init__(formula, how, "within")
        self.formula, self.how, self.decays = formula, how, decays
        self.__name__ = how.__name__


@exported_from("thalweg.formula")
class StepMeasure(WrappedStepFormula):
    """Sum over elements that measures a rule's step: `how` returns a number for each element.

    `how` is computed in the dtype of the update; see `formula.like_update`.
    """

    is_like_update = True
