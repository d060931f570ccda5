"""Conversion of optimizer states to float32."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, cast

from torch import Tensor

from thalweg._core.options.update_targets import MASTER
from thalweg._core.param_groups import Group
from thalweg._engines.codecs.split8 import CORRECTION
from thalweg.errors import InvalidTypeError
from thalweg.optim import state_mismatch
from thalweg.optim.fused_optimizer import FusedOptimizer
from thalweg.optim.quantized_state import SHAPE, STORAGE, Storage, decode_slot
from thalweg.optim.stochastic_rounding import NAMES as ROUNDING
from thalweg.variable import REDUCED


def full_precision(optimizer: FusedOptimizer, *, masters: bool = False) -> dict[str, Any]:
    """Return a new state dict of an optimizer, with float32 in place of slots of 8 or 16 bits.

    Torch's class loads the result, and so does an optimizer without `state_storage`, `weights` and
    `round`. An optimizer with such an option needs `load_state_dict(state, convert=True)`. State of
    other options, such as averages, stays unchanged.

    Args:
        optimizer: One of `thalweg.optim`.
        masters: True to add `master`, the float32 weight, of each 16-bit parameter, as the option
            `masters=True` does. False loses the extra bits of `weights="split"`.

    Raises:
        InvalidTypeError: The optimizer is not of `thalweg.optim`.
        LayoutError: A slot has no memory.
    """
    candidate: object = optimizer
    if not isinstance(candidate, FusedOptimizer):  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = f"{type(candidate).__module__}.{type(candidate).__name__}".removeprefix("builtins.")
        raise InvalidTypeError(
            "optimizer must be one of thalweg.optim, beside whose parameters its state is read, not"
            f" a {kind}."
        )
    fused = cast("Any", optimizer)
    state_dict = optimizer.state_dict()
    states: dict[Any, Any] = dict(state_dict["state"])
    groups: Sequence[Group] = optimizer.param_groups
    for group, saved_group in zip(groups, state_dict["param_groups"], strict=True):
        storage = saved_group.pop(STORAGE, {})
        for name in ROUNDING:
            saved_group.pop(name, None)
        slots = {slot.name for rule in fused.rules_around(group) for slot in rule.slots}
        for param, key, _ in state_mismatch.members_of(group, saved_group):
            if key in states:
                states[key] = _widen_entries(states[key], param, storage, slots, masters)
    return {**state_dict, "state": states}


def _widen_entries(
    entries: dict[str, Any], param: Tensor, storage: Storage, slots: Container[str], masters: bool
) -> dict[str, Any]:
    """Return the state of a parameter with float32 in place of encoded and 16-bit slots.

    Args:
        storage: {slot: codec} of the encoded slots.
        slots: The names of all slots.
        masters: True to add the float32 weight of a 16-bit parameter.
    """
    widened: dict[str, Any] = {}
    for name, value in entries.items():
        if name == SHAPE:
            continue
        is_tensor = isinstance(value, Tensor)
        if name in storage:
            value = decode_slot(value, param, storage[name])
        elif name in slots and is_tensor and value.dtype in REDUCED:
            value = value.float()
        widened[name] = value
    weight = widened.pop(CORRECTION, None) if CORRECTION in storage else None
    if masters and param.dtype in REDUCED:
        widened.setdefault(MASTER, param.detach().float() if weight is None else weight)
    return widened
