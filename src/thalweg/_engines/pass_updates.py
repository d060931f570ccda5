"""The passes of a rule as updates, each over all that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from thalweg._base.rule_passes import Measure, Pass
from thalweg._engines.formula_graph import FormulaGraph, stream_nodes
from thalweg._engines.formula_parser import Composed, transcribe
from thalweg.errors import RuleError
from thalweg.formula import Rule, Slot, is_like_update


class JointPassFormula(Composed):
    """A formula of a rule with passes, as engines run it: over all that its passes make.

    Args:
        formula: `(var, grad, *made, *slots, *, scalars)`, which takes what passes before it made.
        known: How many values these have made.
        makes: How many it makes itself. None are for the update, which returns `(var, *slots)`;
            another formula leaves all else as it was.
        total: How many values all passes make.
        slots: How many slots there are, some of which options may have added to those it takes.
        vectors: What it may ask for of a "row" or a "column", by name.
        rule: The rule.
    """

    def __init__(
        self,
        formula: Any,
        known: int,
        makes: int,
        total: int,
        slots: int,
        vectors: Mapping[str, str],
        rule: Rule,
    ) -> None:
        self.formula, self.known, self.makes, self.total = formula, known, makes, total
        self.slots, self.vectors, self.rule = slots, vectors, rule
        self.is_pass = makes > 0
        self.__qualname__ = formula.__qualname__

    def __call__(self, *values: Any, **scalars: Any) -> Any:
        raise RuleError(f"{self.__qualname__} is run by engines alone.")

    def compose(self) -> FormulaGraph:
        """Return the graph over the values of all passes and all slots."""
        graph, first_slot = transcribe(self.formula), 2 + self.known
        inputs = stream_nodes(2 + self.total + self.slots)
        slots = len(graph.positional) - first_slot
        values = graph.apply([*inputs[:first_slot], *inputs[2 + self.total :][:slots]])
        results = [inputs[0], *inputs[2:]]
        if self.makes:
            results[1 + self.known : 1 + self.known + self.makes] = values
        else:
            results[0] = values[0]
            results[1 + self.total : 1 + self.total + slots] = values[1:]
        return FormulaGraph(_name_values(len(inputs)), graph.scalars, tuple(results))


class VisiblePassFormula(Composed):
    """A measure of a rule with passes, as engines take it: of all that its passes make.

    Args:
        formula: `(var, grad, *made, *slots, *, scalars)`, which sees what passes before it made.
        known: How many values these have made.
        total: How many values all passes make.
    """

    def __init__(self, formula: Any, known: int, total: int) -> None:
        self.formula, self.known, self.total = formula, known, total
        self.is_like_update = is_like_update(formula)
        self.__qualname__ = formula.__qualname__

    def __call__(self, *values: Any, **scalars: Any) -> Any:
        raise RuleError(f"{self.__qualname__} is run by engines alone.")

    def compose(self) -> FormulaGraph:
        """Return the graph over the values of all passes."""
        graph, first_slot = transcribe(self.formula), 2 + self.known
        inputs = stream_nodes(len(graph.positional) + self.total - self.known)
        results = graph.apply([*inputs[:first_slot], *inputs[2 + self.total :]])
        return FormulaGraph(_name_values(len(inputs)), graph.scalars, tuple(results))


def _name_values(count: int) -> tuple[str, ...]:
    return tuple(f"value{position}" for position in range(count))


@cache
def sweeps_of(rule: Rule) -> dict[Measure, tuple[Measure, ...]]:
    """For the first measure of each sweep all of them, as engines take them.

    Measures that follow one another share a sweep, unless one reads what another has made.
    """
    found: dict[Measure, tuple[Measure, ...]] = {}
    first: Measure | None = None
    known = 0
    for each in rule.passes:
        known += len(getattr(each, "of_elements", ()))
        if not isinstance(each, Measure):
            first = None
            continue
        asked = transcribe(each.function).scalars
        if first is None or any(other.makes in asked for other in found[first]):
            first = each
        own = (
            each
            if known == len(rule.made)
            else replace(each, function=_seen(each.function, known, len(rule.made)))
        )
        found[first] = (*found.get(first, ()), own)
    return found


def sweeps_in_order(rule: Rule) -> list[tuple[str, ...]]:
    """What each sweep of a step over memory makes, by name; nothing for that of the update."""
    known, found = sweeps_of(rule), list[tuple[str, ...]]()
    for each in rule.passes:
        if isinstance(each, Pass):
            found.append(each.makes)
        elif isinstance(each, Measure) and each in known:
            found.append(tuple(own.makes for own in known[each]))
    levels = (each.measures for each in rule.levels)
    return [*found, *(tuple(own) for own in (rule.measures, *levels) if own), ()]


def count_read_streams(rule: Rule) -> int:
    """How many tensors of a variable's shape the sweeps of measures read, counted in each."""
    return sum(len(_read_by(several)) for several in sweeps_of(rule).values())


def _read_by(measures: tuple[Measure, ...]) -> set[int]:
    return {stream for measure in measures for stream in transcribe(measure.function).streams}


@cache
def _seen(formula: Any, known: int, total: int) -> VisiblePassFormula:
    return VisiblePassFormula(formula, known, total)


@cache
def updates_of(rule: Rule) -> tuple[Rule, ...]:
    """The passes and the update of a rule, each as an update, with slots for what is made."""
    names, found = rule.made, list[Rule]()
    slots = (*map(Slot, names), *rule.element_slots)
    known, beside = 0, (len(names), len(rule.element_slots), rule.vectors, rule)
    for each in rule.passes:
        if isinstance(each, Pass):
            count = len(each.makes)
            formula = JointPassFormula(each.function, known, count, *beside)
            found.append(Rule(name=rule.name, update=formula, slots=slots))
            known += count
    last = JointPassFormula(rule.update, known, 0, *beside)
    return (*found, Rule(name=rule.name, update=last, slots=slots, before=rule.before))
