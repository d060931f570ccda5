"""Loading of optimizer states: all of a state, or nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.context_managers import host_allocations
from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.dtensor import any_on_mesh
from thalweg._core.options.accumulation import COUNT, SUM, is_empty_sum
from thalweg._core.options.spikes import HISTORY
from thalweg._core.options.update_targets import ENCODED_SHAPE, MASTER, StateStorage
from thalweg._core.param_groups import Group, params_of, states_of
from thalweg._core.state import Item, Loading, mismatch, restore
from thalweg.errors import CheckpointWarning, InvalidTypeError, warn
from thalweg.formula import Rule, Slot
from thalweg.optim import state_mismatch
from thalweg.optim.dtensor_params import make_entry
from thalweg.optim.group_options import hypers_of
from thalweg.optim.param_scalars import STEP, scalar_dtype
from thalweg.optim.slot_checks import separate_slots
from thalweg.optim.state_mismatch import StateEntrySpec, keys_in, parameter_states, sum_spec
from thalweg.optim.step_options import ENTRY_KEYWORDS, StepOptions
from thalweg.variable import REDUCED

_HOOKS = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")

# The writes that load a state, and the names of optional slots that the state lacks. Options such
# as `ema_decay` add optional slots, which start at the parameters.
Plan = tuple[Loading, list[str]]


def load(
    optimizer: Any,
    state_dict: Mapping[str, object],
    plan: Callable[[Any, dict[str, Any]], Plan],
    convert: bool = False,
    allow_loss: bool = False,
) -> None:
    """Load a state dict, with torch's hooks before and after; change nothing on an error.

    Args:
        state_dict: The state dict from the user; not changed.
        plan: `plan_torch_load` or `plan_load_in_place`. `plan(optimizer, state)` returns (writes
            that load the state, names of optional slots that the state lacks).
        convert: True to convert slots in another codec, and states of other packages. False raises
            for them.
        allow_loss: True to drop parts of another package's state that have no counterpart here.
            False raises for them.

    Raises:
        CheckpointMismatchError: The optimizer cannot step with the state.
        FailedPreconditionError: The call is in a block of `swapped()`.
    """
    optimizer.check_not_swapped(
        f"A state was loaded into {type(optimizer).__name__} inside of swapped(), which gives the"
        " parameters their former values when it ends. Load the state outside of the block."
    )
    loaded_state = _run_pre_hooks(optimizer, state_dict)
    state_mismatch.check_form(loaded_state, type(optimizer).__name__)
    conversion = None
    if convert:
        with importing:
            from thalweg.optim.package_states import convert_state
        conversion = convert_state(optimizer, loaded_state, allow_loss)
        loaded_state = loaded_state if conversion is None else conversion.state
    loaded_state, notes, history_calls = drop_unused(optimizer, loaded_state)
    loaded_state = fit_state(optimizer, loaded_state, notes, convert)
    loading, lacking = plan(optimizer, loaded_state)
    if conversion is not None:
        notes = [*conversion.notes(), *notes]
        param_pairs = [
            (make_entry(name, param), tensor) for name, param, tensor in conversion.values
        ]
        loading = replace(loading, pairs=[*loading.pairs, *param_pairs])
    warn_of(optimizer, lacking, notes)
    restore(loading, Loading(then=history_calls))
    if optimizer.step_cache.diagnosing is not None:
        optimizer.step_cache.diagnosing.restart_count()
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def plan_torch_load(
    optimizer: Any, saved_state: dict[str, Any], load: Callable[[Any, dict[str, Any]], None]
) -> Plan:
    """Return the writes that load a state as torch's loader does.

    Torch's loader may fail after some of its writes. It first loads the state into a copy of the
    optimizer. The returned writes then move the state from the copy to the optimizer.

    Args:
        optimizer: A `FusedTorchOptimizer`; not changed.
        load: `load_state_dict` of the torch class.

    Returns:
        The writes, and the names of missing slots that options add, such as averages.

    Raises:
        CheckpointMismatchError: The optimizer cannot step with the state.
        ValueError: From torch: a group has another number of parameters.
    """
    lacking = _check_saved_entries(optimizer, saved_state)
    twin, kinds = _make_twin(optimizer), optimizer.step_options.kinds
    try:
        with host_allocations():
            # Torch's loader would copy offloaded slots to the device of the parameters.
            load(twin, saved_state if kinds.device is None else _without_slots(saved_state))
    except (ValueError, TypeError, RuntimeError, MemoryError):
        raise
    # A subclass or an object in the state can raise anything.
    except Exception as error:
        reason = f"{type(error).__name__} while it was loaded: {error}"
        raise mismatch([reason], _describe_optimizer(optimizer)) from error
    _fit_twin(twin, optimizer, saved_state)
    # Kernels read memory, which has other values than a lazily negated or conjugated tensor.
    for _, entries in states_of(twin.state):
        entries.update(dict(_resolve_views(entries)))
    optimizer.record_format(twin.param_groups, twin.state)
    separate_slots(twin, optimizer.step_options)
    # Loaded step counts are separate tensors; a step reads those in one block at once.
    twin.step_cache.blocks.gather(twin.state, twin._single)
    return Loading(then=_move_calls(twin, optimizer)), lacking


def _check_saved_entries(optimizer: Any, saved_state: dict[str, Any]) -> list[str]:
    """Return the names of missing slots that options add, one name per slot and parameter.

    Raise CheckpointMismatchError if the optimizer cannot step with the state.
    """
    problems, lacking = list[str](), list[str]()
    saved_groups = saved_state["param_groups"]
    if state_mismatch.sizes(saved_groups) == state_mismatch.sizes(optimizer.param_groups):
        for group, key, param, label in _iterate_members(optimizer, saved_groups, problems):
            entries = saved_state["state"].get(key, {})
            problems += optimizer._unfit_state(group, entries, param, label)
            if not problems and not state_mismatch.is_before_steps(entries):
                lacking += [n for n in optimizer.step_options.keys(param) if entries.get(n) is None]
    if problems:
        raise mismatch(problems, _describe_optimizer(optimizer))
    return lacking


def _fit_twin(twin: Any, optimizer: Any, saved_state: dict[str, Any]) -> None:
    """Give the loaded state of `twin` the dtypes and devices that a step of `optimizer` needs.

    Args:
        twin: The copy of the optimizer that has loaded the state; its state is changed.
        optimizer: The optimizer with the options; not changed.
        saved_state: The state dict before torch's loader cast its tensors.
    """
    options = optimizer.step_options
    keys = [key for group in saved_state["param_groups"] for key in group["params"]]
    members = [(group, param) for group in twin.param_groups for param in group["params"]]
    for key, (group, param) in zip(keys, members, strict=True):
        entries, saved_entries = twin.state.get(param, {}), saved_state["state"].get(key, {})
        rule = optimizer.base_rule(group, param)
        if not options.is_lossless:
            _restore_dtypes(entries, saved_entries, param, rule, options)
        _restore_numbers(entries, saved_entries, optimizer.wrapped_rule(group, param).slots)
        if not options.is_lossless:
            options.kinds.widen_slots(entries, rule.slots, param)
        fit_slots(twin, options.kinds, group, param, entries)


def _run_pre_hooks(optimizer: Any, state_dict: object) -> dict[str, object]:
    """Call torch's load pre-hooks with a shallow copy of the state; return the resulting state.

    A hook changes the copy or returns another state. Raise InvalidTypeError if `state_dict` is not
    a mapping.
    """
    if not isinstance(state_dict, Mapping):
        raise InvalidTypeError(f"state_dict must be a dict, not a {type(state_dict).__name__}.")
    # As in torch: a hook may replace entries without a change of the user's dict.
    loaded_state = dict(cast("Mapping[str, Any]", state_dict))
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        replacement = hook(optimizer, loaded_state)
        loaded_state = loaded_state if replacement is None else replacement
    return loaded_state


def drop_unused(
    optimizer: Any, saved_state: dict[str, Any]
) -> tuple[dict[str, Any], list[str], list[Call]]:
    """Remove entries that no option of the optimizer uses, such as gradient sums, from a state.

    Returns:
        (state, warnings about removed entries, callables that load the history of `spikes`). The
        state is a new dict if an entry was removed.
    """
    groups, history_calls = saved_state["param_groups"], list[Call]()
    has_judge = optimizer.step_options.judge is not None
    if has_judge or any(HISTORY in group for group in groups):
        with importing:
            from thalweg.optim.judged_steps import split_history
        saved_state, history_calls = split_history(optimizer, saved_state)
    if any(_has_placeholders(entries) for _, entries in parameter_states(saved_state)):
        with importing:
            from thalweg.optim.state_format import without_placeholders
        saved_state = without_placeholders(optimizer, saved_state)
    names = {name for _, entries in parameter_states(saved_state) for name in entries}
    has_count = any(COUNT in group for group in groups)
    if not (has_count or SUM in names or names & ENTRY_KEYWORDS.keys()):
        return saved_state, [], history_calls
    with importing:
        from thalweg.optim.state_format import drop_option_state
    return *drop_option_state(optimizer, saved_state), history_calls


def _has_placeholders(entries: Mapping[str, Any]) -> bool:
    """Return True if the state of a parameter is empty, or has empty sums or dicts."""
    has_empty_dicts = any(isinstance(entry, dict) and not entry for entry in entries.values())
    return not entries or has_empty_dicts or is_empty_sum(entries.get(SUM))


def fit_state(
    optimizer: Any,
    saved_state: dict[str, Any],
    notes: list[str],
    convert: bool = False,
    values: Mapping[Tensor, Tensor] | None = None,
) -> dict[str, Any]:
    """Return a state with slots in the optimizer's codecs (8-bit encodings), cut for DTensors.

    The options `round` and `seed` are removed from groups. Without codecs, DTensors and these
    options, return `saved_state` itself.

    Args:
        notes: A list to which warnings are added.
        convert: True to convert other codecs, and ignore another `round` or `seed`; False raises.
        values: {parameter: new value} of parameters that are loaded with the state.

    Raises:
        CheckpointMismatchError: Codecs, `round`, `seed` or shapes differ from the optimizer's.
    """
    groups = saved_state["param_groups"]
    if any("round" in group or "seed" in group for group in groups):
        with importing:
            from thalweg.optim.stochastic_rounding import fit_rounding
        saved_state = fit_rounding(optimizer, saved_state, convert)
        groups = saved_state["param_groups"]
    has_codecs = any(group.get("state_storage") is not None for group in groups)
    if has_codecs or any(map(optimizer.encodes_group, optimizer.param_groups)):
        with importing:
            from thalweg.optim.quantized_state import fit_storage
        saved_state = fit_storage(optimizer, saved_state, notes, convert, values or {})
    if any_on_mesh(params_of(optimizer.param_groups)):
        with importing:
            from thalweg.optim.full_states import cut_state
        return cut_state(optimizer, saved_state)
    return saved_state


def warn_of(optimizer: object, lacking: Collection[str], notes: Collection[str]) -> None:
    """Warn of entries that a loaded state lacks (`lacking`), and with each text in `notes`."""
    label = _describe_optimizer(optimizer)
    messages = [state_mismatch.lacking_message(label, lacking)] if lacking else []
    for note in (*messages, *(f"{label}: {note}" for note in notes)):
        warn(note, CheckpointWarning)


def _describe_optimizer(optimizer: Any) -> str:
    """Return the name of an optimizer's class, with its options, for messages."""
    options = optimizer.step_options.named()
    return type(optimizer).__name__ + (f" with {options}" if options else "")


def _make_twin(optimizer: Any) -> Any:
    """Return a copy of an optimizer that shares its parameters, groups and state.

    The copy has no hooks, no options of this library, and a new step cache.
    """
    cls = cast("Any", type(optimizer))
    twin = cls.__new__(cls)
    cache, options = twin.step_cache, cls.step_options
    # Hooks get the optimizer, not the twin, and are called by `load`.
    hooks = {name: OrderedDict[int, Any]() for name in _HOOKS}
    attributes: dict[str, Any] = {**vars(optimizer), **hooks}
    attributes |= {"step_cache": cache, "step_options": options}
    cache.blocks = optimizer.step_cache.blocks
    twin.__dict__.update(attributes, defaults=dict(optimizer.defaults))
    return twin


def _move_calls(twin: Any, optimizer: Any) -> list[Call]:
    """Return calls that replace state, groups and defaults of `optimizer` by those of `twin`."""
    # `step_cache` stays: it has the held lock and the hooks, and its plans notice the new state.
    excluded = ("step_cache", "step_options", "defaults", *_HOOKS)
    attributes = {name: value for name, value in twin.__dict__.items() if name not in excluded}
    twin.step_options = optimizer.step_options
    return [
        partial(optimizer.defaults.update, twin.defaults),
        partial(optimizer.__dict__.update, attributes),
        *optimizer.step_cache.operands.reading(twin),
    ]


def _iterate_members(
    optimizer: Any, saved_groups: list[Any], problems: list[str]
) -> Iterator[tuple[Group, Any, Tensor, Any]]:
    """Yield (group, saved key, parameter, label for messages) for each parameter, matched by order.

    The group is a new dict with the saved options and torch's defaults. If a saved option is
    invalid, the optimizer's own group is yielded instead.

    Args:
        problems: A list to which messages about invalid options are added.
    """
    probe = _make_twin(optimizer)
    groups = [
        {**saved_group, "params": group["params"]}
        for group, saved_group in zip(optimizer.param_groups, saved_groups, strict=True)
    ]
    optimizer._torch.__setstate__(probe, {"state": {}, "param_groups": groups})
    for index, (group, saved_group) in enumerate(zip(groups, saved_groups, strict=True)):
        faults = optimizer._unfit_options(group, index)
        problems += faults
        for param, key, label in state_mismatch.members_of(group, saved_group):
            yield optimizer.param_groups[index] if faults else group, key, param, label
    # A group with problems may have no class.
    if not problems:
        problems += optimizer._unfit_groups(groups)


def _restore_dtypes(
    entries: dict[str, Any],
    saved_entries: Mapping[str, Any],
    param: Tensor,
    rule: Rule,
    options: StepOptions,
) -> None:
    """Replace tensors that torch's loader has cast or moved by copies of the saved tensors.

    Args:
        entries: The state of a parameter as torch's loader made it; changed.
        rule: The rule of the parameter. A scalar slot gets the wider of the saved and the loaded
            dtype.
        options: The options of the optimizer. If no option changes dtypes or devices, only
            gradient sums are replaced.
    """
    kinds, scalar_names = options.kinds, {slot.name for slot in rule.scalar_slots}
    for name, value in saved_entries.items():
        loaded = entries.get(name)
        if not (isinstance(loaded, Tensor) and isinstance(value, Tensor)):
            continue
        if options.keeps_as_torch and name != SUM:
            continue
        target_device = kinds.home_of(name, param)
        needs_move = kinds.device is not None and loaded.device != target_device
        # `_without_slots` replaced a slot on another device by an empty tensor.
        must_replace = needs_move or loaded.shape != value.shape
        if must_replace or (_is_kept(value) and loaded.dtype != value.dtype):
            dtype = value.dtype if _is_kept(value) else loaded.dtype
            if name in scalar_names:
                dtype = torch.promote_types(dtype, loaded.dtype)
            entries[name] = value.detach().to(target_device, dtype, copy=True)


def _is_kept(tensor: Tensor) -> bool:
    """Return True for floating-point tensors and bytes of codecs, which a state keeps."""
    return tensor.is_floating_point() or tensor.dtype == torch.uint8


def _restore_numbers(
    entries: dict[str, Any], saved_entries: Mapping[str, Any], slots: Iterable[Slot]
) -> None:
    """Replace scalar slots, and slots with a fixed dtype, by copies of the saved tensors.

    Torch's loader cast these slots to the parameter's dtype. A scalar slot stays if the cast made
    it wider.

    Args:
        entries: The state of a parameter as torch's loader made it; changed.
        slots: The slots of the rule with all options.
    """
    for slot in slots:
        if not slot.scalar and slot.dtype is None:
            continue
        value, loaded = saved_entries.get(slot.name), entries.get(slot.name)
        if not isinstance(value, Tensor) or not isinstance(loaded, Tensor):
            continue
        is_wider = torch.promote_types(value.dtype, loaded.dtype) == loaded.dtype
        if slot.dtype is not None or not is_wider:
            entries[slot.name] = value.detach().to(loaded.device, copy=True)


def fit_slots(
    optimizer: Any, storage: StateStorage, group: Group, param: Tensor, entries: dict[str, Any]
) -> None:
    """Convert numbers in `entries` to tensors of shape (); cast slots with a shape of their own.

    Args:
        optimizer: The optimizer, or the copy that loads the state.
        storage: The dtypes of slots with all options.
        entries: The state of the parameter, changed in place.
    """
    rule = optimizer.base_rule(group, param)
    for name in (STEP, *(slot.name for slot in rule.numbers)):
        value = entries.get(name)
        if isinstance(value, Tensor):
            entries[name] = _as_number(value)
        elif value is not None and not optimizer._kind_of(group)._has_python_scalars:
            entries[name] = torch.tensor(float(value), dtype=scalar_dtype(), device="cpu")
    for slot in rule.shaped_slots:
        value = entries.get(slot.name)
        if isinstance(value, Tensor) and value.is_floating_point():
            entries[slot.name] = value.to(storage.of(slot, param))


def _as_number(tensor: Tensor) -> Tensor:
    """Return a tensor of one element in shape (), in a dtype that can hold large counts."""
    tensor = tensor.reshape(()) if tensor.dim() else tensor
    if tensor.dtype.is_floating_point:
        return tensor if tensor.dtype in state_mismatch.REAL_DTYPES else tensor.to(scalar_dtype())
    return tensor.long()


def _resolve_views(entries: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, plain tensor) for entries that are negated, conjugated or part of a graph."""
    tensors = [(name, x) for name, x in entries.items() if isinstance(x, Tensor)]
    for name, tensor in tensors:
        if tensor.is_neg() or tensor.is_conj() or not tensor.is_leaf:
            yield name, tensor.detach().resolve_neg().resolve_conj()


def _without_slots(saved_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a state in which empty tensors replace all tensors with dimensions."""
    states = {
        key: {
            name: entry.new_empty((0, 0)) if isinstance(entry, Tensor) and entry.dim() else entry
            for name, entry in entries.items()
        }
        for key, entries in parameter_states(saved_state)
    }
    return {**saved_state, "state": {**saved_state["state"], **states}}


def plan_load_in_place(optimizer: Any, saved_state: dict[str, Any]) -> Plan:
    """Return the writes that copy a state into the existing tensors of a `RuleOptimizer`.

    Returns:
        The writes, and the names of optional slots that the state lacks.

    Raises:
        CheckpointMismatchError: The optimizer cannot step with the state.
    """
    class_name = type(optimizer).__name__
    groups, saved_groups = optimizer.param_groups, deepcopy(saved_state["param_groups"])
    sizes, saved_sizes = state_mismatch.sizes(groups), state_mismatch.sizes(saved_groups)
    if sizes != saved_sizes:
        raise mismatch([f"groups have {saved_sizes} parameters, those here {sizes}"], class_name)
    problems, calls = list[str](), list[Call]()
    pairs: list[tuple[Item, Any]] = []
    names, optional = optimizer._state_names(), optimizer.step_options.begins
    saved_states: dict[Tensor, Any] = {}
    for index, (group, saved_group) in enumerate(zip(groups, saved_groups, strict=True)):
        if optimizer.step_options.kinds.sums:
            saved_group.setdefault(COUNT, 0)
        problems += optimizer._unfit_options(saved_group, index)
        for param, key, label in state_mismatch.matched(group, saved_group, problems):
            entries, saved_entries = optimizer.state[param], saved_state["state"].get(key, {})
            calls += plan_entries(
                entries, saved_entries, label, problems, pairs, param, names, optional
            )
            saved_states[param] = saved_entries
        retained = {key: group[key] for key in ("params", "param_names") if key in group}
        calls.append(partial(group.update, {**saved_group, **retained}))
    if problems:
        raise mismatch(problems, class_name)
    for saved_group in saved_groups:
        hypers_of(saved_group, optimizer.rule)  # Raises for invalid numbers before any write.
    keys = keys_in(saved_state)
    users = {key: entry for key, entry in saved_state["state"].items() if key not in keys}
    calls.append(partial(optimizer.state.update, users))
    states = states_of(optimizer.state)
    # Parameters that are no longer in a group have no state.
    ungrouped = [param for param, _ in states if param not in saved_states]
    calls += [partial(optimizer.state.pop, param) for param in ungrouped]
    missing = _find_missing_entries(states, saved_states, optional)
    calls += [partial(entries.pop, name) for name, entries in missing]
    removed_ids = {id(entries[name]) for name, entries in missing}
    calls += optimizer.step_cache.operands.reading(optimizer, removed_ids)
    param_states = parameter_states(saved_state)
    is_new = all(state_mismatch.is_before_steps(entries) for _, entries in param_states)
    return Loading(pairs, calls, class_name), [] if is_new else [name for name, _ in missing]


def _find_missing_entries(
    states: Iterable[tuple[Tensor, dict[str, object]]],
    saved_states: Mapping[Tensor, Mapping[str, object]],
    optional: Collection[str],
) -> list[tuple[str, dict[str, object]]]:
    """Return (name, current state) of each optional entry that the saved state lacks.

    Args:
        states: (parameter, current state) pairs.
        saved_states: {parameter: saved state}. Parameters without a saved state are skipped.
        optional: The names of optional entries.
    """
    return [
        (name, entries)
        for param, entries in states
        if param in saved_states
        for name in optional
        if name in entries and saved_states[param].get(name) is None
    ]


def plan_entries(
    entries: dict[str, Any],
    saved_entries: Mapping[str, Any],
    label: Any,
    problems: list[str],
    pairs: list[tuple[Item, Any]],
    param: Tensor,
    names: Collection[str] | None = None,
    optional: Collection[str] = (),
) -> list[Call]:
    """Plan the load of one parameter's state; return callables that set items of `entries`.

    Tensors that both states have are added to `pairs` instead. Return [] if the saved state does
    not fit.

    Args:
        entries: The current state of the parameter.
        saved_entries: The state to load.
        label: The name of the parameter, for messages.
        problems: A list to which reasons are added if the saved state does not fit.
        pairs: A list to which (existing tensor, saved tensor) pairs are added.
        names: Optional. Keys that the optimizer owns. All other keys belong to the user.
        optional: Keys that `saved_entries` may lack.
    """
    specs = _entry_specs(entries, saved_entries, param, names, optional)
    allowed = () if names is None else entries
    mismatches = state_mismatch.state_mismatches(saved_entries, specs, label, allowed)
    problems += mismatches
    if mismatches:
        return []
    calls: list[Call] = []
    if SUM in entries and saved_entries.get(SUM) is None:
        calls.append(partial(entries.__setitem__, SUM, 0))
    for name, value in saved_entries.items():
        if name not in specs:
            calls.append(partial(entries.__setitem__, name, deepcopy(value)))
        elif name == SUM and value is not None:
            grad_sum = value.detach().to(param.device, copy=True)
            calls.append(partial(entries.__setitem__, name, grad_sum))
        elif value is not None and name not in entries:
            calls.append(partial(entries.__setitem__, name, value.detach().clone()))
        elif value is not None:
            pairs.append((make_entry(f"{label}/{name}", entries[name]), value))
    return calls


def _entry_specs(
    entries: Mapping[str, Any],
    saved_entries: Any,
    param: Tensor,
    names: Collection[str] | None,
    optional: Collection[str],
) -> dict[str, StateEntrySpec]:
    """Return {key: requirements of the saved entry}; arguments as for `plan_entries`."""
    has_master = not isinstance(saved_entries, Mapping) or MASTER in saved_entries
    widens = MASTER in entries and not has_master
    specs = {
        name: StateEntrySpec(value, _list_dtypes(value, widens), is_optional=name in optional)
        for name, value in entries.items()
        if name not in (SUM, ENCODED_SHAPE) and (names is None or name in names)
    }
    absent = [name for name in optional if name not in entries]
    specs |= {name: StateEntrySpec(param, is_optional=True) for name in absent}
    return {**specs, SUM: sum_spec(param)}


def _list_dtypes(tensor: Tensor, widens: bool) -> list[torch.dtype]:
    """Return the dtypes that a saved tensor may have: the dtype of `tensor`, then narrower dtypes.

    16-bit dtypes are included for float32 scalars, and for all float32 tensors if `widens` is True.
    """
    # Earlier releases stored scalars beside masters in 16 bits, and some others in float32.
    is_number = not tensor.dim()
    is_wider = tensor.dtype == torch.float32 and (widens or is_number)
    narrower = (torch.float32,) if tensor.dtype == torch.float64 and is_number else ()
    return [tensor.dtype, *(REDUCED if is_wider else narrower)]
