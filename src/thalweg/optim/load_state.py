"""Setting the state of an optimizer: all of it, or nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.context_managers import host_allocations
from thalweg._base.locks import importing
from thalweg._core.atomic_section import Call
from thalweg._core.options.accumulation import COUNT, SUM
from thalweg._core.options.update_targets import MASTER
from thalweg._core.param_groups import Group, states_of
from thalweg._core.state import Item, Loading, mismatch, restore
from thalweg.errors import CheckpointWarning, InvalidTypeError, warn
from thalweg.optim import state_mismatch
from thalweg.optim.dtensor_params import entry_of
from thalweg.optim.group_options import hypers_of
from thalweg.optim.param_scalars import STEP, scalar_dtype
from thalweg.optim.slot_memory import separate_slots
from thalweg.optim.state_mismatch import StateEntrySpec, keys_in, parameter_states, sum_of
from thalweg.optim.step_options import KEPT
from thalweg.variable import REDUCED

_HOOKS = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")

# What sets a state, and which slots of options it has none of.
Plan = tuple[Loading, list[str]]


def load(
    optimizer: Any,
    state_dict: Mapping[str, object],
    plan: Callable[[Any, dict[str, Any]], Plan],
    convert: bool = False,
) -> None:
    """Set a state in one section, and call torch's hooks before and after it.

    Args:
        optimizer: A `FusedOptimizer`.
        state_dict: What it was given.
        plan: `as_torch` or `in_place`.
        convert: Whether slots that are kept otherwise than here are converted, or refused.

    Raises:
        CheckpointMismatchError: A step could not be taken with it.
        FailedPreconditionError: The call is in a block of `swapped()`.
    """
    optimizer._check_not_swapped(
        f"A state was loaded into {type(optimizer).__name__} inside of swapped(), which gives the"
        " parameters their former values when it ends. Load the state outside of the block."
    )
    given = _after_hooks(optimizer, state_dict)
    state_mismatch.check_form(given, type(optimizer).__name__)
    given, left = taken_apart(optimizer, given)
    given = fitted(optimizer, given, left, convert)
    loading, lacking = plan(optimizer, given)
    warn_of(optimizer, lacking, left)
    restore(loading)
    if optimizer._own.diagnosing is not None:
        optimizer._own.diagnosing.count_anew()
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def as_torch(
    optimizer: Any, given: dict[str, Any], load: Callable[[Any, dict[str, Any]], None]
) -> Plan:
    """Return the plan that loads a state as torch's own loader does.

    Torch's loader replaces the state and the groups in several steps, in which it may fail or be
    interrupted. So it loads into a twin, over the same parameters; then the optimizer takes over
    the state of the twin.

    Args:
        optimizer: A `FusedTorchOptimizer`.
        given: The state.
        load: Torch's `load_state_dict`, of the class.

    Raises:
        CheckpointMismatchError: A step cannot be taken with the state.
        ValueError: Torch's own, where groups have other numbers of parameters.
    """
    found: list[str] = []
    kinds, lacking = optimizer._around.kinds, list[str]()
    if state_mismatch.sizes(given["param_groups"]) == state_mismatch.sizes(optimizer.param_groups):
        for group, key, param, title in _members(optimizer, given["param_groups"], found):
            own = given["state"].get(key, {})
            found += optimizer._unfit_state(group, own, param, title)
            if not found and not state_mismatch.is_before_steps(own):
                lacking += [n for n in optimizer._around.keys(param) if own.get(n) is None]
    if found:
        raise mismatch(found, _title(optimizer))
    twin = _twin(optimizer)
    try:
        with host_allocations():
            load(twin, given if kinds.device is None else _without_slots(given))
    except (ValueError, TypeError, RuntimeError, MemoryError):
        raise
    except Exception as error:  # of a class of the user's, or of a state's own objects
        what = f"{type(error).__name__} while it was loaded: {error}"
        raise mismatch([what], _title(optimizer)) from error
    if not optimizer._around.is_lossless:
        _give_back_dtypes(twin, given, kinds, optimizer._around.keeps_as_torch)
        for group in twin.param_groups:
            for param in group["params"]:
                slots = optimizer._own_rule(group, param).slots
                kinds.widen_slots(twin.state.get(param, {}), slots, param)
    _give_back_numbers(twin, given)
    for group in twin.param_groups:
        for param in group["params"]:
            fit_slots(twin, group, param, twin.state.get(param, {}))
    for _, own in states_of(twin.state):
        own.update(dict(_resolved(own)))
    separate_slots(twin)
    twin._own.blocks.gather(twin.state, twin._single)
    return Loading(then=_handing_over(twin, optimizer)), lacking


def _after_hooks(optimizer: Any, state_dict: object) -> dict[str, object]:
    """A state as the hooks before a load leave it, which get a shallow copy."""
    if not isinstance(state_dict, Mapping):
        raise InvalidTypeError(f"state_dict must be a dict, not a {type(state_dict).__name__}.")
    given = dict(cast("Mapping[str, Any]", state_dict))
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = hook(optimizer, given)
        given = given if changed is None else changed
    return given


def taken_apart(optimizer: Any, given: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a state without what only options keep that an optimizer lacks, and what is to be said
    of it; see `left_behind.leave_behind`.
    """
    names = {name for _, own in parameter_states(given) for name in own}
    if not (SUM in names or names & KEPT.keys() or any(COUNT in x for x in given["param_groups"])):
        return given, []
    with importing:
        from thalweg.optim.dropped_state import drop_option_state
    return drop_option_state(optimizer, given)


def fitted(
    optimizer: Any,
    given: dict[str, Any],
    notes: list[str],
    convert: bool = False,
    values: Mapping[Tensor, Tensor] | None = None,
) -> dict[str, Any]:
    """Return a state with slots and random bits as an optimizer keeps them, and append warnings to
    notes; see `encoding.fit_storage` and `drawn_states.fit_rounding`."""
    groups = given["param_groups"]
    if any("round" in group or "seed" in group for group in groups):
        with importing:
            from thalweg.optim.rounding_state import fit_rounding
        given = fit_rounding(optimizer, given, convert)
        groups = given["param_groups"]
    if optimizer._encodes() or any(group.get("state_storage") is not None for group in groups):
        with importing:
            from thalweg.optim.quantized_state import fit_storage
        return fit_storage(optimizer, given, notes, convert, values or {})
    return given


def warn_of(optimizer: object, lacking: Collection[str], left: Collection[str]) -> None:
    """Say what begins anew, of which a state has nothing, and what is left behind of it."""
    title = _title(optimizer)
    said = [state_mismatch.lacking_message(title, lacking)] if lacking else []
    for each in (*said, *(f"{title}: {each}" for each in left)):
        warn(each, CheckpointWarning)


def _title(optimizer: Any) -> str:
    """A class with its options."""
    options = optimizer._around.named()
    return type(optimizer).__name__ + (f" with {options}" if options else "")


def _twin(optimizer: Any) -> Any:
    """An optimizer that has all that this one has, without hooks, and keeps nothing of its own."""
    cls: Any = type(optimizer)
    made = cls.__new__(cls)
    own = {**vars(optimizer), "_own": made._own, "_around": cls._around}
    own |= {name: OrderedDict() for name in _HOOKS}
    made._own.blocks = optimizer._own.blocks
    vars(made).update(own, defaults=dict(optimizer.defaults))
    return made


def _handing_over(twin: Any, optimizer: Any) -> list[Call]:
    """Return calls of C functions that move everything loaded into a twin to the optimizer."""
    # `_own` has the lock that is held, and what was listened to: its plans are made anew by
    # whoever finds another state.
    apart = ("_own", "_around", "defaults", *_HOOKS)
    made = {name: value for name, value in vars(twin).items() if name not in apart}
    twin._around = optimizer._around
    return [
        partial(optimizer.defaults.update, twin.defaults),
        partial(vars(optimizer).update, made),
        *optimizer._own.operands.reading(twin),
    ]


def _members(
    optimizer: Any, saved: list[Any], found: list[str]
) -> Iterator[tuple[Group, Any, Tensor, Any]]:
    """Each parameter with its group as torch completes it, or as it is here where a step could not
    be taken, the key of its saved state, and what it is called; differences are added to `found`.

    Parameters are found by their order, as torch does.
    """
    probe = _twin(optimizer)
    groups = [
        {**other, "params": group["params"]}
        for group, other in zip(optimizer.param_groups, saved, strict=True)
    ]
    optimizer._torch.__setstate__(probe, {"state": {}, "param_groups": groups})
    for place, (group, other) in enumerate(zip(groups, saved, strict=True)):
        faults = optimizer._unfit_options(group, place)
        found += faults
        for param, key, title in state_mismatch.members_of(group, other):
            yield optimizer.param_groups[place] if faults else group, key, param, title
    if not found:  # else a group may have no class
        found += optimizer._unfit_groups(groups)


def _give_back_dtypes(
    twin: Any, given: Mapping[str, Any], kinds: Any, keeps_as_torch: bool
) -> None:
    """Have tensors of a state be what they were before torch made them the parameter's dtype.

    The numbers that a rule of torch keeps beside `step` stay as torch has made them, where there is
    no master, which torch knows nothing of.

    Args:
        keeps_as_torch: Whether sums alone are other than torch has them.
    """
    keys = [key for group in given["param_groups"] for key in group["params"]]
    members = [(group, param) for group in twin.param_groups for param in group["params"]]
    for key, (group, param) in dict(zip(keys, members, strict=True)).items():
        numbers = {slot.name for slot in twin._own_rule(group, param).scalar_slots}
        for name, value in given["state"].get(key, {}).items():
            own = twin.state[param].get(name)
            both = isinstance(own, Tensor) and isinstance(value, Tensor)
            if (keeps_as_torch and name != SUM) or not both:
                continue
            home = kinds.home_of(name, param)
            is_moved = kinds.device is not None and own.device != home
            is_other = is_moved or own.shape != value.shape  # what torch was not given, say
            is_torchs = name in numbers and not kinds.has_master(param)
            if is_torchs and own.shape == value.shape:
                twin.state[param][name] = own.to(home)
            elif is_other or (_is_kept(value) and own.dtype != value.dtype):
                dtype = value.dtype if _is_kept(value) else own.dtype
                twin.state[param][name] = value.detach().to(home, dtype, copy=True)


def _is_kept(value: Tensor) -> bool:
    """Return whether a tensor of a state has its dtype for a reason: numbers, and bytes of
    codecs.
    """
    return value.is_floating_point() or value.dtype == torch.uint8


def _give_back_numbers(twin: Any, given: Mapping[str, Any]) -> None:
    """Have numbers of rules that torch lacks be as exact as they were: torch rounds them to the
    parameter's dtype."""
    keys = [key for group in given["param_groups"] for key in group["params"]]
    members = [(group, param) for group in twin.param_groups for param in group["params"]]
    for key, (group, param) in zip(keys, members, strict=True):
        own, saved = twin.state.get(param, {}), given["state"].get(key, {})
        if getattr(twin._kind_of(group)._torch, "_has_step", True):
            continue
        for slot in twin._own_rule(group, param).scalar_slots:
            value, now = saved.get(slot.name), own.get(slot.name)
            if isinstance(value, Tensor) and isinstance(now, Tensor) and value.dtype != now.dtype:
                own[slot.name] = value.detach().to(now.device, copy=True)


def fit_slots(optimizer: Any, group: Group, param: Tensor, own: dict[str, Any]) -> None:
    """Convert what steps make in one way alone: numbers to shape (), shaped slots to their dtype.

    Args:
        optimizer: A `FusedTorchOptimizer`.
        group: The group of the parameter.
        param: The parameter.
        own: Its state, which is changed.
    """
    rule, kinds = optimizer._own_rule(group, param), optimizer._around.kinds
    for name in (STEP, *(slot.name for slot in rule.numbers)):
        value = own.get(name)
        if isinstance(value, Tensor):
            own[name] = _as_number(value)
        elif value is not None and not optimizer._kind_of(group)._plain:
            own[name] = torch.tensor(float(value), dtype=scalar_dtype(), device="cpu")
    for slot in rule.shaped_slots:
        value = own.get(slot.name)
        if isinstance(value, Tensor) and value.is_floating_point():
            own[slot.name] = value.to(kinds.of(slot, param))


def _as_number(value: Tensor) -> Tensor:
    """Return a tensor of one number with shape () and a dtype that counts far enough."""
    value = value.reshape(()) if value.dim() else value
    if value.dtype.is_floating_point:
        return value if value.dtype in state_mismatch.REAL_DTYPES else value.to(scalar_dtype())
    return value.long()


def _resolved(own: Mapping[str, object]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of a state of which torch only notes how they were made: negated, of a parameter."""
    for name, each in own.items():
        if isinstance(each, Tensor) and (each.is_neg() or each.is_conj() or not each.is_leaf):
            yield name, each.detach().resolve_neg().resolve_conj()


def _without_slots(given: Mapping[str, Any]) -> dict[str, Any]:
    """A state of which torch sends nothing that is large to a parameter's device."""
    states = {
        key: {
            name: each.new_empty((0, 0)) if isinstance(each, Tensor) and each.dim() else each
            for name, each in own.items()
        }
        for key, own in parameter_states(given)
    }
    return {**given, "state": {**given["state"], **states}}


def in_place(optimizer: Any, given: dict[str, Any]) -> Plan:
    """Return the plan that writes a state to the tensors of a `RuleOptimizer`.

    Raises:
        CheckpointMismatchError: A step cannot be taken with the state.
    """
    what = type(optimizer).__name__
    groups, saved = optimizer.param_groups, deepcopy(given["param_groups"])
    ours, theirs = state_mismatch.sizes(groups), state_mismatch.sizes(saved)
    if ours != theirs:
        raise mismatch([f"groups have {theirs} parameters, those here {ours}"], what)
    found: list[str] = []
    pairs: list[tuple[Item, Any]] = []
    calls: list[Call] = []
    names, begins = optimizer._state_names(), optimizer._around.begins
    given_of: dict[Tensor, Any] = {}
    for place, (group, other) in enumerate(zip(groups, saved, strict=True)):
        found += optimizer._unfit_options(other, place)
        for param, key, title in state_mismatch.matched(group, other, found):
            own, theirs = optimizer.state[param], given["state"].get(key, {})
            calls += setting(own, theirs, title, found, pairs, param, names, begins)
            given_of[param] = theirs
        kept = {key: group[key] for key in ("params", "param_names") if key in group}
        calls.append(partial(group.update, {**other, **kept}))
    if found:
        raise mismatch(found, what)
    for other in saved:
        hypers_of(other, optimizer.rule)
    keys = keys_in(given)
    users = {key: each for key, each in given["state"].items() if key not in keys}
    calls.append(partial(optimizer.state.update, users))
    states = states_of(optimizer.state)
    # Of parameters that are in no group any more.
    calls += [partial(optimizer.state.pop, param) for param, _ in states if param not in given_of]
    lacks = _lacking(states, given_of, begins)
    calls += [partial(own.pop, name) for name, own in lacks]
    gone = {id(own[name]) for name, own in lacks}
    calls += optimizer._own.operands.reading(optimizer, gone)
    is_new = all(state_mismatch.is_before_steps(own) for _, own in parameter_states(given))
    return Loading(pairs, calls, what), [] if is_new else [name for name, _ in lacks]


def _lacking(
    states: Iterable[tuple[Tensor, dict[str, object]]],
    given_of: Mapping[Tensor, Mapping[str, object]],
    begins: Collection[str],
) -> list[tuple[str, dict[str, object]]]:
    """The entries that begin at the parameter and of which nothing was given, with their states."""
    return [
        (name, own)
        for param, own in states
        if param in given_of
        for name in begins
        if name in own and given_of[param].get(name) is None
    ]


def setting(
    own: dict[str, Any],
    given: Mapping[str, Any],
    title: Any,
    found: list[str],
    pairs: list[tuple[Item, Any]],
    param: Tensor,
    names: Collection[str] | None = None,
    begins: Collection[str] = (),
) -> list[Call]:
    """Return calls that set the state of one parameter, and append pairs and differences.

    Sums of gradients move to the device of the parameter, where the next gradients are added to
    them.

    Args:
        own: The state of the parameter, which the calls change.
        given: The state to load.
        title: The name of the parameter.
        found: Differences are appended here; if there are any, no calls are returned.
        pairs: Tensors that are written in place, with their new values, are appended here.
        param: The parameter.
        names: Optional. The keys of the optimizer's own entries; all others in `own` belong to the
            user, and are replaced if the state has them.
        begins: The keys that may be missing: their entries begin at the parameter.
    """
    wanted = _wanted(own, given, param, names, begins)
    problems = state_mismatch.state_mismatches(given, wanted, title, () if names is None else own)
    found += problems
    if problems:
        return []
    calls: list[Call] = [partial(own.pop, SUM, None)] if given.get(SUM) is None else []
    for name, value in given.items():
        if name not in wanted:
            calls.append(partial(own.__setitem__, name, deepcopy(value)))
        elif name == SUM and value is not None:
            made = value.detach().to(param.device, copy=True)
            calls.append(partial(own.__setitem__, name, made))
        elif value is not None and name not in own:
            calls.append(partial(own.__setitem__, name, value.detach().clone()))
        elif value is not None:
            pairs.append((entry_of(f"{title}/{name}", own[name]), value))
    return calls


def _wanted(
    own: Mapping[str, Any],
    given: Any,
    param: Tensor,
    names: Collection[str] | None,
    begins: Collection[str],
) -> dict[str, StateEntrySpec]:
    """Return the requirements of the entries that `setting` accepts, by their keys."""
    widens = MASTER in own and isinstance(given, Mapping) and MASTER not in given
    wanted = {
        name: StateEntrySpec(value, _dtypes(value, widens), is_optional=name in begins)
        for name, value in own.items()
        if names is None or name in names
    }
    wanted |= {name: StateEntrySpec(param, is_optional=True) for name in begins if name not in own}
    return {**wanted, SUM: sum_of(param)}


def _dtypes(own: Tensor, widens: bool) -> list[torch.dtype]:
    """Return the dtypes from which a state is converted to that of a tensor."""
    # Earlier releases kept numbers beside masters in 16 bits, and some others in float32.
    is_number = not own.dim()
    is_wider = own.dtype == torch.float32 and (widens or is_number)
    narrower = (torch.float32,) if own.dtype == torch.float64 and is_number else ()
    return [own.dtype, *(REDUCED if is_wider else narrower)]
