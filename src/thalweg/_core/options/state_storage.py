"""Slots in 8 bits."""

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
_POSITIVE = {"softsign8": "root8", "linear8": "root8", "dynamic8": "dynamic8_positive"}
Storage = str | tuple[tuple[str, str], ...]


@cache
def store_slots(rule: Rule, storage: Storage) -> Rule:
    """A rule whose slots are kept in codecs.

    Args:
        rule: The rule.
        storage: A codec, with its counterpart for slots that are never negative; "8bit" for what
            suits each; or pairs of a slot's name and a codec, or "float32".

    Raises:
        InvalidArgumentError: There is no such slot, or it cannot be kept so.
    """
    with importing:
        from thalweg._engines.codecs.rules import fault_of
    own = {slot.name: slot for slot in rule.element_slots}
    if isinstance(storage, str):
        choose = _natural if storage == NATURAL else partial(_suited, storage)
        chosen = {name: choose(slot) for name, slot in own.items()}
    else:
        chosen = dict(storage)
        if strange := [name for name in chosen if name not in own]:
            names = ", ".join(map(repr, own)) or "none"
            raise InvalidArgumentError(
                f"state_storage names {show_value(strange[0])}; the slots of {rule.name} with a"
                f" number for each element are {names}."
            )
    slots = [
        replace(slot, storage=None if chosen[slot.name] == PLAIN else chosen[slot.name])
        if slot.name in chosen and own.get(slot.name) is slot
        else slot
        for slot in rule.slots
    ]
    if slots == [*rule.slots]:
        return rule
    made = replace(rule, slots=tuple(slots))
    if fault := fault_of(made):
        raise InvalidArgumentError(f"{rule.name} cannot have state_storage: {fault}.")
    return made


def _natural(slot: Slot) -> str:
    """What suits a slot."""
    return PLAIN if slot.exact or slot.dtype is not None else _suited("softsign8", slot)


def _suited(codec: str, slot: Slot) -> str:
    """A codec, or what takes its place for a slot that is never negative.

    Others would make 0 of a mean square that is small beside its block, and steps divide by it.
    """
    return _POSITIVE.get(codec, codec) if slot.positive else codec


@exported_from("thalweg.optim.options")
@dataclass(frozen=True, kw_only=True)
class StateCodec(Option):
    """Slots in 8 bits.

    Attributes:
        state_storage: In what slots of parameters of 4,096 elements and more are kept, as bytes:
            "8bit" for the codec that suits each, the name of a codec for all, with its counterpart
            for those that are never negative, or a dict of slots' names with a codec, or "float32",
            for each. None keeps numbers.
    """

    changes_state = True
    state_storage: Storage | Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        given: Any = self.state_storage
        if given is None:
            return
        with importing:
            from thalweg._engines.codecs import OF_SLOTS
        if isinstance(given, str):
            named, accepted = [given], [NATURAL, *OF_SLOTS]
        else:
            pairs = tuple(cast("Mapping[str, str]", given).items() if _is_dict(given) else given)
            named, accepted = [codec for _, codec in pairs], [PLAIN, *OF_SLOTS]
            object.__setattr__(self, "state_storage", pairs)
        for each in named:
            if each not in accepted:
                raise InvalidArgumentError(
                    f"state_storage has {show_value(each)}; expected:"
                    f" {', '.join(map(repr, accepted))}."
                )

    def rule(self, rule: Rule) -> Rule:
        return store_slots(rule, cast("Storage", self.state_storage))

    def check_beside(self, others: Others) -> None:
        beside = {
            "state_dtype": others.of(StateDtype).state_dtype,
            "state_device": others.of(Offload).state_device,
        }
        for name, value in beside.items():
            if value is not None:
                raise InvalidArgumentError(
                    f"state_storage={show_value(self.state_storage)} and"
                    f" {name}={show_value(value)} both choose the storage of slots: choose one."
                )


def _is_dict(value: object) -> bool:
    """Whether a value is a dict of texts.

    Raises:
        InvalidTypeError: It is neither that nor what has been made of one.
    """
    is_dict = isinstance(value, Mapping)
    pairs = [*cast("Mapping[Any, Any]", value).items()] if is_dict else value
    try:
        texts = [text for pair in cast("Any", pairs) for text in pair]
    except TypeError:
        texts = [None]
    if not all(isinstance(each, str) for each in texts):
        raise InvalidTypeError(
            "state_storage must be None, a text, or a dict of slots' names with a text for each,"
            f" not {show_value(value)}."
        )
    return is_dict
