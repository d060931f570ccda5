"""Which slots of a rule a codec can hold."""

from __future__ import annotations

from thalweg._base.rule_passes import Measure
from thalweg._engines.codecs import CODECS, OF_SLOTS
from thalweg._engines.formula_parser import place_of, transcribe
from thalweg._engines.split_weight_rule import Split
from thalweg.formula import Rule


def fault_of(rule: Rule) -> str:
    """Why the slots of a rule cannot be kept as it says; "" if they can."""
    for slot in rule.element_slots:
        if slot.storage is None:
            continue
        codec = CODECS.get(slot.storage)
        is_whole = codec is not None and codec.is_beside
        if codec is None or (is_whole and not isinstance(rule.update, Split)):
            what = "is of weights='split' alone" if is_whole else "is no codec"
            return (
                f"slot {slot.name!r} has the storage {slot.storage!r}, which {what}; expected:"
                f" {', '.join(OF_SLOTS)}"
            )
        if codec.positive and not slot.positive:
            return (
                f"{codec.name} holds numbers that are never negative, and slot {slot.name!r} of"
                f" {rule.name!r} may have others; expected:"
                f" {', '.join(name for name, each in OF_SLOTS.items() if not each.positive)}"
            )
    # Rows and columns are measured by kernels that do not decode.
    names = [*rule.made, *(slot.name for slot in rule.element_slots)]
    coded = {slot.name for slot in rule.element_slots if slot.storage}
    for each in rule.passes:
        if isinstance(each, Measure):
            read = coded.intersection(names[: len(transcribe(each.function).positional) - 2])
            if read:
                return (
                    f"{each.makes!r} measures rows or columns of its slot {min(read)!r}, which must"
                    f" be stored as numbers for this ({place_of(each.function)})"
                )
    return ""
