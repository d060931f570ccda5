"""Option that stores slots in 8 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

from thalweg._base.exports import exported_from
from thalweg._base.locks import importing
from thalweg._base.showing import show_value
from thalweg._core.options.base import Option, Others
from thalweg._core.options.master_weights import Offload, StateDtype
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule, Slot

NATURAL = "8bit"
PLAIN = "float32"
Storage = str | tuple[tuple[str, str], ...]


@cache
def store_slots(rule: Rule, storage: Storage) -> Rule:
    """Return the rule with codecs for its slots, or `rule` itself if no codec changes.

    Args:
        storage: A text or pairs. "8bit" selects the default codec of each slot. The name of a codec
            selects it for all slots, or its unsigned counterpart for slots without negative
            numbers. Pairs (slot name, codec or "float32") select the codecs of these slots.

    Raises:
        InvalidArgumentError: A slot does not exist, or does not support its codec.
    """
    with importing:
        from thalweg._engines.codecs.rules import find_storage_fault
    slots_by_name = {slot.name: slot for slot in rule.element_slots}
    if isinstance(storage, str):
        choose_codec = (
            _select_default_codec if storage == NATURAL else partial(_select_codec, storage)
        )
        codecs = {name: choose_codec(slot) for name, slot in slots_by_name.items()}
    else:
        codecs = dict(storage)
        if unknown_names := [name for name in codecs if name not in slots_by_name]:
            names = ", ".join(map(repr, slots_by_name)) or "none"
            raise InvalidArgumentError(
                f"state_storage names {show_value(unknown_names[0])}; the slots of {rule.name}"
                f" with a number for each element are {names}."
            )
    slots = [
        replace(slot, storage=None if codecs[slot.name] == PLAIN else codecs[slot.name])
        if slot.name in codecs and slots_by_name.get(slot.name) is slot
        else slot
        for slot in rule.slots
    ]
    if slots == [*rule.slots]:
        return rule
    stored_rule = replace(rule, slots=tuple(slots))
    if fault := find_storage_fault(stored_rule):
        raise InvalidArgumentError(f"{rule.name} cannot have state_storage: {fault}.")
    return stored_rule


def _select_default_codec(slot: Slot) -> str:
    """Return the codec of "8bit" for a slot."""
    return PLAIN if slot.exact or slot.dtype is not None else _select_codec("softsign8", slot)


def _select_codec(codec: str, slot: Slot) -> str:
    """Return the name of the codec, or of its counterpart for a nonnegative slot."""
    with importing:
        from thalweg._engines.codecs import OF_SLOTS
    return (slot.positive and OF_SLOTS[codec].for_positive) or codec


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class StateCodec(Option):
    """8-bit codecs for slots.

    Attributes:
        state_storage: Codecs for slots of parameters with at least 4,096 elements. "8bit" for the
            default of each slot. A codec's name for all slots, or its counterpart for nonnegative
            slots. Or {slot name: codec or "float32"}. None stores floats.
    """

    changes_state = True
    state_storage: Storage | Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        state_storage: Any = self.state_storage
        if state_storage is None:
            return
        with importing:
            from thalweg._engines.codecs import OF_SLOTS
        if isinstance(state_storage, str):
            codec_names, valid_names = [state_storage], [NATURAL, *OF_SLOTS]
        else:
            pairs = _list_pairs(state_storage)
            codec_names, valid_names = [codec for _, codec in pairs], [PLAIN, *OF_SLOTS]
            object.__setattr__(self, "state_storage", pairs)
        for codec_name in codec_names:
            if codec_name not in valid_names:
                raise InvalidArgumentError(
                    f"state_storage has {show_value(codec_name)}; expected:"
                    f" {', '.join(map(repr, valid_names))}."
                )

    def rule(self, rule: Rule) -> Rule:
        return store_slots(rule, cast("Storage", self.state_storage))

    def check_beside(self, options: Others) -> None:
        """Raise InvalidArgumentError if another option sets the dtype or device of slots."""
        storage_settings = {
            "state_dtype": options.of(StateDtype).state_dtype,
            "state_device": options.of(Offload).state_device,
        }
        for name, setting in storage_settings.items():
            if setting is not None:
                raise InvalidArgumentError(
                    f"state_storage={show_value(self.state_storage)} and"
                    f" {name}={show_value(setting)} both choose the storage of slots: choose one."
                )


def _list_pairs(state_storage: Any) -> tuple[tuple[str, str], ...]:
    """Return the items of a dict, or a sequence of pairs, as a tuple.

    Raises:
        InvalidTypeError: An element of a pair is not a string, or there are no pairs.
    """
    try:
        is_dict = isinstance(state_storage, Mapping)
        entries = cast("Mapping[str, str]", state_storage).items() if is_dict else state_storage
        pairs = tuple(cast("Any", entries))
        texts = [text for pair in pairs for text in pair]
    except TypeError:
        pairs, texts = (), [None]
    if not all(isinstance(codec_or_name, str) for codec_or_name in texts):
        raise InvalidTypeError(
            "state_storage must be None, a text, or a dict of slots' names with a text for each,"
            f" not {show_value(state_storage)}."
        )
    return pairs
