"""Rules over split weights: the variable has the upper bits, the last slot has the lower bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from thalweg._base.rule_passes import Measure, Pass
from thalweg._engines.codecs.split8 import CORRECTION, SPLIT8
from thalweg._engines.formula_graph import FormulaGraph, stream_nodes
from thalweg._engines.formula_parser import Composed, trace_formula
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot


class Split(Composed):
    """Update or pass over full weights, which engines join from the variable and the last slot.

    Args:
        formula: The update or a pass, `(var, grad, *made, *slots, *, scalars)`.
        output_count: The number of values that a pass makes; 0 for the update.
        input_count: The number of inputs before the last slot; the formula may take fewer.
    """

    def __init__(self, formula: Any, output_count: int, input_count: int) -> None:
        self.formula, self.output_count, self.input_count = formula, output_count, input_count
        self.__qualname__ = f"{formula.__qualname__} of a split variable"

    def compose(self) -> FormulaGraph:
        """Return the graph over the full weight, which is the last input.

        The first and the last result of an update are both the full weight; engines split it.
        """
        graph = trace_formula(self.formula)
        (correction,) = stream_nodes(1, self.input_count)
        results = graph.apply([correction, *stream_nodes(len(graph.positional) - 1, 1)])
        names = (*graph.positional, *[""] * (self.input_count - len(graph.positional)), CORRECTION)
        if not self.output_count:
            results.append(results[0])
        return FormulaGraph(names, graph.scalars, tuple(results))


@cache
def split_rule(rule: Rule) -> Rule:
    """Return a rule for bfloat16 variables; an added last slot has the lower bits of weights.

    Raises:
        RuleError: The rule measures rows or columns, or changes variables before its update.
    """
    measures_lines = any(isinstance(rule_pass, Measure) for rule_pass in rule.passes)
    if measures_lines or rule.before:
        reason = (
            "measures rows or columns" if measures_lines else "changes variables before its update"
        )
        raise RuleError(
            f"weights='split' cannot be used with {rule.name!r}, which {reason} without the lower"
            " bits of the weights. Use masters=True instead."
        )
    input_count = 2 + len(rule.element_slots)
    passes: list[Any] = []
    for rule_pass in rule.passes:
        if isinstance(rule_pass, Pass):
            count = len(rule_pass.makes)
            function = Split(rule_pass.function, count, input_count)
            passes.append(replace(rule_pass, function=function))
            input_count += count
        else:
            passes.append(rule_pass)
    # Slots in codes take dense gradients alone, so the rule is `whole`, without formulas of rows.
    return replace(
        rule,
        name=f"{rule.name} of split weights",
        update=Split(rule.update, 0, input_count),
        update_sparse=None,
        update_single=None,
        update_untouched=None,
        whole=True,
        passes=tuple(passes),
        slots=(*rule.slots, Slot(CORRECTION, exact=True, storage=SPLIT8.name)),
    )
