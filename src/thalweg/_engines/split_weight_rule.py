"""Rules over split weights: the variable has the upper bits, the last slot the lower ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from thalweg._engines.codecs.split8 import CORRECTION, SPLIT8
from thalweg._engines.formula_graph import FormulaGraph, stream_nodes
from thalweg._engines.formula_parser import Composed, transcribe
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot


class Split(Composed):
    """Update formula over full weights, which engines join from the variable and a last slot.

    Args:
        formula: The update, `(var, grad, *slots, *, scalars) -> (var, *slots)`.
    """

    def __init__(self, formula: Any) -> None:
        self.formula = formula
        self.__qualname__ = f"{formula.__qualname__} of a split variable"

    def __call__(self, *values: Any, **scalars: Any) -> Any:
        raise RuleError(f"{self.__qualname__} is run by engines alone.")

    def compose(self) -> FormulaGraph:
        """Return the graph that updates the correction; the variable is its first result, too."""
        graph = transcribe(self.formula)
        count = len(graph.positional)
        (correction,) = stream_nodes(1, count)
        full_var, *slots = graph.apply([correction, *stream_nodes(count - 1, 1)])
        names = (*graph.positional, CORRECTION)
        return FormulaGraph(names, graph.scalars, (full_var, *slots, full_var))


@cache
def split_rule(rule: Rule) -> Rule:
    """Return the rule for bfloat16 variables, with the lower bits of the weight as a last slot.

    Raises:
        RuleError: The rule has passes or a `before` formula, which would not see the lower bits.
    """
    if rule.passes or rule.before:
        reason = "works on whole matrices" if rule.passes else "changes variables before its update"
        raise RuleError(
            f"weights='split' cannot be used with {rule.name!r}, which {reason} without the lower"
            " bits of the weights. Use masters=True instead."
        )
    return replace(
        rule,
        name=f"{rule.name} of split weights",
        update=Split(rule.update),
        update_sparse=None,
        update_single=None,
        update_untouched=None,
        whole=True,
        slots=(*rule.slots, Slot(CORRECTION, exact=True, storage=SPLIT8.name)),
    )
