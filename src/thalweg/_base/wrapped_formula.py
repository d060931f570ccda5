"""A formula around the step of another: what becomes of the variable, or is measured."""

from __future__ import annotations

from thalweg._base.composed_formula import ComposedFormula, Formula
from thalweg._base.exports import exported_from


@exported_from("thalweg.formula")
class WrappedStepFormula(ComposedFormula):
    """A formula of a rule, of whose step another formula makes the variable.

    Args:
        formula: `(var, grad, *slots, *, scalars) -> (var, *slots)`. Its step is what it says is
            `moved`; without that the variable is the base, and all that becomes of it the step.
        how: A formula `(var, grad, base, step, *, scalars) -> var` of the variable and the
            gradient, and of what the formula would add up.
        decays: Whether the base must be another than the variable.
    """

    def __init__(self, formula: Formula, how: Formula, decays: bool = False) -> None:
        super().__init__(formula, how, "within")
        self.formula, self.how, self.decays = formula, how, decays
        self.__name__ = how.__name__


@exported_from("thalweg.formula")
class StepMeasure(WrappedStepFormula):
    """A measure of a rule's step: of the same values `how` makes the one number that is summed.

    It is computed in the type of the update, whose step it sees; see `formula.like_update`.
    """

    is_like_update = True
