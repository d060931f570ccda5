"""Validation of the codecs of a rule's slots."""

from __future__ import annotations

from thalweg._base.rule_passes import Measure
from thalweg._engines.codecs import CODECS, OF_SLOTS
from thalweg._engines.formula_parser import place_of, transcribe
from thalweg._engines.split_weight_rule import Split
from thalweg.formula import Rule


def fault_of(rule: Rule) -> str:
    """Return the reason why a rule's slots cannot have their codecs; "" if they can."""
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
    # Rows and columns are measured by kernels that do not decode.
    stream_names = [*rule.made, *(slot.name for slot in rule.element_slots)]
    coded = {slot.name for slot in rule.element_slots if slot.storage}
    for step in rule.passes:
        if isinstance(step, Measure):
            positional = transcribe(step.function).positional
            read = coded.intersection(stream_names[: len(positional) - 2])
            if read:
                return (
                    f"{step.makes!r} measures rows or columns of its slot {min(read)!r}, which must"
                    f" be stored as numbers for this ({place_of(step.function)})"
                )
    return ""
