"""Setting the state of an optimizer whose state is made with it: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from thalweg.core.section import Call, run
from thalweg.core.state import mismatch
from thalweg.optim.columns import STEP
from thalweg.optim.folding import SUM
from thalweg.optim.groups import hypers_of
from thalweg.optim.sharded import cut, local
from thalweg.variable import dtype_name


def load_as_torch(optimizer: Any, state_dict: Mapping[str, Any], load: Callable[..., None]) -> None:
    """Have torch set a state, and give back the dtypes that it casts.

    Args:
        optimizer: A `DropIn`.
        state_dict: What it was given.
        load: Torch's `load_state_dict`.

    Raises:
        CheckpointMismatchError: A state lacks what the optimizer's options need.
    """
    seen: list[Mapping[str, Any]] = []

    def look(_: Any, given: Mapping[str, Any]) -> Mapping[str, Any]:
        owners = _owners(optimizer, given)
        lacking = [
            f"'{key}/{name}' is missing"
            for key, own in given["state"].items()
            for name in (optimizer._around.keys(owners[key]) if key in owners else ())
            if name not in own and not is_before_steps(own)
        ]
        if lacking:
            what = f"{type(optimizer).__name__} with {optimizer._around.named()}"
            raise mismatch(lacking, what)
        seen.append(given)
        return given if kinds.device is None else _without_slots(given)

    kinds = optimizer._around.kinds
    handle = optimizer.register_load_state_dict_pre_hook(look)  # after all others
    try:
        load(state_dict)
    finally:
        handle.remove()
    for key, param in _owners(optimizer, seen[0]).items():
        for name, value in seen[0]["state"].get(key, {}).items():
            own = optimizer.state[param].get(name)
            if not isinstance(own, Tensor):
                continue
            there = kinds.home(name, param)
            is_moved = kinds.device is not None and own.device != there
            if is_moved or own.dtype != value.dtype or own.shape != value.shape:
                optimizer.state[param][name] = value.detach().to(there, copy=True)


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


def is_before_steps(own: Mapping[str, Any]) -> bool:
    """Whether a parameter with this state had no step yet, and so nothing that steps make."""
    return own.keys() <= {SUM} or (STEP in own and not own[STEP])


def _owners(optimizer: Any, given: Mapping[str, Any]) -> dict[Any, Tensor]:
    """Parameters by the keys of their saved states; by order, as torch does."""
    keys = [key for group in given["param_groups"] for key in group["params"]]
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return dict(zip(keys, params, strict=False))


def load(optimizer: Any, state_dict: Mapping[str, Any]) -> None:
    """As `RuleOptimizer.load_state_dict`."""
    state_dict = dict(state_dict)
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        changed = hook(optimizer, state_dict)
        state_dict = state_dict if changed is None else changed
    groups, saved = optimizer.param_groups, deepcopy(state_dict["param_groups"])
    sizes, theirs = ([len(group["params"]) for group in each] for each in (groups, saved))
    if sizes != theirs:
        sides = f"groups have {theirs} parameters, those here {sizes}"
        raise mismatch([sides], type(optimizer).__name__)
    found: list[str] = []
    calls: list[Call] = []
    for group, other in zip(groups, saved, strict=True):
        if other.get("rule") != group["rule"]:
            found.append(f"its rule is {other.get('rule')!r}, here {group['rule']!r}")
        for param, key, title in _matched(group, other, found):
            given = state_dict["state"].get(key, {})
            calls += setting(optimizer.state[param], given, title, found, param.device)
    if found:
        raise mismatch(found, type(optimizer).__name__)
    for other in saved:
        hypers_of(other, optimizer.rule)
    with torch.inference_mode(False), torch.no_grad():
        run(calls)
    for group, other in zip(groups, saved, strict=True):
        kept = {key: group[key] for key in ("params", "param_names") if key in group}
        group.update({**other, **kept})
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
) -> list[Call]:
    """What sets the state of one parameter, of this device; differences are added to those found.

    Sums of gradients are there, where the next gradients are added to them.
    """
    calls: list[Call] = []
    for name in chain(own, (name for name in given if name not in own)):
        what = f"'{title}/{name}'"
        if name == SUM:
            begun = name in given
            value = (given[name].detach().to(device, copy=True),) if begun else (None,)
            calls.append(partial(own.__setitem__ if begun else own.pop, name, *value))
        elif name not in given:
            found.append(f"{what} is missing")
        elif name not in own:
            found.append(f"{what} belongs to nothing here")
        elif not isinstance(given[name], Tensor):
            found.append(f"{what} is {given[name]!r} and no tensor")
        elif given[name].dtype != own[name].dtype or given[name].shape != own[name].shape:
            kinds = [f"{dtype_name(x.dtype)} {tuple(x.shape)}" for x in (given[name], own[name])]
            found.append(f"{what} is {kinds[0]}, here {kinds[1]}")
        else:
            value = cut(given[name].detach(), own[name])
            calls.append(partial(local(own[name]).copy_, value))
    return calls
