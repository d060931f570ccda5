"""Descriptions of the differences between a loaded state and an optimizer."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._core.dtensor import is_on_mesh
from thalweg._core.options.accumulation import COUNT, SUM, is_count
from thalweg._core.param_groups import Group
from thalweg._core.sparse_gradients import check_inside
from thalweg._core.state import differences, flaw, mismatch, shown
from thalweg._core.state.entries import is_cut
from thalweg.errors import InvalidArgumentError
from thalweg.optim.group_options import HOW, PAIRS
from thalweg.optim.param_scalars import STEP
from thalweg.variable import dtype_name

REAL_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_MOST_STEPS = 2.0**63


class StateEntrySpec(NamedTuple):
    """Requirements of a value in the state of a parameter.

    Attributes:
        like: A tensor of the required shape; None requires a number, as a tensor or not.
        dtypes: Optional. The dtypes allowed; by default all of the kind of `like`: real, complex,
            or else that dtype alone.
        has_rows: Whether the value may be sparse.
        is_optional: Whether the value may be missing, or None.
        is_count: Whether the value is a number of steps.
        name: The name of the value in messages of `state_mismatches`.
    """

    like: Tensor | None = None
    dtypes: Collection[torch.dtype] = ()
    has_rows: bool = False
    is_optional: bool = False
    is_count: bool = False
    name: str = ""

    def difference(self, given: object) -> str | None:
        """Return a description of how a value differs from the requirements, or None if it meets
        them.
        """
        if given is None and self.is_optional and not self.is_count:
            return None
        what, count = f"'{self.name}'", cast("Any", given)
        problem = _why_unlike(given, self, what)
        if problem is None and self.is_count and not 0 <= (count := float(count)) < _MOST_STEPS:
            problem = f"{what} is {count}, and steps count from 0"
        return problem


def check_form(given: Mapping[str, object], what: str) -> None:
    """Refuse what is no state of an optimizer of torch's kind.

    Raises:
        CheckpointMismatchError: Says what is missing, or is something else.
    """
    found = [f"{name!r} is missing" for name in ("state", "param_groups") if name not in given]
    if not found and not isinstance(given["state"], Mapping):
        found.append(f"'state' is {told(given['state'])}, no dict")
    if not found and not isinstance(given["param_groups"], list | tuple):
        found.append(f"'param_groups' is {told(given['param_groups'])}, no list")
    if not found:
        for place, group in enumerate(cast("list[Any]", given["param_groups"])):
            found += _of_group(group, place)
    if found:
        raise mismatch(found, what)


def _of_group(group: object, place: int) -> list[str]:
    """Return descriptions of the reasons why a group's parameters cannot be found."""
    if not isinstance(group, Mapping):
        return [f"group {place} is {told(group)}, no dict"]
    for name in ("params", "param_names"):
        own = group.get(name)
        what = f"'{name}' of group {place}"
        if not isinstance(own, list | tuple):
            if name in group or name == "params":
                return [f"{what} is {told(own)}, no list"]
            continue
        own = cast("list[Any]", own)
        if strange := [each for each in own if not _is_key(each)]:
            return [f"{what} has {told(strange[0])}, which names no parameter"]
    return []


def _is_key(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def members_of(group: Group, saved: Mapping[str, Any]) -> list[tuple[Tensor, Any, Any]]:
    """Parameters with the keys of their saved states, by their order, and what they are called."""
    named = (group.get("param_names"), saved.get("param_names"))
    titles = [names for names in named if names and len(names) == len(saved["params"])]
    keys = saved["params"]
    return list(zip(group["params"], keys, (*titles, keys)[0], strict=True))


def keys_in(given: Mapping[str, Any]) -> set[Any]:
    """Return the keys of parameters in a state dict; other entries belong to the user."""
    return {key for group in given["param_groups"] for key in group["params"]}


def parameter_states(given: Mapping[str, Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return the states of parameters that are in a state, with their keys."""
    own, keys = given["state"], keys_in(given)
    return [(key, own[key]) for key in own if key in keys and isinstance(own[key], Mapping)]


def matched(
    group: dict[str, Any], saved: dict[str, Any], found: list[str]
) -> list[tuple[Tensor, Any, Any]]:
    """Parameters with the keys of their saved states: by name where both have names."""
    own, theirs = group.get("param_names"), saved.get("param_names")
    if not own or not theirs or len(theirs) != len(saved["params"]):
        return members_of(group, saved)
    keys = dict(zip(theirs, saved["params"], strict=True))
    found += unmatched(own, theirs)
    pairs = zip(group["params"], own, strict=True)
    return [(param, keys[name], name) for param, name in pairs if name in keys]


def unmatched(names: Sequence[object], given: Sequence[object], where: str = "") -> list[str]:
    """Names of parameters that one side alone has."""
    found = [f"{name!r}{where} is missing" for name in names if name not in given]
    strange = (name for name in given if name not in names)
    return found + [f"{name!r}{where} belongs to nothing here" for name in strange]


def sizes(groups: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the number of parameters of each group."""
    return [len(group["params"]) for group in groups]


def of_options(
    group: Group, wanted: Iterable[str], flags: Iterable[str], place: int, betas: int = 2
) -> list[str]:
    """Return descriptions of the options of a group with which a step cannot be taken.

    Args:
        group: The group.
        wanted: The options that a step reads.
        flags: The options that are read as true or false.
        place: The index of the group.
        betas: The number of betas that the rule has.
    """
    found: list[str] = []
    for name in wanted:
        what = f"'{name}' of group {place}"
        if name not in group:
            found.append(f"{what} is missing")
        elif name in flags or name == "rule":  # which is compared apart
            continue
        elif name in PAIRS:
            count = betas if name == "betas" else 2
            if not are_numbers(group[name], count):
                kind = "no pair of numbers" if count == 2 else "not three numbers"
                found.append(f"{what} is {told(group[name])}, {kind}")
        elif not is_number(group[name]):
            found.append(f"{what} is {told(group[name])}, no number")
    for name in dict.fromkeys((*flags, *HOW)):
        if name in group and (group[name] is not None or name not in HOW):
            found += _of_flag(group[name], f"'{name}' of group {place}")
    names, count = group.get("param_names"), len(group["params"])
    if names is not None and len(names) != count:
        found.append(
            f"'param_names' of group {place} has {len(names)} names for {count} parameters"
        )
    if COUNT in group and not is_count(count := group[COUNT]):
        found.append(f"'{COUNT}' of group {place} is {told(count)}, no number of gradients")
    return found


def is_flag(value: object) -> bool:
    """Return whether a value is true or false, or a number."""
    if isinstance(value, Tensor) and value.dtype == torch.bool:
        return value.numel() == 1 and flaw(value) is None
    return isinstance(value, np.bool_) or is_number(value)


def _of_flag(value: object, what: str) -> list[str]:
    if is_flag(value) or (isinstance(value, np.ndarray) and is_flag(value[()])):
        return []
    return [f"{what} is {told(value)}, neither true nor false"]


def of_strange(group: Group, strange: Mapping[str, str], place: int) -> list[str]:
    """Return descriptions of options that a group may not have, each with the reason.

    Args:
        group: The group.
        strange: The reasons, by the name of the option.
        place: The index of the group.
    """
    return [f"'{n}' of group {place} is {told(group[n])}, {why}" for n, why in strange.items()]


def state_mismatches(
    own: object,
    wanted: Mapping[str, StateEntrySpec],
    title: object,
    others: Container[object] | None = None,
) -> list[str]:
    """Return descriptions of the entries of a parameter's state with which a step cannot be taken.

    Args:
        own: The state.
        wanted: The requirements of its entries, by their keys.
        title: The name of the parameter.
        others: The other keys that the state may have; any if None.
    """
    if not isinstance(own, Mapping):
        return [f"the state of '{title}' is {told(own)}, no dict"]
    entries = [
        want._replace(name=f"{title}/{name}", is_count=name == STEP)
        for name, want in wanted.items()
        if name in own or not want.is_optional
    ]
    asked = (n for n in own if n in wanted or (others is not None and n not in others))
    return differences(entries, {f"{title}/{name}": own[name] for name in asked})


def sum_of(param: Tensor) -> StateEntrySpec:
    """Return the requirements of a sum of gradients of a parameter."""
    return StateEntrySpec(param, has_rows=True, is_optional=True)


def _alike(dtype: torch.dtype) -> Collection[torch.dtype]:
    """Return the dtypes from which values are converted to one without loss of their kind."""
    if dtype.is_complex:
        return _COMPLEX
    return REAL_DTYPES if dtype.is_floating_point else (dtype,)


def _why_unlike(value: object, want: StateEntrySpec, what: str) -> str | None:
    """Return why a value cannot be what is wanted, or None."""
    like = want.like
    if like is None:
        is_other = want.dtypes and isinstance(value, Tensor) and value.dtype not in want.dtypes
        if is_number(value):
            return f"{what} is {told(value)}, not a floating-point number" if is_other else None
        if isinstance(value, Tensor) and value.numel() != 1:
            return f"{what} is of shape {tuple(value.shape)}, not ()"
        return f"{what} is {told(value)}, no number"
    if not isinstance(value, Tensor):
        return f"{what} is {told(value)} and no tensor"
    dtypes = want.dtypes or _alike(like.dtype)
    if value.shape != like.shape or value.dtype not in dtypes:
        own = dtype_name(next(iter(dtypes)) if len(dtypes) == 1 else like.dtype)
        return f"{what} is {kind_of(value)}, here {own} {tuple(like.shape)}"
    if want.has_rows and value.layout == torch.sparse_coo and not value.is_meta:
        return _why_rows_unfit(value, what)
    problem = None if is_on_mesh(value) else flaw(value)
    return problem and f"{what} is {problem}"


def _why_rows_unfit(value: Tensor, what: str) -> str | None:
    parts = {"values": value._values(), "indices": value._indices()}
    found = [
        f"the {name} of {what} are {why}" for name, each in parts.items() if (why := flaw(each))
    ]
    if not found:
        try:
            check_inside(value, what)
        except InvalidArgumentError as error:
            found.append(str(error).rstrip("."))
    return "; ".join(found) or None


def is_before_steps(own: Mapping[str, object]) -> bool:
    """Return True if a parameter with this state had no step yet, and so has no entry that steps
    make.
    """
    if own.keys() <= {SUM}:
        return True
    step = own.get(STEP)
    return step is not None and is_number(step) and not step


def lacking_message(title: str, names: Iterable[str]) -> str:
    """Return the message about entries of options that a loaded state lacks.

    Args:
        title: The optimizer and the options.
        names: The names of the missing entries.
    """
    lacking = list(dict.fromkeys(names))
    kept = " and ".join(map(repr, lacking))
    begin = "begins" if len(lacking) == 1 else "begin"
    return (
        f"{title}: the state that was loaded has no {kept}, which {begin} at the parameters, in the"
        " next step."
    )


def kind_of(tensor: Tensor) -> str:
    """Return a tensor's dtype and shape."""
    return f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"


def is_number(value: object) -> bool:
    """Return True if a value is a real number, or a tensor or an array of one that is in memory."""
    if isinstance(value, Tensor):
        is_none = value.is_complex() or value.dtype == torch.bool
        is_there = is_on_mesh(value) or flaw(value) is None
        return is_there and not is_none and value.numel() == 1
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value.item()
    if not isinstance(value, Real):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def are_numbers(value: object, count: int) -> bool:
    """Return whether a value is so many numbers: a sequence, or an array of one dimension."""
    if isinstance(value, np.ndarray | Tensor):
        items: list[Any] = [*value] if value.ndim == 1 and _is_held(value) else []
    else:
        items = [*cast("list[Any]", value)] if isinstance(value, list | tuple) else []
    return len(items) == count and all(map(is_number, items))


def _is_held(value: object) -> bool:
    return not isinstance(value, Tensor) or flaw(value) is None


def told(value: object) -> str:
    if not isinstance(value, Tensor):
        return shown(value)
    return f"{kind_of(value)} without its storage" if is_cut(value) else kind_of(value)
