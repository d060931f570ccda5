"""Entries that describe how a state is stored, such as the codecs of its slots.

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
from thalweg._core.options.update_targets import ENCODED_SHAPE
from thalweg._core.param_groups import Group, states_of
from thalweg._core.state import mismatch
from thalweg.optim.rounding_state import make_rounding_entries
from thalweg.optim.state_mismatch import parameter_states


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
    """Return a state without placeholders: empty gradient sums, and entries {} of missing values.

    `torch.distributed.checkpoint` reads an entry as {} if the file lacks the entry. An entry stays
    if the optimizer's state has no value for it, either. If all entries stay, return `saved_state`
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
