"""Entries of groups and states that describe the form of a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg._core.options.accumulation import COUNT, SUM
from thalweg._core.options.update_targets import ENCODED_SHAPE
from thalweg._core.param_groups import Group
from thalweg._core.quantized_slots import shape_entry
from thalweg.optim.quantized_state import STORAGE, records_in, storage_of
from thalweg.optim.rounding_state import rounding_entries


def record_format(optimizer: Any, groups: Sequence[Group], state: Mapping[Any, Any]) -> None:
    """Write the entries that describe the form of a state to its groups and parameters.

    `torch.distributed.checkpoint` loads of a flat state dict only the entries whose keys the groups
    and the state of the optimizer have.

    Args:
        optimizer: The optimizer, whose options define the entries.
        groups: Groups with all options of their rules, changed in place.
        state: The states of parameters, changed in place.
    """
    has_sums, rounding = optimizer._around.kinds.sums, rounding_entries(optimizer)
    for group in groups:
        group.update(rounding)
        storage = storage_of(optimizer._rule_of(group)) if optimizer._encodes_group(group) else {}
        if storage:
            group[STORAGE] = storage
        if has_sums:
            group.setdefault(COUNT, 0)
        for param in group["params"] if storage or has_sums else ():
            entries = state.get(param)
            if entries and has_sums:
                entries.setdefault(SUM, 0)
            if entries and (records := records_in(entries, storage)) is not None:
                entries[ENCODED_SHAPE] = shape_entry(param, records)
