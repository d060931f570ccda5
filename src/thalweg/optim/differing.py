"""What does not fit in a state that an optimizer is given, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor

from thalweg.core.state import flaw, mismatch, shown
from thalweg.core.state.entries import is_cut
from thalweg.optim.averaging import EMA
from thalweg.optim.columns import STEP
from thalweg.optim.folding import SUM
from thalweg.optim.groups import PAIRS, Group
from thalweg.optim.narrow import MASTER
from thalweg.optim.sharded import is_on_mesh
from thalweg.variable import dtype_name


def check_form(given: Mapping[str, Any], what: str) -> None:
    """Refuse what is no state of an optimizer of torch's kind.

    Raises:
        CheckpointMismatchError: Says what is missing, or is something else.
    """
    found = [f"{name!r} is missing" for name in ("state", "param_groups") if name not in given]
    if not found and not isinstance(given["state"], Mapping):
        found.append(f"'state' is {_named(given['state'])}, no dict")
    if not found and not isinstance(given["param_groups"], list | tuple):
        found.append(f"'param_groups' is {_named(given['param_groups'])}, no list")
    if not found:
        for place, group in enumerate(cast("list[Any]", given["param_groups"])):
            if not isinstance(group, Mapping):
                found.append(f"group {place} is {_named(group)}, no dict")
            elif not isinstance(group.get("params"), list | tuple):
                found.append(f"'params' of group {place} is {_named(group.get('params'))}, no list")
    if found:
        raise mismatch(found, what)


def sizes(groups: Iterable[Mapping[str, Any]]) -> list[int]:
    """How many parameters groups have."""
    return [len(group["params"]) for group in groups]


def of_options(group: Group, wanted: Iterable[str], flags: Iterable[str], place: int) -> list[str]:
    """Why a step could not be taken with the options of a group.

    Args:
        group: The group.
        wanted: Those that a step reads.
        flags: Of these, those that are looked at as true or false.
        place: The number of the group.
    """
    found: list[str] = []
    for name in wanted:
        what = f"'{name}' of group {place}"
        if name not in group:
            found.append(f"{what} is missing")
        elif name in flags:
            continue
        elif name in PAIRS:
            if not _is_pair(group[name]):
                found.append(f"{what} is {_named(group[name])}, no pair of numbers")
        elif not is_number(group[name]):
            found.append(f"{what} is {_named(group[name])}, no number")
    return found


def of_tensors(
    own: Any, param: Tensor, slots: Sequence[str], numbers: Sequence[str], title: Any
) -> list[str]:
    """Why a step could not be taken with the state of a parameter.

    Args:
        own: The state.
        param: The parameter.
        slots: Tensors of the parameter's shape that have to be there.
        numbers: Numbers that have to be there.
        title: What the parameter is called.
    """
    if not isinstance(own, Mapping):
        return [f"the state of '{title}' is {_named(own)}, no dict"]
    found: list[str] = []
    for name in (*numbers, *slots):
        if name not in own:
            found.append(f"'{title}/{name}' is missing")
        elif name in numbers and not is_number(own[name]):
            found.append(f"'{title}/{name}' is {_named(own[name])}, no number")
        elif name == STEP and float(own[name]) < 0:
            found.append(f"'{title}/{name}' is {float(own[name])}, and steps count from 0")
    return found + of_shapes(own, param, slots, title)


def of_shapes(own: Mapping[str, Any], param: Tensor, names: Iterable[str], title: Any) -> list[str]:
    """Which of the tensors that a state may have are none, or not of the parameter's shape."""
    found: list[str] = []
    for name in names:
        value = own.get(name)
        if name not in own:
            continue
        what = f"'{title}/{name}'"
        if isinstance(value, Tensor) and value.shape == param.shape:
            if not is_on_mesh(value) and (problem := flaw(value)):
                found.append(f"{what} is {problem}")
        elif isinstance(value, Tensor):
            found.append(f"{what} is {kind_of(value)}, here {kind_of(param)}")
        else:
            found.append(f"{what} is {_named(value)} and no tensor")
    return found


def of_sum(value: Any, title: Any) -> str:
    """Why gradients cannot be added to a value, in words; "" if they can."""
    what = f"'{title}/{SUM}'"
    if not isinstance(value, Tensor):
        return f"{what} is {_named(value)} and no tensor"
    is_added = value.layout in (torch.strided, torch.sparse_coo) and not value.is_meta
    is_added = is_added and (value.is_floating_point() or value.is_complex())
    if not is_added:
        return f"{what} is {kind_of(value)}, {value.layout} on {value.device}"
    rows = value.layout == torch.sparse_coo
    parts = [value._values(), value._indices()] if rows else [value]
    return f"{what} is {kind_of(value)} without its storage" if any(map(is_cut, parts)) else ""


def is_before_steps(own: Mapping[str, Any]) -> bool:
    """Whether a parameter with this state had no step yet, and so nothing that steps make."""
    if own.keys() <= {SUM}:
        return True
    step = own.get(STEP)
    return step is not None and is_number(step) and not step


def begun_anew(title: str, names: Iterable[str]) -> str:
    """What is said of that which a state does not have, because it is an option's.

    Args:
        title: The optimizer and the options.
        names: What there is none of.
    """
    lacking = [name for name in (EMA, MASTER) if name in set(names)]
    kept = " and ".join(map(repr, lacking))
    begin = "begins" if len(lacking) == 1 else "begin"
    return (
        f"{title}: the state that was loaded has no {kept}, which {begin} at the parameters, in the"
        " next step."
    )


def kind_of(tensor: Tensor) -> str:
    """A tensor's dtype and shape."""
    return f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"


def is_number(value: Any) -> bool:
    """Whether a value is a number, or a tensor of one."""
    if isinstance(value, Tensor):
        is_none = value.is_complex() or value.dtype == torch.bool
        is_plain = value.layout == torch.strided and not value.is_meta and not is_none
        return is_plain and value.numel() == 1 and not is_cut(value)
    if not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_pair(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    items = cast("list[Any]", value)
    return len(items) == 2 and all(map(is_number, items))


def _named(value: Any) -> str:
    if not isinstance(value, Tensor):
        return shown(value)
    is_gone = value.layout == torch.strided and is_cut(value)
    return f"{kind_of(value)} without its storage" if is_gone else kind_of(value)
