"""Checks of slots that other code has replaced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.param_groups import parameter_names
from thalweg.errors import InvalidTypeError
from thalweg.formula import Rule, Slot
from thalweg.optim.state_mismatch import kind_of, told


def check_slots(optimizer: Any, rule: Rule, indexed_params: Iterable[tuple[Tensor, int]]) -> None:
    """Raise InvalidTypeError for a slot that is not a tensor, or does not fit its codec.

    An optional slot may be None.

    Args:
        indexed_params: (parameter, index of its group) pairs.
    """
    slots = [slot for slot in rule.slots if not slot.scalar]
    for param, group_index in indexed_params:
        entries: dict[str, Any] = optimizer.state.get(param) or {}
        for slot in slots:
            if slot.name in entries and (problem := _why_unfit(entries[slot.name], slot, param)):
                kind = optimizer._kind_of(optimizer.param_groups[group_index])
                lacking = (*getattr(kind, "_optional", ()), *optimizer.step_options.begins)
                if entries[slot.name] is None and slot.name in lacking:
                    continue
                (label,) = parameter_names(optimizer.param_groups, [param])
                raise InvalidTypeError(f"Slot '{slot.name}' of '{label}' is {problem}.")


def _why_unfit(slot_tensor: object, slot: Slot, param: Tensor) -> str:
    """Return why a value is not the slot of a parameter; "" if it is."""
    if not isinstance(slot_tensor, Tensor):
        return f"{told(slot_tensor)}; expected: a tensor, as the optimizer made it"
    if slot.storage is None:
        return ""
    with importing:
        from thalweg._core.quantized_slots import LEAST, codec_of
    codec = codec_of(slot, param)
    if (slot_tensor.dtype == torch.uint8) == (codec is not None):
        return ""
    expected = f"in numbers, as the parameter has fewer than {LEAST:,} elements"
    if codec is not None:
        expected = f"in {codec.name}, as uint8 ({codec.bytes_of(param.numel())},)"
    advice = "load_state_dict(..., convert=True) converts a state"
    return f"{kind_of(slot_tensor)}, and is kept {expected}: {advice}"
