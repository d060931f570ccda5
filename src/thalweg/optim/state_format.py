"""Entries of states that describe how a state is stored, or that belong to options.

`torch.distributed.checkpoint` reads from a flat state dict only entries with keys that the groups
and the state of the optimizer have. So these have all entries that `state_dict` returns, from the
first step on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from thalweg._base.locks import importing
from thalweg._core.options.accumulation import COUNT, SUM, is_empty_sum
from thalweg._core.options.spikes import HISTORY
from thalweg._core.options.split_weights import SplitWeights
from thalweg._core.options.update_targets import ENCODED_SHAPE, MASTER
from thalweg._core.param_groups import Group, states_of
from thalweg._core.state import mismatch
from thalweg.optim.state_mismatch import parameter_states
from thalweg.optim.step_options import ENTRY_KEYWORDS
from thalweg.optim.stochastic_rounding import make_rounding_entries
from thalweg.variable import REDUCED

(CORRECTION,) = SplitWeights.keeps_beside
_SUMS = (
    "the state that was loaded has sums of gradients that have begun, which are left behind: no"
    " step takes them without accumulate=."
)


def record_format(optimizer: Any, groups: Sequence[Group], state: Mapping[Any, Any]) -> None:
    """Write entries that describe how a state is stored, such as codecs, to groups and states.

    Args:
        optimizer: The optimizer; its options define the entries.
        groups: Groups with all options of their rules, changed in place.
        state: The states of parameters, changed in place.
    """
    has_sums, entries = optimizer.step_options.kinds.sums, make_rounding_entries(optimizer)
    if optimizer.step_options.judge is not None:
        # `describe_state` fills in the history, which changes with each step.
        entries[HISTORY] = [0, [], []]
    for group in groups:
        group.update(entries)
        if has_sums:
            group.setdefault(COUNT, 0)
            for param in group["params"]:
                if param_entries := state.get(param):
                    param_entries.setdefault(SUM, 0)
        if optimizer.encodes_group(group):
            _record_codecs(optimizer, group, state)


def _record_codecs(optimizer: Any, group: Group, state: Mapping[Any, Any]) -> None:
    """Write the codecs of slots to a group, and shapes to states with encoded slots."""
    with importing:
        from thalweg._core.quantized_slots import shape_entry
        from thalweg.optim.quantized_state import STORAGE, has_codes, storage_of
    if storage := storage_of(optimizer.rule_of(group)):
        group[STORAGE] = storage
        for param in group["params"]:
            entries = state.get(param)
            if entries and has_codes(entries, storage):
                entries[ENCODED_SHAPE] = shape_entry(param)


def without_placeholders(optimizer: Any, saved_state: dict[str, Any]) -> dict[str, Any]:
    """Return a state without placeholders: empty gradient sums, and {} for missing entries.

    `torch.distributed.checkpoint` returns {} for an entry that the file lacks. Such an entry stays
    if the optimizer's state has no value under its key. If all entries stay, return `saved_state`
    itself.

    Args:
        optimizer: The optimizer. On an error, its state is cleared.
        saved_state: The state dict, in a valid form; not changed.

    Raises:
        CheckpointMismatchError: A rule has slots, but neither the optimizer nor `saved_state` has
            any entry.
    """
    saved_states = dict(parameter_states(saved_state))
    if not any(saved_states.values()) and not any(optimizer.state.values()):
        _check_read(optimizer, [name for name in saved_states if isinstance(name, str)])
    states: dict[Any, Any] = {}
    for key, entries in saved_states.items():
        absent = {name for name, entry in entries.items() if _is_empty_dict(entry)}
        if absent:
            live_entries = chain(*(entries.items() for _, entries in states_of(optimizer.state)))
            absent &= {name for name, entry in live_entries if not _is_empty_dict(entry)}
        if is_empty_sum(entries.get(SUM)):
            absent.add(SUM)
        if absent:
            states[key] = {name: entry for name, entry in entries.items() if name not in absent}
    return {**saved_state, "state": {**saved_state["state"], **states}} if states else saved_state


def _check_read(optimizer: Any, names: Sequence[str]) -> None:
    """Raise CheckpointMismatchError if parameters in `names` should have slots.

    `names` are parameters of which no entry was read. On an error, clear the optimizer's state.
    """
    if names and any(rule.slots for rule in optimizer._rules()):
        # Torch's reads have added empty states, and it allocates none if there are any.
        optimizer.state.clear()
        problem = (
            f"the state of '{names[0]}' is empty, as all others are. torch.distributed.checkpoint"
            " loads only entries that the optimizer's state has, and it allocates this state only"
            " if no parameter has a gradient: set 'grad' of all parameters to None and load again"
        )
        raise mismatch([problem], type(optimizer).__name__)


def _is_empty_dict(entry: object) -> bool:
    """Return True for {}."""
    return isinstance(entry, dict) and not entry


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
    option_names = set[str]().union(*param_states.values()) & {*ENTRY_KEYWORDS, SUM}
    begins = {*optimizer.step_options.begins}
    slot_names = {slot.name for rule in optimizer._rules() for slot in rule.slots}
    lacking, stale = option_names - slot_names - begins - {SUM}, option_names & begins
    groups = saved_state["param_groups"]
    if not optimizer.step_options.kinds.sums:
        lacking |= option_names & {SUM}
        groups = [{n: x for n, x in group.items() if n != COUNT} for group in groups]
    states, dropped_names, reduced_names = dict(saved_state["state"]), set[str](), set[str]()
    storages = [group.get("state_storage") for group in groups]
    has_codes = any(isinstance(x, Mapping) and CORRECTION in x for x in storages)
    for key, entries in param_states.items():
        removed_names = lacking.intersection(entries)
        if optimizer.step_options.kinds.is_split and CORRECTION not in entries:
            removed_names.discard(MASTER)  # The loader computes the correction from it.
        old = {n for n in stale & entries.keys() if getattr(entries[n], "dtype", None) in REDUCED}
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
    messages += [
        f"{name!r} of the state that was loaded is of 16 bits, as an optimizer without {keyword}="
        " has it, and is left behind."
        for name, keyword in ENTRY_KEYWORDS.items()
        if name in reduced_names
    ]
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
