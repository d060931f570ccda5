"""Conversion of a rule's passes (formulas that run before the update) to rules without passes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure, Pass, Stage
from thalweg._engines.formula_graph import FormulaGraph, stream_nodes
from thalweg._engines.formula_parser import Composed, trace_formula
from thalweg._engines.fused_stage import read_stage
from thalweg._engines.matrix_batches import RANDOM, stage_inputs
from thalweg.formula import Rule, Slot, is_like_update


class JointPassFormula(Composed):
    """Formula of a pass, measure or update, with the values of all passes as inputs.

    Args:
        formula: `(var, grad, *made, *slots, *, scalars)`; it reads the values of earlier passes.
        earlier_count: Number of values that earlier passes make.
        output_count: Number of values that a pass makes; 0 for the update, which returns `(var,
            *slots)`; None for a measure, which returns its result alone. The results of passes and
            updates are var, the values of all passes and the slots, unchanged if not computed.
        rule: The rule. Options may have added slots that the formula does not take.
    """

    def __init__(
        self, formula: Any, earlier_count: int, output_count: int | None, rule: Rule
    ) -> None:
        self.formula, self.vectors, self.rule = formula, rule.vectors, rule
        self.earlier_count, self.output_count = earlier_count, output_count
        self.is_pass, self.is_like_update = bool(output_count), is_like_update(formula)
        self.__qualname__ = formula.__qualname__

    def compose(self) -> FormulaGraph:
        """Return the graph with the values of all passes, then the slots, as inputs."""
        graph, first_slot = trace_formula(self.formula), 2 + self.earlier_count
        value_count = len(self.rule.made)
        inputs = stream_nodes(2 + value_count + len(self.rule.element_slots))
        slots = len(graph.positional) - first_slot
        values = graph.apply([*inputs[:first_slot], *inputs[2 + value_count :][:slots]])
        results = [inputs[0], *inputs[2:]]
        if self.output_count is None:
            results = values
        elif self.output_count:
            results[1 + self.earlier_count : 1 + self.earlier_count + self.output_count] = values
        else:
            results[0] = values[0]
            results[1 + value_count : 1 + value_count + slots] = values[1:]
        names = tuple(f"value{position}" for position in range(len(inputs)))
        return FormulaGraph(names, graph.scalars, tuple(results))


# Cached, because measures are keys of kernel caches.
_pad_measure = cache(JointPassFormula)


@cache
def group_measures(rule: Rule) -> dict[Measure, tuple[Measure, ...]]:
    """Group measures to compute in one pass over memory; return {first measure: all measures}.

    Consecutive measures are in one group. A measure that reads a result of the group starts a new
    group. Formulas of the returned measures take the values of all passes.
    """
    sweeps: dict[Measure, tuple[Measure, ...]] = {}
    first: Measure | None = None
    value_count = 0
    for rule_pass in rule.passes:
        value_count += len(getattr(rule_pass, "of_elements", ()))
        if not isinstance(rule_pass, Measure):
            first = None
            continue
        scalar_names = trace_formula(rule_pass.function).scalars
        if first is None or any(measure.makes in scalar_names for measure in sweeps[first]):
            first = rule_pass
        measure = rule_pass
        if value_count < len(rule.made):
            function = _pad_measure(measure.function, value_count, None, rule)
            measure = replace(measure, function=function)
        sweeps[first] = (*sweeps.get(first, ()), measure)
    return sweeps


class PassGroup(NamedTuple):
    """Measures that are computed in one pass over memory, and the following stages.

    A *number* is a measure over variables, or what a stage has computed in its place.

    Attributes:
        measures: The measures; () for stages before the first measure.
        reads_numbers: True if a measure reads a number of an earlier group.
        fused_stages: The fused stages after the measures.
        stages: The stages after the measures, which read and change only numbers.
    """

    measures: tuple[Measure, ...]
    reads_numbers: bool = False
    fused_stages: tuple[FusedStage, ...] = ()
    stages: tuple[Stage, ...] = ()

    @property
    def numbers(self) -> list[str]:
        """Names of the measures over variables."""
        return [measure.makes for measure in self.measures if measure.over == "variable"]


@cache
def group_passes(rule: Rule) -> tuple[PassGroup, ...] | None:
    """Divide the passes after `rule.leading_passes` into groups; the last is `rule.measures`.

    The first group has no measures. Without `rule.measures`, there is no group for them. Return
    None if kernels cannot run all passes after `rule.leading_passes`.
    """
    if not _can_run_passes(rule):
        return None
    groups, sweeps, numbers = [PassGroup(())], group_measures(rule), set[str]()
    for entry in rule.passes[len(rule.leading_passes) :]:
        last_group = groups[-1]
        if isinstance(entry, FusedStage):
            groups[-1] = last_group._replace(fused_stages=(*last_group.fused_stages, entry))
        elif isinstance(entry, Stage):
            groups[-1] = last_group._replace(stages=(*last_group.stages, entry))
        elif entry in sweeps:
            scalars = (trace_formula(measure.function).scalars for measure in sweeps[entry])
            reads_numbers = not numbers.isdisjoint(chain.from_iterable(scalars))
            groups.append(PassGroup(sweeps[entry], reads_numbers))
            numbers |= {*groups[-1].numbers}
    if rule.measures:
        measures = (Measure(formula, name) for name, formula in rule.measures.items())
        groups.append(PassGroup(tuple(measures)))
    return tuple(groups)


def _can_run_passes(rule: Rule) -> bool:
    """Return True if kernels can run all passes after `rule.leading_passes`, and programs stages.

    The rule must have passes over rows or columns, and no further `Pass`. With leading passes, it
    must have no slots of rows or columns, which leading passes may read. Its numbers (measures over
    variables) must be sums. With numbers, it must have no `measures`. A fused stage must not read
    `element_count`. Another stage must run at each step, and read numbers besides scalars. It must
    read no number that an earlier measure of rows or columns reads: kernels may repeat the measure.
    """
    slot_names = (slot.name for slot in rule.slots)
    numbers, read_names = set[str](), {*rule.vectors, *rule.made, *slot_names, RANDOM}
    if rule.leading_passes and rule.line_slots:
        return False
    for entry in rule.passes[len(rule.leading_passes) :]:
        if isinstance(entry, Measure):
            if entry.over != "variable":
                read_names |= numbers.intersection(trace_formula(entry.function).scalars)
                continue
            numbers.add(entry.makes)
            if entry.reduce != "sum" or rule.measures:
                return False
        elif isinstance(entry, FusedStage):
            if "element_count" in read_stage(rule, entry).scalars:
                return False
        elif isinstance(entry, Pass) or entry.of_matrices or entry.every != 1:
            return False
        else:
            required, optional = stage_inputs(entry)
            if optional or numbers.isdisjoint(required) or not read_names.isdisjoint(required):
                return False
    return rule.is_of_lines and rule.vectors.keys().isdisjoint(rule.measures)


def sweeps_in_order(rule: Rule) -> list[tuple[str, ...]]:
    """Return a tuple of names for each time that a step reads all elements of a variable.

    A tuple names the values that are computed in that reading. The first tuples are for the `Pass`
    and `Measure` entries of `rule.passes`; consecutive measures may share a tuple. Then follow a
    tuple for `rule.measures` and one for each level, except where there are no measures. The last
    tuple, (), is for the update.
    """
    sweeps, names_by_sweep = group_measures(rule), list[tuple[str, ...]]()
    for rule_pass in rule.passes:
        if isinstance(rule_pass, Pass):
            names_by_sweep.append(rule_pass.makes)
        elif isinstance(rule_pass, Measure) and rule_pass in sweeps:
            names_by_sweep.append(tuple(measure.makes for measure in sweeps[rule_pass]))
    levels = (level.measures for level in rule.levels)
    return [
        *names_by_sweep,
        *(tuple(measures) for measures in (rule.measures, *levels) if measures),
        (),
    ]


def count_read_streams(rule: Rule) -> int:
    """Return the number of tensors that the sweeps of measures read, summed over sweeps."""
    return sum(
        len({stream for measure in measures for stream in trace_formula(measure.function).streams})
        for measures in group_measures(rule).values()
    )


@cache
def build_pass_updates(rule: Rule) -> tuple[Rule, ...]:
    """Return rules without passes: one for each `Pass` of a rule, in order, and one for the update.

    The slots of the returned rules are the values of all passes, then the rule's element slots.
    """
    names, updates = rule.made, list[Rule]()
    slots = (*map(Slot, names), *rule.element_slots)
    earlier_count = 0
    for rule_pass in rule.passes:
        if isinstance(rule_pass, Pass):
            count = len(rule_pass.makes)
            formula = JointPassFormula(rule_pass.function, earlier_count, count, rule)
            updates.append(Rule(name=rule.name, update=formula, slots=slots))
            earlier_count += count
    update_formula = JointPassFormula(rule.update, earlier_count, 0, rule)
    return (*updates, Rule(name=rule.name, update=update_formula, slots=slots, before=rule.before))
