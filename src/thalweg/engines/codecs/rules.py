"""Which slots of a rule a codec can hold."""

from __future__ import annotations

from thalweg.engines.codecs import CODECS
from thalweg.engines.transcribe import place_of, transcribe
from thalweg.formula import Rule


def fault_of(rule: Rule) -> str:
    """Why the slots of a rule cannot be kept as it says; "" if they can."""
    for slot in rule.element_slots:
        if slot.storage is None:
            continue
        codec = CODECS.get(slot.storage)
        if codec is None:
            return (
                f"slot {slot.name!r} has the storage {slot.storage!r}, which is no codec; expected:"
                f" {', '.join(CODECS)}"
            )
        if codec.positive and not slot.positive:
            return (
                f"{codec.name} holds numbers that are never negative, and slot {slot.name!r} of"
                f" {rule.name!r} may have others; expected:"
                f" {', '.join(name for name, each in CODECS.items() if not each.positive)}"
            )
    if rule.codecs and rule.passes:
        return f"{rule.name!r} works on whole matrices, beside slots that are kept as numbers"
    taken = [*rule.made, *(slot.name for slot in rule.element_slots)]
    coded = {slot.name for slot in rule.element_slots if slot.storage}
    for name, measure in rule.measures.items():
        read = coded.intersection(taken[: len(transcribe(measure).positional) - 2])
        if coded and read:
            return (
                f"{name!r} of {rule.name!r}, {place_of(measure)}, measures slot"
                f" {min(read)!r}, which has to be kept as numbers for that"
            )
    return ""
