"""Setting the state of an optimizer: all of it, or nothing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from functools import partial
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor

from thalweg.core.section import Call, no_grad, run
from thalweg.core.state import flaw, mismatch
from thalweg.errors import CheckpointWarning, InvalidTypeError, warn
from thalweg.optim import differing
from thalweg.optim.averaging import EMA
from thalweg.optim.differing import kind_of
from thalweg.optim.folding import SUM
from thalweg.optim.groups import Group, hypers_of
from thalweg.optim.narrow import MASTER
from thalweg.optim.sharded import cut, is_on_mesh, local
from thalweg.variable import REDUCED

_HOOKS = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
_GAINED = (EMA, MASTER)  # what begins at the parameters where a state does not have it


def load_as_torch(
    optimizer: Any, state_dict: Mapping[str, Any], load: Callable[[Any, Any], None]
) -> None:
    """Set a state as torch does, in one section.

    Torch's loader replaces the state and the groups in several steps, in which it may fail or be
    interrupted. So it loads into a twin, over the same parameters; then the optimizer is given what
    the twin has.

    Args:
        optimizer: A `DropIn`.
        state_dict: What it was given.
        load: Torch's `load_state_dict`, of the class.

    Raises:
        CheckpointMismatchError: A step could not be taken with it.
        ValueError: Torch's own, where groups have other numbers of parameters.
    """
    given = _after_hooks(optimizer, state_dict)
    differing.check_form(given, type(optimizer).__name__)
    found: list[str] = []
    kinds, lacking = optimizer._around.kinds, list[tuple[Tensor, str]]()
    if differing.sizes(given["param_groups"]) == differing.sizes(optimizer.param_groups):
        for group, key, param, title in _members(optimizer, given["param_groups"], found):
            own = given["state"].get(key, {})
            found += optimizer._unfit_state(group, own, param, title)
            if not found and not differing.is_before_steps(own):
                names = optimizer._around.keys(param)
                lacking += [(param, name) for name in names if name not in own]
    if found:
        raise mismatch(found, _title(optimizer))
    staged = _twin(optimizer)
    try:
        load(staged, given if kinds.device is None else _without_slots(given))
    except (ValueError, TypeError, RuntimeError, MemoryError):
        raise
    except Exception as error:  # of a class of the user's, or of a state's own objects
        what = f"{type(error).__name__} in what torch does with it: {error}"
        raise mismatch([what], _title(optimizer)) from error
    if not optimizer._around.is_lossless:
        _give_back_dtypes(staged, given, kinds, optimizer._around.keeps_as_torch)
        for group in staged.param_groups:
            slots = optimizer._rule(group).element_slots
            for param in group["params"]:
                kinds.widen(staged.state.get(param, {}), slots, param)
    staged._own.blocks.gather(staged.state, staged._single)
    if lacking:
        warn(differing.begun_anew(_title(optimizer), [n for _, n in lacking]), CheckpointWarning)
    run(_handing_over(staged, optimizer))
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _after_hooks(optimizer: Any, state_dict: Any) -> dict[str, Any]:
    """A state as the hooks before a load leave it, which get a shallow copy."""
    if not isinstance(state_dict, Mapping):
        raise InvalidTypeError(f"state_dict must be a dict, not a {type(state_dict).__name__}.")
    given = dict(cast("Mapping[str, Any]", state_dict))
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = hook(optimizer, given)
        given = given if changed is None else changed
    return given


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


def _handing_over(staged: Any, optimizer: Any) -> list[Call]:
    """What makes all that was loaded into a twin the optimizer's, as functions in C."""
    own = vars(optimizer)
    apart = ("_own", "_around", "defaults", *_HOOKS)
    made = {
        name: value
        for name, value in vars(staged).items()
        if name not in apart and (name not in own or own[name] is not value)
    }
    staged._around = optimizer._around
    return [
        partial(optimizer.defaults.update, staged.defaults),
        partial(own.update, made),
        *optimizer._own.operands.reading(staged),
    ]


def _members(
    optimizer: Any, saved: list[Any], found: list[str]
) -> Iterator[tuple[Group | None, Any, Tensor, Any]]:
    """Each parameter with its group as torch completes it, or None where that cannot take steps,
    the key of its saved state, and what it is called; differences are added to those found.

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
        titles = other.get("param_names") or other["params"]
        if len(titles) != len(other["params"]):
            titles = other["params"]
        for param, key, title in zip(group["params"], other["params"], titles, strict=True):
            yield None if faults else group, key, param, title


def _give_back_dtypes(
    staged: Any, given: Mapping[str, Any], kinds: Any, keeps_as_torch: bool
) -> None:
    """Have tensors of a state be what they were before torch made them the parameter's dtype.

    Args:
        keeps_as_torch: Whether sums alone are other than torch has them.
    """
    keys = [key for group in given["param_groups"] for key in group["params"]]
    params = [param for group in staged.param_groups for param in group["params"]]
    for key, param in dict(zip(keys, params, strict=True)).items():
        for name, value in given["state"].get(key, {}).items():
            own = staged.state[param].get(name)
            both = isinstance(own, Tensor) and isinstance(value, Tensor)
            if (keeps_as_torch and name != SUM) or not both or not value.is_floating_point():
                continue
            there = kinds.home(name, param)
            is_moved = kinds.device is not None and own.device != there
            if is_moved or own.dtype != value.dtype or own.shape != value.shape:
                staged.state[param][name] = value.detach().to(there, copy=True)


def _without_slots(given: Mapping[str, Any]) -> dict[str, Any]:
    """A state of which torch sends nothing that is large to a parameter's device."""
    states = {
        key: {
            name: each.new_empty((0, 0)) if isinstance(each, Tensor) and each.dim() else each
            for name, each in own.items()
        }
        for key, own in given["state"].items()
    }
    return {**given, "state": states}


def load(optimizer: Any, state_dict: Mapping[str, Any]) -> None:
    """As `RuleOptimizer.load_state_dict`."""
    given = _after_hooks(optimizer, state_dict)
    what = type(optimizer).__name__
    differing.check_form(given, what)
    groups, saved = optimizer.param_groups, deepcopy(given["param_groups"])
    ours, theirs = differing.sizes(groups), differing.sizes(saved)
    if ours != theirs:
        raise mismatch([f"groups have {theirs} parameters, those here {ours}"], what)
    found: list[str] = []
    calls: list[Call] = []
    names, gained = optimizer._state_names(), list[tuple[Tensor, str]]()
    for place, (group, other) in enumerate(zip(groups, saved, strict=True)):
        found += optimizer._unfit_options(other, place)
        for param, key, title in _matched(group, other, found):
            own, theirs = optimizer.state[param], given["state"].get(key, {})
            calls += setting(own, theirs, title, found, param.device, names)
            gained += [(param, name) for name in _GAINED if name in own and name not in theirs]
        kept = {key: group[key] for key in ("params", "param_names") if key in group}
        calls.append(partial(group.update, {**other, **kept}))
    if found:
        raise mismatch(found, what)
    for other in saved:
        hypers_of(other, optimizer.rule)
    for param, name in gained:
        calls.append(partial(optimizer.state[param].pop, name))
    if gained and any(not differing.is_before_steps(own) for own in given["state"].values()):
        warn(differing.begun_anew(_title(optimizer), [n for _, n in gained]), CheckpointWarning)
    left = {id(optimizer.state[param][name]) for param, name in gained}
    calls += optimizer._own.operands.reading(optimizer, left)
    with torch.inference_mode(False), no_grad():
        run(calls)
    for hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        hook(optimizer)


def _matched(
    group: dict[str, Any], saved: dict[str, Any], found: list[str]
) -> list[tuple[Tensor, Any, str]]:
    """Parameters with the keys of their saved states: by name where both have names."""
    own, theirs = group.get("param_names"), saved.get("param_names")
    if own is None or theirs is None:
        titles = own or [f"parameter {index}" for index in range(len(group["params"]))]
        return list(zip(group["params"], saved["params"], titles, strict=True))
    keys = dict(zip(theirs, saved["params"], strict=True))
    found += [f"{name!r} is missing" for name in own if name not in keys]
    found += [f"{name!r} belongs to nothing here" for name in theirs if name not in own]
    pairs = zip(group["params"], own, strict=True)
    return [(param, keys[name], name) for param, name in pairs if name in keys]


def setting(
    own: dict[str, Any],
    given: Mapping[str, Any],
    title: str,
    found: list[str],
    device: torch.device,
    names: Collection[str] | None = None,
) -> list[Call]:
    """What sets the state of one parameter; differences are added to those found.

    Sums of gradients are there, where the next gradients are added to them.

    Args:
        own: What there is.
        given: The state.
        title: What the parameter is called.
        found: The differences.
        device: That of the parameter.
        names: Optional. What the optimizer keeps; all else in `own` is the user's, and is replaced
            where the state has it. An average or a master that is missing is none of the
            differences then.
    """
    if not isinstance(given, Mapping):
        found.append(f"the state of '{title}' is no dict")
        return []
    calls: list[Call] = []
    widens = MASTER in own and MASTER not in given
    for name in chain(own, (name for name in given if name not in own)):
        what = f"'{title}/{name}'"
        value = given.get(name)
        if name == SUM:
            begun = name in given
            if begun and (problem := differing.of_sum(value, title)):
                found.append(problem)
                continue
            made = (given[name].detach().to(device, copy=True),) if begun else (None,)
            calls.append(partial(own.__setitem__ if begun else own.pop, name, *made))
        elif names is not None and name in own and name not in names:
            if name in given:
                calls.append(partial(own.__setitem__, name, deepcopy(value)))
        elif name not in given:
            if names is None or name not in _GAINED:
                found.append(f"{what} is missing")
        elif name not in own:
            if names is None or name not in _GAINED or name not in names:
                found.append(f"{what} belongs to nothing here")
            elif not isinstance(value, Tensor) or (problem := flaw(value)):
                found.append(f"{what} is {value!r} and no tensor")
            else:
                calls.append(partial(own.__setitem__, name, given[name].detach().clone()))
        elif not isinstance(value, Tensor):
            found.append(f"{what} is {value!r} and no tensor")
        elif not _is_alike(value, own[name], widens):
            found.append(f"{what} is {kind_of(value)}, here {kind_of(own[name])}")
        elif not is_on_mesh(value) and (problem := flaw(value)):
            found.append(f"{what} is {problem}")
        else:
            calls.append(partial(local(own[name]).copy_, cut(value.detach(), own[name])))
    return calls


def _is_alike(value: Tensor, own: Tensor, widens: bool) -> bool:
    # Numbers beside masters were of 16 bits once.
    is_wider = (widens or not value.dim()) and value.dtype in REDUCED and own.dtype == torch.float32
    return (value.dtype == own.dtype or is_wider) and value.shape == own.shape
