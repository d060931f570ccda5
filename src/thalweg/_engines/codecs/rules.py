"""Validation of the codecs of a rule's slots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from thalweg._base.rule_passes import Measure
from thalweg._engines.codecs import CODECS, OF_SLOTS
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.formula_source import place_of
from thalweg._engines.split_weight_rule import Split
from thalweg.formula import Rule


def find_storage_fault(rule: Rule) -> str:
    """Return the reason why the codecs of a rule's slots are invalid; "" for valid codecs."""
    for slot in rule.element_slots:
        if slot.storage is None:
            continue
        codec = CODECS.get(slot.storage)
        is_split = codec is not None and codec.is_beside
        if codec is None or (is_split and not isinstance(rule.update, Split)):
            reason = "is of weights='split' alone" if is_split else "is no codec"
            return (
                f"slot {slot.name!r} has the storage {slot.storage!r}, which {reason}; expected:"
                f" {', '.join(OF_SLOTS)}"
            )
        if codec.positive and not slot.positive:
            return (
                f"{codec.name} holds numbers that are never negative, and slot {slot.name!r} of"
                f" {rule.name!r} may have others; expected:"
                f" {', '.join(name for name, entry in OF_SLOTS.items() if not entry.positive)}"
            )
    coded = {slot.name for slot in rule.element_slots if slot.storage}
    for name, formula, inputs in _iterate_line_formulas(rule):
        streams = trace_formula(formula).streams
        read = coded.intersection(inputs[k] for k in streams if k < len(inputs))
        if read:
            return (
                f"{name!r} reads its slot {min(read)!r}, which must not be encoded: kernels that"
                f" reduce rows and columns do not decode slots ({place_of(formula)})"
            )
    return ""


def _iterate_line_formulas(rule: Rule) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield (name, formula, input names) of measures that are reduced over rows or columns."""
    slots, pass_names = [slot.name for slot in rule.element_slots], list[str]()
    for rule_pass in rule.passes:
        if isinstance(rule_pass, Measure):
            yield rule_pass.makes, rule_pass.function, ["var", "grad", *pass_names, *slots]
        pass_names += getattr(rule_pass, "of_elements", ())
    if rule.is_of_lines:
        for measures in (rule.measures, *(level.measures for level in rule.levels)):
            for name, formula in measures.items():
                yield name, formula, ["var", "grad", *pass_names, *slots]
