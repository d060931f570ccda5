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
from thalweg.optim.group_options import PAIRS, STEP_FLAGS
from thalweg.optim.param_scalars import STEP
from thalweg.variable import dtype_name

REAL_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
_MOST_STEPS = 2.0**63


class StateEntrySpec(NamedTuple):
    """Requirements of a value in the state of a parameter.

    Attributes:
        like: A tensor of the required shape; None requires a number, as a tensor or not.
        dtypes: Optional. The allowed dtypes. By default all real dtypes for a real `like`, all
            complex dtypes for a complex one, or else the dtype of `like`.
        has_rows: True if the value may be sparse.
        is_optional: True if the value may be missing, or None.
        is_count: True if the value is a number of steps.
        name: The name in messages of `state_mismatches`.
    """

    like: Tensor | None = None
    dtypes: Collection[torch.dtype] = ()
    has_rows: bool = False
    is_optional: bool = False
    is_count: bool = False
    name: str = ""

    def difference(self, candidate: object) -> str | None:
        """Return how a value differs from the requirements, or None if it meets them."""
        if candidate is None and self.is_optional and not self.is_count:
            return None
        label, count = f"'{self.name}'", cast("Any", candidate)
        problem = _describe_difference(candidate, self, label)
        if problem is None and self.is_count and not 0 <= (count := float(count)) < _MOST_STEPS:
            problem = f"{label} is {count}, and steps count from 0"
        return problem


def check_form(saved_state: Mapping[str, object], label: str) -> None:
    """Raise unless a dict has "state", a dict, and "param_groups", a list of valid groups.

    Raises:
        CheckpointMismatchError: A part is missing or has another type.
    """
    missing = [name for name in ("state", "param_groups") if name not in saved_state]
    problems = [f"{name!r} is missing" for name in missing]
    if not problems and not isinstance(saved_state["state"], Mapping):
        problems.append(f"'state' is {told(saved_state['state'])}, no dict")
    if not problems and not isinstance(saved_state["param_groups"], list | tuple):
        problems.append(f"'param_groups' is {told(saved_state['param_groups'])}, no list")
    if not problems:
        for index, group in enumerate(cast("list[Any]", saved_state["param_groups"])):
            problems += _group_flaws(group, index)
    if problems:
        raise mismatch(problems, label)


def _group_flaws(group: object, index: int) -> list[str]:
    """Return reasons why the parameters of a saved group cannot be matched; [] if none."""
    if not isinstance(group, Mapping):
        return [f"group {index} is {told(group)}, no dict"]
    for name in ("params", "param_names"):
        names = cast("Mapping[str, Any]", group).get(name)
        label = f"'{name}' of group {index}"
        if not isinstance(names, list | tuple):
            if name in group or name == "params":
                return [f"{label} is {told(names)}, no list"]
            continue
        names = cast("list[Any]", names)
        if invalid_keys := [key for key in names if not _is_key(key)]:
            return [f"{label} has {told(invalid_keys[0])}, which names no parameter"]
    return []


def _is_key(key: object) -> bool:
    """Return True for hashable objects."""
    try:
        hash(key)
    except TypeError:
        return False
    return True


def members_of(group: Group, saved_group: Mapping[str, Any]) -> list[tuple[Tensor, Any, Any]]:
    """Return (parameter, key of the saved state, title) of a group, matched by order."""
    name_lists = (group.get("param_names"), saved_group.get("param_names"))
    labels = [names for names in name_lists if names and len(names) == len(saved_group["params"])]
    keys = saved_group["params"]
    # Titles are the names in the optimizer, else the saved names, else the keys.
    return list(zip(group["params"], keys, (*labels, keys)[0], strict=True))


def keys_in(saved_state: Mapping[str, Any]) -> set[Any]:
    """Return the keys of parameters in a state dict; other entries belong to the user."""
    return {key for group in saved_state["param_groups"] for key in group["params"]}


def parameter_states(saved_state: Mapping[str, Any]) -> list[tuple[Any, Mapping[str, Any]]]:
    """Return (key, state) of each parameter in a state dict."""
    states, keys = saved_state["state"], keys_in(saved_state)
    return [(k, x) for k, x in states.items() if k in keys and isinstance(x, Mapping)]


def matched(
    group: dict[str, Any], saved_group: dict[str, Any], problems: list[str]
) -> list[tuple[Tensor, Any, Any]]:
    """Return (parameter, saved key, title) of each parameter of a group.

    Match by name if both groups have names, else by order. Add messages to `problems` about names
    that only one group has.
    """
    names, saved_names = group.get("param_names"), saved_group.get("param_names")
    if not names or not saved_names or len(saved_names) != len(saved_group["params"]):
        return members_of(group, saved_group)
    keys = dict(zip(saved_names, saved_group["params"], strict=True))
    problems += unmatched(names, saved_names)
    pairs = zip(group["params"], names, strict=True)
    return [(param, keys[name], name) for param, name in pairs if name in keys]


def members_here(optimizer: Any, group: Group, saved_group: Group) -> list[tuple[Tensor, Any, Any]]:
    """Return (parameter, key of the saved state, title), matched as the optimizer does."""
    if hasattr(optimizer, "rule"):
        return matched(group, saved_group, [])
    return members_of(group, saved_group)


def unmatched(
    names: Sequence[object], saved_names: Sequence[object], suffix: str = ""
) -> list[str]:
    """Return descriptions of names that only one side has."""
    problems = [f"{name!r}{suffix} is missing" for name in names if name not in saved_names]
    unexpected = (name for name in saved_names if name not in names)
    return problems + [f"{name!r}{suffix} belongs to nothing here" for name in unexpected]


def sizes(groups: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the number of parameters of each group."""
    return [len(group["params"]) for group in groups]


def of_options(
    group: Group, option_names: Iterable[str], flags: Iterable[str], index: int, beta_count: int
) -> list[str]:
    """Return messages about options with which no step of a group is possible; [] if none.

    Args:
        option_names: The options that a step reads.
        flags: The options that must be true or false.
        index: The index of the group.
        beta_count: The number of betas that the rule has.
    """
    problems: list[str] = []
    for name in option_names:
        label = f"'{name}' of group {index}"
        if name not in group:
            problems.append(f"{label} is missing")
        # Flags are checked below, and the rule by the optimizer.
        elif name in flags or name == "rule":
            continue
        elif name in PAIRS:
            count = beta_count if name == "betas" else 2
            if not are_numbers(group[name], count):
                kind = "no pair of numbers" if count == 2 else "not three numbers"
                problems.append(f"{label} is {told(group[name])}, {kind}")
        elif not is_number(group[name]):
            problems.append(f"{label} is {told(group[name])}, no number")
    for name in dict.fromkeys((*flags, *STEP_FLAGS)):
        if name in group and (group[name] is not None or name not in STEP_FLAGS):
            problems += _flag_flaws(group[name], f"'{name}' of group {index}")
    names, count = group.get("param_names"), len(group["params"])
    if names is not None and len(names) != count:
        problems.append(
            f"'param_names' of group {index} has {len(names)} names for {count} parameters"
        )
    if COUNT in group and not is_count(count := group[COUNT]):
        problems.append(f"'{COUNT}' of group {index} is {told(count)}, no number of gradients")
    return problems


def is_flag(option: object) -> bool:
    """Return True if a value is true or false, or a number."""
    if isinstance(option, Tensor) and option.dtype == torch.bool:
        return option.numel() == 1 and flaw(option) is None
    return isinstance(option, np.bool_) or is_number(option)


def _flag_flaws(option: object, label: str) -> list[str]:
    """Return a description of an option that is neither true nor false, in a list; else []."""
    if is_flag(option) or (isinstance(option, np.ndarray) and is_flag(option[()])):  # pyright: ignore[reportUnknownArgumentType]
        return []
    return [f"{label} is {told(option)}, neither true nor false"]  # pyright: ignore[reportUnknownArgumentType]


def of_strange(group: Group, reasons: Mapping[str, str], index: int) -> list[str]:
    """Return descriptions of options that a group may not have; `reasons` has the reasons."""
    return [f"'{n}' of group {index} is {told(group[n])}, {text}" for n, text in reasons.items()]


def state_mismatches(
    entries: object,
    specs: Mapping[str, StateEntrySpec],
    label: object,
    allowed: Container[object] | None = None,
) -> list[str]:
    """Return messages why a step cannot use the state of a parameter; [] if it can.

    Args:
        specs: {key: requirements of the entry}.
        label: The name of the parameter in messages.
        allowed: Further keys that the state may have; None allows all.
    """
    if not isinstance(entries, Mapping):
        return [f"the state of '{label}' is {told(entries)}, no dict"]
    named_specs = [
        spec._replace(name=f"{label}/{name}", is_count=name == STEP)
        for name, spec in specs.items()
        if name in entries or not spec.is_optional
    ]
    checked_entries = {
        f"{label}/{name}": entry
        for name, entry in cast("Mapping[str, Any]", entries).items()
        if name in specs or (allowed is not None and name not in allowed)
    }
    return differences(named_specs, checked_entries)


def sum_spec(param: Tensor) -> StateEntrySpec:
    """Return the requirements of a sum of gradients of a parameter."""
    return StateEntrySpec(param, has_rows=True, is_optional=True)


def _convertible_dtypes(dtype: torch.dtype) -> Collection[torch.dtype]:
    """Return the dtypes from which values are converted to `dtype` without loss of kind."""
    if dtype.is_complex:
        return _COMPLEX
    return REAL_DTYPES if dtype.is_floating_point else (dtype,)


def _describe_difference(candidate: object, spec: StateEntrySpec, label: str) -> str | None:
    """Return why `candidate` does not meet the requirements in `spec`, or None if it does."""
    template = spec.like
    if template is None:
        if is_number(candidate):
            if spec.dtypes and isinstance(candidate, Tensor) and candidate.dtype not in spec.dtypes:
                return f"{label} is {told(candidate)}, not a floating-point number"
            return None
        if isinstance(candidate, Tensor) and candidate.numel() != 1:
            return f"{label} is of shape {tuple(candidate.shape)}, not ()"
        return f"{label} is {told(candidate)}, no number"
    if not isinstance(candidate, Tensor):
        return f"{label} is {told(candidate)} and no tensor"
    dtypes = spec.dtypes or _convertible_dtypes(template.dtype)
    if candidate.shape != template.shape or candidate.dtype not in dtypes:
        dtype_text = dtype_name(next(iter(dtypes)) if len(dtypes) == 1 else template.dtype)
        return f"{label} is {kind_of(candidate)}, here {dtype_text} {tuple(template.shape)}"
    if spec.has_rows and candidate.layout == torch.sparse_coo and not candidate.is_meta:
        return _why_rows_unfit(candidate, label)
    problem = None if is_on_mesh(candidate) else flaw(candidate)
    return problem and f"{label} is {problem}"


def _why_rows_unfit(tensor: Tensor, label: str) -> str | None:
    """Return why values or indices of a sparse tensor are invalid, or None if they are valid."""
    components = {"values": tensor._values(), "indices": tensor._indices()}
    flaws = {name: flaw(component) for name, component in components.items()}
    problems = [
        f"the {name} of {label} are {problem}" for name, problem in flaws.items() if problem
    ]
    if not problems:
        try:
            check_inside(tensor, label)
        except InvalidArgumentError as error:
            problems.append(str(error).rstrip("."))
    return "; ".join(problems) or None


def is_before_steps(entries: Mapping[str, object]) -> bool:
    """Return True if a state has the form of a state before the first step."""
    if entries.keys() <= {SUM}:
        return True
    step = entries.get(STEP)
    return step is not None and is_number(step) and not step


def lacking_message(label: str, names: Iterable[str]) -> str:
    """Return the warning about entries that a loaded state lacks; `label` names the optimizer."""
    lacking = list(dict.fromkeys(names))
    names_text = " and ".join(map(repr, lacking))
    begin = "begins" if len(lacking) == 1 else "begin"
    return (
        f"{label}: the state that was loaded has no {names_text}, which {begin} at the parameters,"
        " in the next step."
    )


def kind_of(tensor: Tensor) -> str:
    """Return the dtype and shape of a tensor as text."""
    return f"{dtype_name(tensor.dtype)} {tuple(tensor.shape)}"


def is_number(value: object) -> bool:
    """Return True for a real number, and for a tensor or array in memory with one real number."""
    if isinstance(value, Tensor):
        is_not_real = value.is_complex() or value.dtype == torch.bool
        is_in_memory = is_on_mesh(value) or flaw(value) is None
        return is_in_memory and not is_not_real and value.numel() == 1
    if isinstance(value, np.ndarray) and not value.ndim:
        value = cast("Any", value).item()
    if not isinstance(value, Real):
        return False
    try:
        float(value)
    # An int may exceed the range of float64.
    except OverflowError:
        return False
    return True


def are_numbers(value: object, count: int) -> bool:
    """Return True if a value is so many numbers: a sequence, or an array of one dimension."""
    if isinstance(value, np.ndarray | Tensor):
        # The elements of a tensor with freed storage cannot be read.
        is_freed = isinstance(value, Tensor) and flaw(value) is not None
        items: list[Any] = [*value] if value.ndim == 1 and not is_freed else []
    else:
        items = [*cast("list[Any]", value)] if isinstance(value, list | tuple) else []
    return len(items) == count and all(map(is_number, items))


def told(value: object) -> str:
    """Return a value as text for messages: a tensor by dtype and shape."""
    if not isinstance(value, Tensor):
        return shown(value)
    return f"{kind_of(value)} without its storage" if is_cut(value) else kind_of(value)
