"""States of optimizers whose slots are kept in 8 bits: what is told of them, and other forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.dtensor import any_on_mesh
from thalweg._core.options.state_storage import store_slots
from thalweg._core.options.update_targets import MASTER, StateStorage
from thalweg._core.param_groups import Group, parameter_names
from thalweg._core.quantized_slots import CODECS, codec_of, decode_tensor, encode_tensor, lower_of
from thalweg._core.state import flaw, mismatch
from thalweg._engines.codecs.checks import HOMES
from thalweg._engines.codecs.split8 import CORRECTION
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule
from thalweg.optim import state_mismatch
from thalweg.variable import TRAINED, dtype_name

_RESTS = (CORRECTION, MASTER)  # what there may be of a weight beside the parameter
STORAGE = "state_storage"  # what groups of a state call the codecs of their slots
# The entry of a parameter's saved state with the parameter's shape: encoded slots are one row of
# bytes, which fits every parameter of as many elements. A tensor, because
# `torch.distributed.checkpoint` takes nothing else but numbers.
SHAPE = "encoded_shape"
_COMPUTED = [each for each in TRAINED if each != torch.float64]
_PLAIN = "float32"

Storage = dict[str, str]  # codecs by the names of slots


def storage_of(rule: Rule) -> Storage:
    """Return the slots of a rule that are kept in codecs."""
    return {slot.name: slot.storage for slot in rule.element_slots if slot.storage}


def check_params(optimizer: Any, group: Group) -> None:
    """Refuse parameters of a group whose slots no codec can hold.

    Raises:
        InvalidTypeError: One is complex or of float64.
        NotImplementedError: One is a DTensor.
        InvalidArgumentError: One is neither on the CPU nor on a GPU.
    """
    storage = storage_of(optimizer._rule_of(group))
    if not storage:
        return
    params = group["params"]
    titles = parameter_names(optimizer.param_groups, params)
    said = " and ".join(f"'{name}' in {codec}" for name, codec in storage.items())
    options = ["state_storage"] if storage.keys() - {CORRECTION} else []
    given = " and ".join(options + ["weights='split'"] * (CORRECTION in storage))
    for param, title in zip(params, titles, strict=True):
        if param.dtype not in _COMPUTED:
            accepted = ", ".join(map(dtype_name, _COMPUTED))
            raise InvalidTypeError(
                f"'{title}' is {dtype_name(param.dtype)}, and its state would keep {said}, which is"
                f" for parameters of {accepted}."
            )
        if any_on_mesh([param]):
            raise NotImplementedError(
                f"'{title}' is a DTensor, and its state would keep {said}: {given} is not"
                " defined for parameters that are DTensors."
            )
        if param.device.type not in (*HOMES, "meta"):
            raise InvalidArgumentError(
                f"'{title}' is on {param.device}, and its state would keep {said}, which is updated"
                f" on the CPU and on GPUs of CUDA: run there, or without {given}."
            )


def check_effect(storage: str, rules: Mapping[str, Rule]) -> None:
    """Refuse rules of which none has a slot that is encoded.

    Args:
        storage: As constructors are given it.
        rules: Those of all groups, by what users call them.

    Raises:
        InvalidArgumentError: Names them.
    """
    if any(store_slots(rule, storage).codecs for rule in rules.values()):
        return
    names = dict.fromkeys(slot.name for rule in rules.values() for slot in rule.element_slots)
    why = "with these options there is none with a number for each element"
    if names:
        why = f"8 bits are too few for {', '.join(names)}; a dict names codecs nevertheless"
    raise InvalidArgumentError(
        f"{' and '.join(rules)} {'has' if len(rules) == 1 else 'have'} no slots that"
        f" state_storage={storage!r} may encode: {why}."
    )


def add_storage(optimizer: Any, groups: Sequence[Group], states: dict[Any, Any]) -> None:
    """Add the codecs of slots to the groups of a state, and to its parameters the shapes.

    Args:
        optimizer: The optimizer.
        groups: The groups of the state, which are changed.
        states: The states of parameters by the keys in groups. Those with encoded slots are
            replaced by copies that have the shape as well.
    """
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        storage = storage_of(optimizer._rule_of(group))
        if not storage:
            continue
        saved[STORAGE] = storage
        for param, key in zip(group["params"], saved["params"], strict=True):
            own = states.get(key, {})
            if (records := _records_in(own, storage)) is not None:
                shape = torch.tensor(param.shape, dtype=torch.int64, device=records.device)
                states[key] = {**own, SHAPE: shape}


def _records_in(own: Mapping[str, object], storage: Storage) -> Tensor | None:
    """Return the first encoded slot in the state of a parameter, or None."""
    slots = map(own.get, storage)
    return next((x for x in slots if isinstance(x, Tensor) and x.dtype == torch.uint8), None)


def _without_shape(
    own: Mapping[str, Any],
    param: Tensor,
    title: object,
    storage: Storage,
    found: list[str],
    unrecorded: list[object],
) -> dict[str, Any]:
    """Return the state of a parameter without the shape that it was saved with, which is checked.

    Args:
        own: The state.
        param: The parameter.
        title: What the parameter is called.
        storage: The codecs that the group of the state names.
        found: A difference is appended.
        unrecorded: The title is appended if encoded slots come without a shape.
    """
    rest = {name: value for name, value in own.items() if name != SHAPE}
    shape = own.get(SHAPE)
    if shape is None:
        if _records_in(own, storage) is not None:
            unrecorded.append(title)
    elif not isinstance(shape, Tensor) or shape.dtype != torch.int64 or shape.dim() != 1:
        found.append(f"'{title}/{SHAPE}' is {state_mismatch.told(shape)}, not a row of int64")
    elif problem := flaw(shape):
        found.append(f"'{title}/{SHAPE}' is {problem}")
    elif (saved := tuple(shape.tolist())) != tuple(param.shape):
        found.append(
            f"the encoded slots of '{title}' are of shape {saved}, here {tuple(param.shape)}"
        )
    return rest


def _unrecorded_message(titles: Sequence[object]) -> str:
    """Return the warning about encoded slots of an older state, of which shapes are not known."""
    names = ", ".join(f"'{title}'" for title in titles[:3])
    names += f" and {len(titles) - 3} more" if len(titles) > 3 else ""
    return (
        f"the state that was loaded does not have the shapes of the parameters whose slots are in"
        f" 8 bits ({names}), as those of older versions: only the number of elements was checked."
        " Save it again."
    )


def fit_storage(
    optimizer: Any,
    given: dict[str, Any],
    notes: list[str],
    convert: bool,
    values: Mapping[Tensor, Tensor],
) -> dict[str, Any]:
    """Return a state as an optimizer keeps it, without the names of codecs and without shapes.

    Args:
        optimizer: The optimizer.
        given: The state, of the right form.
        notes: A warning is appended if the state does not have shapes.
        convert: Whether slots in another storage are converted; otherwise they raise.
        values: New values of those parameters that are loaded with the state.

    Raises:
        CheckpointMismatchError: The storage or the shape of slots differs, or slots contradict the
            storage that their group names.
    """
    groups, saved = optimizer.param_groups, given["param_groups"]
    theirs = [_told(group, place) for place, group in enumerate(saved)]
    plain = [{k: x for k, x in group.items() if k != STORAGE} for group in saved]
    given = {**given, "param_groups": plain}
    if state_mismatch.sizes(groups) != state_mismatch.sizes(saved):  # which others refuse
        return given
    found, states, unrecorded = list[str](), dict(given["state"]), list[object]()
    for place, (group, other) in enumerate(zip(groups, plain, strict=True)):
        ours = storage_of(optimizer._rule_of(group))
        for param, key, title in _members_of(optimizer, group, other):
            if isinstance(own := states.get(key), Mapping):
                own = cast("Mapping[str, Any]", own)
                rest = _without_shape(own, param, title, theirs[place], found, unrecorded)
                states[key] = rest if SHAPE in own else own
        if ours == theirs[place]:
            continue
        for param, key, title in _members_of(optimizer, group, other):
            own = states.get(key)
            if not isinstance(own, Mapping):
                continue
            named = {*ours, *theirs[place]} & {*own, CORRECTION}
            if own and named and not convert:
                found.append(_refused(place, theirs[place], ours))
                break
            rule = optimizer._rule_of(group)
            kinds = optimizer._around.kinds
            made = _converted(rule, own, param, theirs[place], title, found, kinds)
            rest = _rest_converted(own, param, values.get(param, param), theirs[place], ours, kinds)
            states[key] = {k: x for k, x in own.items() if k not in _RESTS} | made | rest
    if found:
        raise mismatch(found, type(optimizer).__name__)
    if unrecorded:
        notes.append(_unrecorded_message(unrecorded))
    return {**given, "state": states}


def _members_of(optimizer: Any, group: Group, saved: Group) -> list[tuple[Tensor, Any, Any]]:
    """Parameters, keys of their states and titles, as the optimizer matches them."""
    if hasattr(optimizer, "rule"):
        return state_mismatch.matched(group, saved, [])
    return state_mismatch.members_of(group, saved)


def _told(group: Mapping[str, Any], place: int) -> Storage:
    """Return the codecs that a group of a state names."""
    told = group.get(STORAGE)
    if told is None:
        return {}
    what, known = f"'{STORAGE}' of group {place}", f"known: {', '.join(CODECS)}"
    if not isinstance(told, Mapping):
        raise mismatch([f"{what} is {state_mismatch.told(told)}, which names no codecs; {known}"])
    for name, codec in cast("Mapping[Any, Any]", told).items():
        if not isinstance(codec, str) or codec not in CODECS:
            raise mismatch(
                [f"{what} names {show_value(codec)} for '{name}', which is not a codec; {known}"]
            )
    return dict(cast("Storage", told))


def _refused(place: int, theirs: Storage, ours: Storage) -> str:
    names = [name for name in {**theirs, **ours} if name != CORRECTION]
    pairs = [(name, theirs.get(name, _PLAIN), ours.get(name, _PLAIN)) for name in names]
    said = [f"'{n}' is in {one}, here in {x}" for n, one, x in pairs if one != x]
    found = [f"{', '.join(said)}; convert=True encodes them again"] if said else []
    if CORRECTION in ours and CORRECTION not in theirs:
        found.append(
            f"the state has no corrections, '{CORRECTION}' here; convert=True makes them of its"
            " masters, or has them begin at 0"
        )
    if CORRECTION in theirs and CORRECTION not in ours:
        found.append(
            f"the state has corrections of weights, '{CORRECTION}', here there are none;"
            " convert=True makes masters of them where there are some, or leaves them behind"
        )
    return f"'{STORAGE}' of group {place}: {'; '.join(found)}"


def _converted(
    rule: Rule,
    own: Mapping[str, object],
    param: Tensor,
    theirs: Storage,
    title: object,
    found: list[str],
    kinds: StateStorage,
) -> dict[str, Tensor]:
    """The slots of a parameter in the codecs of a rule; what is wrong with them is added."""
    made: dict[str, Tensor] = {}
    for slot in rule.element_slots:
        value = own.get(slot.name)
        if not isinstance(value, Tensor) or slot.name == CORRECTION:
            continue
        if not (slot.storage or slot.name in theirs):  # which is wider beside a correction
            is_wider = kinds.is_split != (CORRECTION in theirs) and value.is_floating_point()
            made |= {slot.name: value.to(kinds.of(slot, param))} if is_wider else {}
            continue
        if problem := _why_unfit(value, param, theirs.get(slot.name)):
            found.append(f"'{title}/{slot.name}' {problem}")
            continue
        numbers = decoded(value, param, theirs.get(slot.name))
        codec = codec_of(slot, param)
        if codec is not None:
            made[slot.name] = encode_tensor(codec, numbers)
        else:  # small ones are of float32 beside others in codecs
            made[slot.name] = numbers if slot.storage else numbers.to(kinds.of(slot, param))
    return made


def _rest_converted(
    own: Mapping[str, object],
    param: Tensor,
    upper: Tensor,
    theirs: Storage,
    ours: Storage,
    kinds: StateStorage,
) -> dict[str, object]:
    """Return the state entries of a weight beside the parameter, as an optimizer keeps them.

    Entries that do not fit stay unchanged; the loader raises for them.
    """
    rests = {name: own[name] for name in _RESTS if name in own}
    if (CORRECTION in theirs) == (CORRECTION in ours) or not own:
        return rests
    if CORRECTION in ours:
        master = rests.get(MASTER)
        if not isinstance(master, Tensor) or master.shape != param.shape:
            return {CORRECTION: torch.zeros(param.numel(), dtype=torch.uint8, device=param.device)}
        is_upper = upper.dtype == torch.bfloat16 and upper.shape == master.shape
        return {CORRECTION: lower_of(master, upper if is_upper else None)}
    value = rests.get(CORRECTION)
    if not kinds.has_master(param) or not isinstance(value, Tensor):
        return {}
    if _why_unfit(value, param, theirs[CORRECTION]):
        return rests
    return {MASTER: decoded(value, upper, theirs[CORRECTION])}


def _why_unfit(value: Tensor, param: Tensor, codec: str | None) -> str:
    """Return the reason why a value is not a slot of a parameter in a codec, or as numbers."""
    wanted = tuple(param.shape)
    if codec is not None and value.dtype == torch.uint8:
        wanted = (CODECS[codec].bytes_of(param.numel()),)
    elif not value.is_floating_point():
        return f"is {state_mismatch.kind_of(value)}, no numbers"
    if tuple(value.shape) != wanted:
        return f"is {state_mismatch.kind_of(value)}, not of shape {wanted}"
    return flaw(value) or ""


def decoded(value: Tensor, param: Tensor, codec: str | None) -> Tensor:
    """Return the numbers of a slot that fits."""
    if codec is None or value.dtype != torch.uint8:
        return value.detach().float()
    return decode_tensor(CODECS[codec], value, param)
