"""Pairs of formulas. An engine traces both formulas into one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg.errors import RuleError

Formula = Callable[..., Any]


class ComposedFormula:
    """Pair of formulas. Engines run the pair; calling the pair raises RuleError.

    Attributes:
        both: The formulas.

    Raises:
        RuleError: A formula is not a function.
    """

    def __init__(self, first: Formula, second: Formula, name: str) -> None:
        for formula in (first, second):
            if not hasattr(formula, "__qualname__"):
                raise RuleError(
                    f"A formula must be a function written with def, not {show_value(formula)}."
                )
        self.both = first, second
        self.__qualname__ = f"{first.__qualname__} {name} {second.__qualname__}"

    def __call__(self, *values: Any, **scalars: Any) -> Any:
        raise RuleError(f"{self.__qualname__} is run by engines alone.")


@exported_from("thalweg.formula")
class ChainedFormula(ComposedFormula):
    """Formula of a rule, followed by a second formula that receives the new variable.

    Args:
        first: A formula of a rule.
        then: The second formula. `(var, *, scalars) -> var` changes the variable. `(var, value, *,
            scalars) -> value` computes an additional slot, the last of the rule. `-> (var, value)`
            instead changes the variable and the slot.
    """

    def __init__(self, first: Formula | ChainedFormula, then: Formula) -> None:
        super().__init__(first, then, "then")
        self.first, self.then = first, then
