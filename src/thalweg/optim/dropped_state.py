"""Removal of option entries from a state that the target optimizer does not use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from thalweg._core.options.accumulation import COUNT, SUM
from thalweg._core.options.split_weights import SplitWeights
from thalweg._core.options.update_targets import MASTER
from thalweg.optim.state_mismatch import parameter_states
from thalweg.optim.step_options import KEPT
from thalweg.variable import REDUCED

(CORRECTION,) = SplitWeights.keeps_beside
_SUMS = (
    "the state that was loaded has sums of gradients that have begun, which are left behind: no"
    " step takes them without accumulate=."
)


def drop_option_state(optimizer: Any, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a state as an optimizer takes it, and what is to be said of what is left behind.

    What no step moves would still be there, as it was, when a later state is loaded with the
    option. Of 16 bits is what has been with an optimizer that does not know it: torch's own make
    the parameter's dtype of everything.

    Args:
        optimizer: The optimizer.
        given: The state, of the right form.
    """
    own = dict(parameter_states(given))
    found = {name for each in own.values() for name in each if name in KEPT or name == SUM}
    left, lacking, stale = set[str](), set[str](), set[str]()
    if found - {SUM}:
        kept = {*optimizer._around.begins}
        for group in optimizer.param_groups:
            kept |= {slot.name for rule in optimizer._rules_around(group) for slot in rule.slots}
        lacking = found - kept - {SUM}
        stale = found & {*optimizer._around.begins}
    groups = given["param_groups"]
    if not optimizer._around.kinds.sums:
        lacking |= found & {SUM}
        groups = [{n: x for n, x in group.items() if n != COUNT} for group in groups]
    states, narrow = dict(given["state"]), set[str]()
    has_codes = any(CORRECTION in (_storage(group) or ()) for group in groups)
    for key, each in own.items():
        gone = lacking.intersection(each)
        if optimizer._around.kinds.is_split and CORRECTION not in each:
            gone.discard(MASTER)  # of which corrections are made
        old = {name for name in stale.intersection(each) if _is_narrow(each[name])}
        left |= gone
        narrow |= old
        if CORRECTION in gone and has_codes:  # which is refused, or converted
            gone.remove(CORRECTION)
            if optimizer._around.kinds.masters:
                left.discard(CORRECTION)
        if gone or old:
            states[key] = {name: value for name, value in each.items() if name not in gone | old}
            if not states[key]:
                del states[key]
    said = [_SUMS] if SUM in left else []
    said += [_left(name) for name in KEPT if name in left]
    said += [_narrow(name) for name in KEPT if name in narrow]
    return {**given, "state": states, "param_groups": groups}, said


def _left(name: str) -> str:
    if name == CORRECTION:
        return (
            f"the state that was loaded has the lower bits of weights, as {name!r}, which are left"
            " behind: weights='split' and masters=True alone keep them."
        )
    return (
        f"the state that was loaded has {name!r}, which is left behind: no step takes it without"
        f" {KEPT[name]}=."
    )


def _narrow(name: str) -> str:
    return (
        f"{name!r} of the state that was loaded is of 16 bits, as an optimizer without"
        f" {KEPT[name]}= has it, and is left behind."
    )


def _is_narrow(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype in REDUCED


def _storage(group: Mapping[str, Any]) -> Any:
    told = group.get("state_storage")
    return told if isinstance(told, Mapping) else None
