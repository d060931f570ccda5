"""A step of a rule without an optimizer; the caller passes scalars and slots."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from torch import Tensor

from thalweg._base.scalars import as_operand
from thalweg._core.atomic_section import Call
from thalweg._core.grads_and_vars import Pair
from thalweg._core.step_adapter import Dtype, Shared, StepAdapter
from thalweg._core.step_scalars import derived
from thalweg._engines import Selection, check_gradients
from thalweg._engines.engine_selection import current
from thalweg.formula import Rule
from thalweg.variable import titles_of


class OneRule(StepAdapter):
    """Adapter of a step of one rule; the caller passes scalars and slots.

    Args:
        scalars: Hyperparameters by name.
        slots: The slots of every variable.
        counts: Functions in C that run in the step's commit.
        selection: The engine; None for the selected one.
        is_checked: True if an enclosing step has validated the pairs.
    """

    constrains = False
    sees_all = False

    def __init__(
        self,
        rule: Rule,
        scalars: Mapping[str, Any],
        slots: Sequence[Tensor] = (),
        counts: Sequence[Call] = (),
        selection: Selection | None = None,
        is_checked: bool = False,
    ) -> None:
        super().__init__()
        self._rule, self._scalars = rule, scalars
        self._slots, self._counts = slots, counts
        self._is_checked = is_checked
        self.selection = selection or current()

    def step_rule(self) -> Rule:
        return self._rule

    def names_of(self, variables: Sequence[Tensor]) -> list[str]:
        return titles_of(variables)

    def check_pairs(self, pairs: Sequence[Pair], narrow: bool) -> None:
        if not self._is_checked:
            variables = [var for _, var in pairs]
            gradients = [grad for grad, _ in pairs]
            check_gradients(variables, gradients, self.names_of(variables), scatter=False)

    def scalars_of(self, dtype: Dtype, group: Hashable) -> dict[str, Any]:
        values = {name: as_operand(value, dtype) for name, value in self._scalars.items()}
        return derived(self._rule, values, dtype, 1)

    def slots_of(self, var: Tensor) -> list[Tensor]:
        return list(self._slots)

    def counting_calls(self, shared: Shared) -> list[Call]:
        return list(self._counts)
