"""Slots of other code: checks of replaced slots, and separation of slots that share memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from thalweg._base.locks import importing
from thalweg._core.options.accumulation import SUM
from thalweg._core.options.update_targets import MASTER
from thalweg._core.param_groups import parameter_names
from thalweg._core.state.entries import has_storage
from thalweg._engines.layout import byte_span, may_overlap
from thalweg.errors import InvalidTypeError
from thalweg.formula import Rule, Slot
from thalweg.optim.native_support import has_plain_dispatch
from thalweg.optim.state_mismatch import kind_of, told

# The device and the bytes of a tensor, with the state that has it; None for parameters.
Span = tuple[str, int, int, dict[str, Any] | None, str]


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
    if param.numel() >= LEAST:
        expected = "in numbers, as the rows of the DTensor are not whole blocks"
    if codec is not None:
        expected = f"in {codec.name}, as uint8 ({codec.bytes_of(param.numel())},)"
    advice = "load_state_dict(..., convert=True) converts a state"
    return f"{kind_of(slot_tensor)}, and is kept {expected}: {advice}"


def separate_slots(optimizer: Any, step_options: Any) -> None:
    """Copy each slot that shares memory with a parameter or another slot, or overlaps itself.

    A step would raise for such slots. They arise if a program stores one tensor twice.

    Args:
        optimizer: A `FusedTorchOptimizer`; its state is changed.
        step_options: The `StepOptions` of its steps, which may add slots.
    """
    spans: list[Span] = []
    for group in optimizer.param_groups:
        for param in group["params"]:
            if _has_memory(param):
                spans.append((str(param.device), *byte_span(param), None, ""))
            rule = step_options.rule(optimizer.base_rule(group, param))
            entries = optimizer.state.get(param, {})
            names = {slot.name for slot in rule.slots if slot not in rule.numbers}
            for name in entries.keys() & {MASTER, SUM, *names}:
                value = entries[name]
                if isinstance(value, Tensor) and _has_memory(value):
                    entries[name] = value = value.detach().clone() if may_overlap(value) else value
                    spans.append((str(value.device), *byte_span(value), entries, name))
    _copy_overlapping(sorted(spans, key=lambda span: span[:3]))


def _copy_overlapping(sorted_spans: list[Span]) -> None:
    """Copy slots whose memory overlaps; the states of the slots receive the copies.

    `sorted_spans` has the memory of parameters and slots, sorted by address.
    """
    # A run is a sequence of spans, each of which begins before `reach`, the end of those before it.
    run: list[Span] = []
    reach = 0
    # The empty span at the end closes the last run.
    for span in (*sorted_spans, ("", 0, 0, None, "")):
        if run and span[0] == run[0][0] and span[1] < reach:
            run.append(span)
            reach = max(reach, span[2])
            continue
        for _, _, _, entries, name in run if len(run) > 1 else ():
            if entries is not None:
                entries[name] = entries[name].detach().clone()
        run, reach = [span], span[2]


def _has_memory(tensor: Tensor) -> bool:
    """Return True if a tensor has elements in ordinary strided memory."""
    is_strided = not (tensor.is_sparse or tensor.is_meta) and has_plain_dispatch(tensor)
    return bool(is_strided and tensor.numel() and has_storage(tensor))
