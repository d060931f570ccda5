"""Composition of a rule with a formula that runs after its update."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from thalweg._engines.formula_graph import FormulaGraph, stream_nodes
from thalweg._engines.formula_parser import Composed
from thalweg.formula import ChainedFormula, Formula, Rule, Slot


class _Identity(Composed):
    """Formula that returns its inputs: a variable and slots.

    Args:
        slot_count: The number of slots.
    """

    def __init__(self, slot_count: int) -> None:
        self._count = 1 + slot_count
        self.__qualname__ = "identity"

    def compose(self) -> FormulaGraph:
        """Return a graph whose results are its inputs, of which the slots have no names."""
        names = ("var", *[""] * (self._count - 1))
        return FormulaGraph(names, (), tuple(stream_nodes(self._count)))


# Rules are compared by identity, so equal settings must give the same rule to share plans.
@cache
def follow_rule(rule: Rule, name: str, formula: Formula, slot: str) -> Rule:
    """Return a rule that runs `formula` after the update of `rule`, in one pass over memory.

    With a sparse gradient, the formula runs once for every row of the variable, including rows that
    the gradient lacks. Gradients of repeated rows are added first.

    Args:
        name: Name of the new rule.
        formula: Maps a variable and the new slot to their new values; see `ChainedFormula`.
        slot: Name of the new slot, the last of the rule.
    """
    untouched: Any = rule.update_untouched or _Identity(len(rule.element_slots))
    return replace(
        rule,
        name=name,
        update=ChainedFormula(rule.update, formula),
        update_sparse=rule.update_sparse and ChainedFormula(rule.update_sparse, formula),
        update_single=rule.update_single and ChainedFormula(rule.update_single, formula),
        update_untouched=ChainedFormula(untouched, formula),
        slots=(*rule.slots, Slot(slot)),
        duplicates="sum",
    )
