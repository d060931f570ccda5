"""Saved states with encoded slots: a codec stores a slot in 8 bits per number, in blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.dtensor import beside, is_on_mesh, local
from thalweg._core.options.state_storage import store_slots
from thalweg._core.options.update_targets import ENCODED_SHAPE as SHAPE
from thalweg._core.options.update_targets import MASTER, StateStorage
from thalweg._core.param_groups import Group, parameter_names
from thalweg._core.quantized_slots import (
    CODECS,
    LEAST,
    as_kept,
    codec_of,
    decode_tensor,
    encode_tensor,
    likeness_of,
    lower_of,
    records_beside,
    with_rows,
)
from thalweg._core.state import flaw, mismatch, raise_mismatch
from thalweg._engines.codecs import OF_SLOTS
from thalweg._engines.codecs.split8 import CORRECTION, SPLIT8
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Rule
from thalweg.optim import state_mismatch
from thalweg.optim.dtensor_params import cuts_blocks, has_positions, make_local_shards, positions_of
from thalweg.optim.state_mismatch import members_here
from thalweg.variable import TRAINED, dtype_name

# Entries of a state that make a 16-bit parameter more exact.
_RESTS = (CORRECTION, MASTER)
# The option of saved groups that names the codec of each slot.
STORAGE = "state_storage"
_SUPPORTED_DTYPES = [dtype for dtype in TRAINED if dtype != torch.float64]
_UNCODED_DTYPE = "float32"
_SHORTEST = min(codec.block for codec in OF_SLOTS.values())

Storage = dict[str, str]  # codecs by the names of slots


def storage_of(rule: Rule) -> Storage:
    """Return {slot: codec} of the encoded slots of a rule."""
    return {slot.name: slot.storage for slot in rule.element_slots if slot.storage}


def check_params(optimizer: Any, group: Group) -> None:
    """Raise if slots of a parameter in a group cannot be encoded.

    Raises:
        InvalidTypeError: A parameter is complex or float64.
        NotImplementedError: The placements of a DTensor do not determine each rank's elements. Or a
            rank has elements on a GPU that are not adjacent in the full tensor.
        InvalidArgumentError: A shard of a DTensor begins or ends inside a block of a codec.
    """
    storage = storage_of(optimizer.rule_of(group))
    if not storage:
        return
    params = group["params"]
    labels = parameter_names(optimizer.param_groups, params)
    slots_text = " and ".join(f"'{name}' in {codec}" for name, codec in storage.items())
    for param, label in zip(params, labels, strict=True):
        if param.dtype not in _SUPPORTED_DTYPES:
            accepted = ", ".join(map(dtype_name, _SUPPORTED_DTYPES))
            raise InvalidTypeError(
                f"'{label}' is {dtype_name(param.dtype)}, and its state would keep {slots_text},"
                f" which is for parameters of {accepted}."
            )
        if is_on_mesh(param):
            _check_dtensor(param, label, storage, slots_text)


def _check_dtensor(param: Any, label: str, storage: Storage, slots_text: str) -> None:
    """Check that ranks can encode their parts of a DTensor's slots.

    Args:
        param: The DTensor.
        label: The name of the parameter in messages.
        storage: {slot: codec}.
        slots_text: The slots as text, for messages.

    Raises:
        NotImplementedError: No placement of this kind is supported on the device.
        InvalidArgumentError: The mesh cuts a row within a block.
    """
    codecs = [CODECS[name] for name in storage.values() if not CODECS[name].is_beside]
    # As in `codec_of`: slots of other DTensors are not encoded, and need no positions.
    codecs = [x for x in codecs if x.divides(param.shape) and param.numel() >= LEAST]
    if not codecs:
        return
    placements = ", ".join(map(str, param.placements))
    name = f"'{label}' is a DTensor of shape {tuple(param.shape)} with placements ({placements})"
    if not has_positions(param):
        raise NotImplementedError(
            f"{name}; state_storage is defined for contiguous ones whose placements are Shard or"
            " Replicate and determine the elements of each rank."
        )
    block = max(codec.block for codec in codecs)
    if cuts_blocks(param, block):
        mesh = tuple(param.device_mesh.shape)
        shorter = "" if block == _SHORTEST else f" choose codecs with blocks of {_SHORTEST},"
        raise InvalidArgumentError(
            f"{name} on a mesh of {mesh}, which cuts its rows of {param.shape[-1]} elements inside"
            f" of the blocks of {block} that share a scale ({slots_text}). Shard another dimension,"
            f" give each rank a multiple of {block} columns,{shorter} or use an optimizer without"
            " state_storage for this parameter."
        )
    if param.device.type == "cuda" and not isinstance(positions_of(param), int):
        raise NotImplementedError(
            f"{name}; on a GPU state_storage is defined for those that are cut along dimension 0,"
            " or not at all."
        )


def check_effect(storage: str, rules: Mapping[str, Rule]) -> None:
    """Raise InvalidArgumentError if no rule has a slot that `storage` encodes.

    Args:
        storage: The argument `state_storage` of the constructor.
        rules: {title in messages: rule} of all groups.
    """
    if any(store_slots(rule, storage).codecs for rule in rules.values()):
        return
    names = dict.fromkeys(slot.name for rule in rules.values() for slot in rule.element_slots)
    reason = "with these options there is none with a number for each element"
    if names:
        reason = f"8 bits are too few for {', '.join(names)}; a dict names codecs nevertheless"
    raise InvalidArgumentError(
        f"{' and '.join(rules)} {'has' if len(rules) == 1 else 'have'} no slots that"
        f" state_storage={storage!r} may encode: {reason}."
    )


def add_rows(optimizer: Any, state_dict: dict[str, Any]) -> None:
    """Reshape encoded slots in `state_dict` to as many dimensions as their parameters have.

    The state of a parameter with such slots becomes a changed copy. DTensors keep their slots.
    """
    states, groups = state_dict["state"], state_dict["param_groups"]
    for group, saved_group in zip(optimizer.param_groups, groups, strict=True):
        storage = saved_group.get(STORAGE, {})
        for param, key in zip(group["params"], saved_group["params"], strict=True):
            slots = _select_records(states.get(key, {}), storage)
            if slots and not is_on_mesh(param):
                rows = {n: with_rows(CODECS[storage[n]], x, param) for n, x in slots.items()}
                states[key] = {**states[key], **rows}


def has_codes(entries: Mapping[str, object], storage: Storage) -> bool:
    """Return True if the state of a parameter has encoded slots."""
    return bool(_select_records(entries, storage))


def _select_records(entries: Mapping[str, object], storage: Storage) -> dict[str, Tensor]:
    """Return the encoded slots in the state of a parameter, by name."""
    slots = {name: entries.get(name) for name in storage}
    return {n: x for n, x in slots.items() if isinstance(x, Tensor) and x.dtype == torch.uint8}


def _normalize_slots(
    entries: Mapping[str, Any],
    param: Tensor,
    label: object,
    storage: Storage,
    problems: list[str],
    unrecorded: list[object],
) -> Mapping[str, Any]:
    """Return a copy of a saved parameter state, with encoded slots in the optimizer's shape.

    The entry with the saved shape of the parameter is checked and left out.

    Args:
        label: The name of the parameter in messages.
        storage: {slot: codec} of the saved group.
        problems: A list to which a message is added if shapes differ.
        unrecorded: A list to which `label` is added if encoded slots lack a saved shape.
    """
    shape = entries.get(SHAPE)
    if shape is None:
        if has_codes(entries, storage):
            unrecorded.append(label)
    elif not isinstance(shape, Tensor) or shape.dtype != torch.int64 or shape.dim() != 1:
        problems.append(f"'{label}/{SHAPE}' is {state_mismatch.told(shape)}, not a row of int64")
    elif problem := flaw(shape):
        problems.append(f"'{label}/{SHAPE}' is {problem}")
    elif (saved_shape := tuple(cast("Any", shape).tolist())) != tuple(param.shape):
        problems.append(
            f"the encoded slots of '{label}' are of shape {saved_shape}, here {tuple(param.shape)}"
        )
    slots = _select_records(entries, storage)
    stored_slots = {name: as_kept(CODECS[storage[name]], x, param) for name, x in slots.items()}
    return {k: x for k, x in {**entries, **stored_slots}.items() if k != SHAPE}


def _unrecorded_message(labels: Sequence[object]) -> str:
    """Return the warning about encoded slots of an older state without shapes."""
    names = ", ".join(f"'{label}'" for label in labels[:3])
    names += f" and {len(labels) - 3} more" if len(labels) > 3 else ""
    return (
        f"the state that was loaded does not have the shapes of the parameters whose slots are in"
        f" 8 bits ({names}), as those of older versions: only the number of elements was checked."
        " Save it again."
    )


def fit_storage(
    optimizer: Any,
    saved_state: dict[str, Any],
    notes: list[str],
    convert: bool,
    values: Mapping[Tensor, Tensor],
) -> dict[str, Any]:
    """Return a saved state with slots in the codecs of the optimizer.

    The option `state_storage`, which names codecs, is removed from its groups. A codec encodes
    fewer slots of DTensors than of other parameters, so slots may differ although codecs are equal.

    Args:
        notes: A list to which a warning is added if encoded slots lack saved shapes.
        convert: True to convert slots in another codec, and to encode float32 slots. False raises
            for these slots. Slots that the optimizer does not encode are decoded in both cases.
        values: {parameter: new value} of parameters that are loaded with the state.

    Raises:
        CheckpointMismatchError: Codecs or shapes differ, or a slot contradicts the codec of its
            group.
    """
    groups, saved_groups = optimizer.param_groups, saved_state["param_groups"]
    saved_storages = [_read_codecs(group, index) for index, group in enumerate(saved_groups)]
    stripped_groups = [{k: x for k, x in group.items() if k != STORAGE} for group in saved_groups]
    saved_state = {**saved_state, "param_groups": stripped_groups}
    if state_mismatch.sizes(groups) != state_mismatch.sizes(saved_groups):
        return saved_state  # The loader raises.
    problems, states, unrecorded = list[str](), dict(saved_state["state"]), list[object]()
    for index, (group, saved_group) in enumerate(zip(groups, stripped_groups, strict=True)):
        members, saved_storage = members_here(optimizer, group, saved_group), saved_storages[index]
        for param, key, label in members:
            if isinstance(entries := states.get(key), Mapping):
                arguments = param, label, saved_storage, problems, unrecorded
                states[key] = _normalize_slots(entries, *arguments)
        rule, kinds = optimizer.rule_of(group), optimizer.step_options.kinds
        storage = storage_of(rule)
        recoded_names = set[str]() if storage == saved_storage else {*storage, *saved_storage}
        for param, key, label in members:
            entries: Mapping[str, Any] | None = states.get(key)
            if not isinstance(entries, Mapping):
                continue
            if entries and recoded_names & {*entries, CORRECTION} and not convert:
                problems.append(_describe_codecs(index, saved_storage, storage))
                break
            slots = _convert_slots(rule, entries, param, saved_storage, label, problems, kinds)
            problems += [] if convert else _describe_encoded(entries, slots, label)
            upper = values.get(param, param)
            rests = _convert_split_weight(entries, param, upper, saved_storage, storage, kinds)
            others = {k: x for k, x in entries.items() if k not in _RESTS or k in rests}
            states[key] = {**others, **slots, **rests}
    raise_mismatch(problems, type(optimizer).__name__)
    if unrecorded:
        notes.append(_unrecorded_message(unrecorded))
    return {**saved_state, "state": states}


def _read_codecs(group: Mapping[str, Any], index: int) -> Storage:
    """Return {slot: codec} from the option `state_storage` of a saved group; {} without it.

    Raise CheckpointMismatchError if the option is invalid.
    """
    storage = group.get(STORAGE)
    if storage is None:
        return {}
    label, codecs_text = f"'{STORAGE}' of group {index}", f"known: {', '.join(CODECS)}"
    if not isinstance(storage, Mapping):
        problem = f"{label} is {state_mismatch.told(storage)}, which names no codecs"
        raise mismatch([f"{problem}; {codecs_text}"])
    for name, codec in cast("Mapping[Any, Any]", storage).items():
        if not isinstance(codec, str) or codec not in CODECS:
            problem = f"{label} names {show_value(codec)} for '{name}', which is not a codec"
            raise mismatch([f"{problem}; {codecs_text}"])
    return dict(cast("Storage", storage))


def _describe_codecs(index: int, saved_storage: Storage, storage: Storage) -> str:
    """Return the message about codecs that differ between a saved group and its rule.

    Args:
        index: The index of the group.
        saved_storage, storage: {slot: codec} of the saved group and of the rule.
    """
    names = [name for name in {**saved_storage, **storage} if name != CORRECTION]
    saved_codecs = [saved_storage.get(name, _UNCODED_DTYPE) for name in names]
    codecs = [storage.get(name, _UNCODED_DTYPE) for name in names]
    pairs = zip(names, saved_codecs, codecs, strict=True)
    differences = [f"'{name}' is in {x}, here in {y}" for name, x, y in pairs if x != y]
    problems = [f"{', '.join(differences)}; convert=True encodes them again"] if differences else []
    if CORRECTION in storage and CORRECTION not in saved_storage:
        problems.append(
            f"the state has no corrections, '{CORRECTION}' here; convert=True makes them of its"
            " masters, or has them begin at 0"
        )
    if CORRECTION in saved_storage and CORRECTION not in storage:
        problems.append(
            f"the state has corrections of weights, '{CORRECTION}', here there are none;"
            " convert=True makes masters of them where there are some, or leaves them behind"
        )
    return f"'{STORAGE}' of group {index}: {'; '.join(problems)}"


def _describe_encoded(
    entries: Mapping[str, Any], slots: Mapping[str, Tensor], label: object
) -> list[str]:
    """Return a message for each encoded slot in `slots`, which `entries` has in float32.

    Args:
        entries: The saved state of a parameter.
        slots: The slots from `_convert_slots`.
        label: The name of the parameter in messages.
    """
    kind_of = state_mismatch.kind_of
    return [
        f"'{label}/{name}' is {kind_of(entries[name])}, here {kind_of(x)}; convert=True encodes it"
        for name, x in slots.items()
        if x.dtype == torch.uint8
    ]


def _convert_slots(
    rule: Rule,
    entries: Mapping[str, object],
    param: Tensor,
    saved_storage: Storage,
    label: object,
    problems: list[str],
    kinds: StateStorage,
) -> dict[str, Tensor]:
    """Convert slots to the codecs and dtypes of a rule; return {slot: tensor} of converted slots.

    The dict has no slots that are in the codec already. For a DTensor, a decoded slot may be a full
    tensor.

    Args:
        saved_storage: {slot: codec} of `entries`.
        problems: A list to which messages about invalid slots are added.
        kinds: The dtypes of slots.
    """
    slots: dict[str, Tensor] = {}
    for slot in rule.element_slots:
        value = entries.get(slot.name)
        if not isinstance(value, Tensor) or slot.name == CORRECTION:
            continue
        # An optimizer with corrections stores other slots in wider dtypes.
        if not (slot.storage or slot.name in saved_storage):
            is_wider = kinds.is_split != (CORRECTION in saved_storage) and value.is_floating_point()
            slots |= {slot.name: value.to(kinds.of(slot, param))} if is_wider else {}
            continue
        codec, saved_codec = codec_of(slot, param), saved_storage.get(slot.name)
        if saved_codec == slot.storage and (value.dtype == torch.uint8) == (codec is not None):
            continue
        if problem := _why_unfit(value, param, saved_codec):
            problems.append(f"'{label}/{slot.name}' {problem}")
            continue
        numbers = decode_slot(value, param, saved_codec)
        if codec is not None:
            records = encode_tensor(codec, _take_shard(numbers, param))
            slots[slot.name] = records_beside(codec, records, param)
        else:
            # A slot with a codec that `codec_of` does not encode is float32.
            slots[slot.name] = numbers if slot.storage else numbers.to(kinds.of(slot, param))
    return slots


def _convert_split_weight(
    entries: Mapping[str, object],
    param: Tensor,
    upper: Tensor,
    saved_storage: Storage,
    storage: Storage,
    kinds: StateStorage,
) -> dict[str, object]:
    """Return {state key: master or correction} of a parameter, in the optimizer's form.

    With `weights="split"`, a float32 weight is a bfloat16 parameter (upper bits) and a correction
    (lower bits). A saved master is converted to a correction, and vice versa, if the options
    differ. Invalid entries are returned unchanged; the loader raises for them.

    Args:
        upper: The parameter, or the value that is loaded into it.
        storage: {slot: codec} of the optimizer.
    """
    rests = {name: entries[name] for name in _RESTS if name in entries}
    if (CORRECTION in saved_storage) == (CORRECTION in storage) or not entries:
        return rests
    if CORRECTION in storage:
        master = rests.get(MASTER)
        shard = local(param)
        # Without a master, lower bits of 0: the weight is the parameter itself.
        records = torch.zeros(shard.numel(), dtype=torch.uint8, device=shard.device)
        if isinstance(master, Tensor) and master.shape == param.shape:
            is_upper = upper.dtype == torch.bfloat16 and upper.shape == master.shape
            records = lower_of(
                _take_shard(master, param), _take_shard(upper, param) if is_upper else None
            )
        return {CORRECTION: records_beside(SPLIT8, records, param)}
    value = rests.get(CORRECTION)
    if not kinds.has_master(param) or not isinstance(value, Tensor):
        return {}
    if _why_unfit(value, param, saved_storage[CORRECTION]):
        return rests
    return {MASTER: decode_slot(value, upper, saved_storage[CORRECTION])}


def _why_unfit(slot_tensor: Tensor, param: Tensor, codec: str | None) -> str:
    """Return why a tensor is not a valid slot of a parameter in a codec; "" if it is valid."""
    expected_shape = tuple(param.shape)
    if is_on_mesh(slot_tensor) and not is_on_mesh(param):
        return "is a DTensor, and the parameter is not"
    if codec is not None and slot_tensor.dtype == torch.uint8:
        expected_shape = tuple(likeness_of(CODECS[codec], param).shape)
    elif not slot_tensor.is_floating_point():
        return f"is {state_mismatch.kind_of(slot_tensor)}, no numbers"
    if tuple(slot_tensor.shape) != expected_shape:
        return f"is {state_mismatch.kind_of(slot_tensor)}, not of shape {expected_shape}"
    return "" if is_on_mesh(slot_tensor) else flaw(slot_tensor) or ""


def decode_slot(slot_tensor: Tensor, param: Tensor, codec: str | None) -> Tensor:
    """Return the numbers of a valid slot, as a DTensor for a DTensor.

    For a DTensor whose rows are not whole blocks, the bytes are those of a full tensor, and so are
    the returned numbers.
    """
    is_encoded = slot_tensor.dtype == torch.uint8
    slot_codec = CODECS[codec] if codec is not None and is_encoded else None
    if slot_codec is not None and is_on_mesh(param) and not slot_codec.divides(param.shape):
        return decode_tensor(slot_codec, slot_tensor, param)
    shard = _take_shard(slot_tensor, param)
    if slot_codec is None:
        numbers = shard.detach().float()
    else:
        numbers = decode_tensor(slot_codec, shard.reshape(-1), local(param))
    return beside(numbers, param)


def _take_shard(tensor: Tensor, param: Tensor) -> Tensor:
    """Return this rank's part of a tensor, or the whole tensor if `param` is not a DTensor."""
    parts = make_local_shards([param])
    return tensor if parts is None else parts.cut(tensor, param)
