"""Composition of a rule with a formula that runs after its update."""

from __future__ import annotations

from dataclasses import replace

from thalweg.errors import RuleError
from thalweg.formula import ChainedFormula, Formula, Rule, Slot


def follow_rule(rule: Rule, name: str, formula: Formula, slot: str) -> Rule:
    """Return the rule with a formula that runs after its update in the same pass over memory.

    The formula also runs for rows without a sparse gradient. Duplicate rows are added up, so that
    the formula runs once per row.

    Args:
        name: Name of the new rule.
        formula: Maps a variable and the new slot to their new values; see `ChainedFormula`.
        slot: Name of the new slot, the last one.

    Raises:
        RuleError: The rule has no `update_untouched`, and more than six slots.
    """
    count = len(rule.element_slots)
    if rule.update_untouched is None and count >= len(_UNTOUCHED):
        max_slots = len(_UNTOUCHED) - 1
        raise RuleError(
            f"{name}: rule {rule.name!r} has {count} slots, and can have {max_slots} beside another"
            " formula, or any number with an update_untouched of its own."
        )
    untouched = rule.update_untouched or _UNTOUCHED[count]
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


def _untouched_0(var: object) -> object:
    return (var,)


def _untouched_1(var: object, a: object) -> object:
    return var, a


def _untouched_2(var: object, a: object, b: object) -> object:
    return var, a, b


def _untouched_3(var: object, a: object, b: object, c: object) -> object:
    return var, a, b, c


def _untouched_4(var: object, a: object, b: object, c: object, d: object) -> object:
    return var, a, b, c, d


def _untouched_5(var: object, a: object, b: object, c: object, d: object, e: object) -> object:
    return var, a, b, c, d, e


def _untouched_6(
    var: object, a: object, b: object, c: object, d: object, e: object, f: object
) -> object:
    return var, a, b, c, d, e, f


# Identity formulas by the number of slots; the formula parser needs fixed signatures.
_UNTOUCHED: tuple[Formula, ...] = (
    _untouched_0,
    _untouched_1,
    _untouched_2,
    _untouched_3,
    _untouched_4,
    _untouched_5,
    _untouched_6,
)
