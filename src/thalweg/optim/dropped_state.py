"""Removal of state entries that no option of the optimizer uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from thalweg._core.options.accumulation import COUNT, SUM
from thalweg._core.options.split_weights import SplitWeights
from thalweg._core.options.update_targets import MASTER
from thalweg.optim.state_mismatch import parameter_states
from thalweg.optim.step_options import ENTRY_KEYWORDS
from thalweg.variable import REDUCED

(CORRECTION,) = SplitWeights.keeps_beside
_SUMS = (
    "the state that was loaded has sums of gradients that have begun, which are left behind: no"
    " step takes them without accumulate=."
)


def drop_option_state(
    optimizer: Any, saved_state: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Return (state without entries that no option of the optimizer uses, list of warnings).

    Steps would not update an unused entry, and a later load with the option would read old values.
    An entry of 16 bits is also removed if its option is on, since torch's loader has rounded it.

    Args:
        saved_state: The state dict, in a valid form; not changed.
    """
    param_states = dict(parameter_states(saved_state))
    option_names = {name for entries in param_states.values() for name in entries}
    option_names &= {*ENTRY_KEYWORDS, SUM}
    dropped_names, lacking, stale = set[str](), set[str](), set[str]()
    if option_names - {SUM}:
        retained_names = {*optimizer.step_options.begins}
        for group in optimizer.param_groups:
            rules = optimizer.rules_around(group)
            retained_names |= {slot.name for rule in rules for slot in rule.slots}
        lacking = option_names - retained_names - {SUM}
        stale = option_names & {*optimizer.step_options.begins}
    groups = saved_state["param_groups"]
    if not optimizer.step_options.kinds.sums:
        lacking |= option_names & {SUM}
        groups = [{n: x for n, x in group.items() if n != COUNT} for group in groups]
    states, reduced_names = dict(saved_state["state"]), set[str]()
    has_codes = any(CORRECTION in (_storage(group) or ()) for group in groups)
    for key, entries in param_states.items():
        removed_names = lacking.intersection(entries)
        if optimizer.step_options.kinds.is_split and CORRECTION not in entries:
            removed_names.discard(MASTER)  # The loader computes the correction from it.
        old = {name for name in stale.intersection(entries) if _is_narrow(entries[name])}
        dropped_names |= removed_names
        reduced_names |= old
        if CORRECTION in removed_names and has_codes:
            # The loader converts an encoded correction, or raises for it.
            removed_names.remove(CORRECTION)
            if optimizer.step_options.kinds.masters:
                dropped_names.discard(CORRECTION)
        if names := removed_names | old:
            states[key] = {k: x for k, x in entries.items() if k not in names}
            if not states[key]:
                del states[key]
    messages = [_SUMS] if SUM in dropped_names else []
    messages += [_dropped_note(name) for name in ENTRY_KEYWORDS if name in dropped_names]
    messages += [_narrow_note(name) for name in ENTRY_KEYWORDS if name in reduced_names]
    return {**saved_state, "state": states, "param_groups": groups}, messages


def _dropped_note(name: str) -> str:
    """Return the warning about an entry of a state whose option is off."""
    if name == CORRECTION:
        return (
            f"the state that was loaded has the lower bits of weights, as {name!r}, which are left"
            " behind: weights='split' and masters=True alone keep them."
        )
    return (
        f"the state that was loaded has {name!r}, which is left behind: no step takes it without"
        f" {ENTRY_KEYWORDS[name]}=."
    )


def _narrow_note(name: str) -> str:
    """Return the warning about an entry that an optimizer without its option cast to 16 bits."""
    return (
        f"{name!r} of the state that was loaded is of 16 bits, as an optimizer without"
        f" {ENTRY_KEYWORDS[name]}= has it, and is left behind."
    )


def _is_narrow(candidate: object) -> bool:
    """Return True for a tensor of 16 bits."""
    return isinstance(candidate, Tensor) and candidate.dtype in REDUCED


def _storage(group: Mapping[str, Any]) -> Any:
    """Return the codecs that a group names, or None."""
    storage: Mapping[str, Any] | None = group.get("state_storage")
    return storage if isinstance(storage, Mapping) else None
