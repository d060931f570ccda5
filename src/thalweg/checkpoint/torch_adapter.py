"""Optimizers of torch's kind, those of `thalweg.optim` and `torch.optim`, by a file's names."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._base.context_managers import writable
from thalweg._base.locks import importing
from thalweg._core import state
from thalweg._core.groups import Group
from thalweg._core.options.masters import Masters
from thalweg._core.options.rounding import Rounding
from thalweg._core.options.split import SplitWeights
from thalweg._core.options.state_storage import StateCodec
from thalweg._core.options.update_targets import PLAIN
from thalweg._core.section import Call
from thalweg._core.state import Item, Names, keys_of
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.formula import Slot
from thalweg.optim import RuleOptimizer
from thalweg.optim.class_of import class_named, is_named
from thalweg.optim.differing import is_before_steps, is_number, unmatched
from thalweg.optim.fused_optimizer import FusedOptimizer
from thalweg.optim.groups import HOW, hypers_of
from thalweg.optim.loading import fit_slots, fitted, setting, taken_apart, warn_of

_MOST_FLOAT32 = torch.finfo(torch.float32).max
OF_TORCH = ("torch.optim.", "thalweg.optim.")
_CONVERTED = (StateCodec, SplitWeights, Rounding)
(_SPLIT,) = (each.name for each in SplitWeights.keywords())


class TorchOptimizerAdapter:
    """An optimizer of torch's kind with what `save` and `restore` ask of every optimizer.

    Numbers of its groups are part of its state, all other options are how it was made.

    Args:
        optimizer: The optimizer.

    Raises:
        InvalidTypeError: Its class has a `state_dict` of its own, which only that understands.
    """

    _needs_variables = False  # see `Described`

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer: Any = optimizer
        self._is_ours = isinstance(optimizer, FusedOptimizer)
        self._checker: Any = optimizer if self._is_ours else _checker_of(type(optimizer))
        self._has_rule = isinstance(optimizer, RuleOptimizer)
        self._converts = False
        self._values: Mapping[str, Any] = {}
        for name in ("state_dict", "load_state_dict"):
            if not getattr(type(optimizer), name).__module__.startswith(OF_TORCH):
                raise InvalidTypeError(
                    f"optimizer is a {type(optimizer).__name__}, whose class has a {name} of its"
                    ' own: save what that takes, as extra={"optimizer": optimizer.state_dict()}.'
                )

    @property
    def title(self) -> str:
        """The class by name; a drop-in has that of torch's class, whose state it takes."""
        cls: type[Any] = self.optimizer.__class__
        if not cls.__module__.startswith(OF_TORCH):
            return f"mine:{cls.__name__}"
        # Those that torch lacks stand before a class of ours.
        if (
            self._is_ours
            and not self._has_rule
            and not cls._torch.__module__.startswith("thalweg.")
        ):
            cls = cls._torch
        depth = 3 if cls.__module__.endswith(".tensorflow") else 2
        return ".".join([*cls.__module__.split(".")[:depth], cls.__name__])

    def convert_to_fit(self, values: Mapping[str, Any]) -> None:
        """Have a state that is kept otherwise than here be converted, where it would be refused.

        Args:
            values: Parameters by the names of a file, which are loaded with the state, as weights
                of three bytes are decoded beside them; those that are not there stay what they are.
        """
        self._converts, self._values = True, values

    def _locked(self) -> AbstractContextManager[Any]:
        if not self._is_ours:
            return nullcontext()
        own = self.optimizer._own
        if own.is_swapped or own.applied:
            where = "inside of swapped()" if own.is_swapped else "between backward() and step()"
            raise FailedPreconditionError(
                f"{type(self.optimizer).__name__} is {where}: a training is saved and restored"
                " between two steps. Save or restore it afterwards; until then, module= alone."
            )
        return own._lock

    def _arguments(self) -> dict[str, Any]:
        groups = self.optimizer.param_groups
        found: dict[str, Any] = {"the number of groups": len(groups)}
        for index, group in enumerate(groups):
            for name, value in group.items():
                if name not in ("params", "param_names", *HOW) and not _is_number(value):
                    found[f"{name} of group {index}"] = value
        if self._has_rule:
            found |= {"rule": self.optimizer.rule, "initial": self.optimizer._initial}
        if self._is_ours:
            found |= self.optimizer._around.on
        return found

    def _saved(self, names: Names = keys_of) -> dict[str, Any]:
        titles, groups = self._names_by_param(names), list[Group]()
        for group in self.optimizer.param_groups:
            options = {name: value for name, value in group.items() if name != "param_names"}
            groups.append({**options, "params": [titles[param] for param in group["params"]]})
        for owner in self.optimizer.state:
            if owner not in titles:
                raise InvalidTypeError(f"The optimizer's state has {owner!r}, no parameter of it.")
        own = {titles[param]: each for param, each in self.optimizer.state.items()}
        if self._is_ours and self.optimizer._encodes():
            with importing:
                from thalweg.optim.encoding import add_storage
            add_storage(self.optimizer, groups, own)
        states = {
            title: {name: _copy_value(value, f"'{title}/{name}'") for name, value in each.items()}
            for title, each in own.items()
        }
        return {"state": states, "groups": _map_tensors(groups, state.taken)}

    @contextmanager
    def _loading(
        self, given: Mapping[str, Any], variables: object = None, names: Names = keys_of
    ) -> Generator[state.Loading]:
        with self._locked(), writable():
            found: list[str] = []
            titles, left, lacking = self._names_by_param(names), list[str](), list[str]()
            own = {"state": given["state"], "param_groups": self._in_order(given["groups"], titles)}
            if self._is_ours:
                own, left = taken_apart(self.optimizer, own)
                values = {param: self._values.get(name, param) for param, name in titles.items()}
                own = fitted(self.optimizer, own, left, self._converts, values)
            parts = self._prepare_parts(own["state"], own["param_groups"], titles, found, lacking)
            if found:
                raise state.mismatch(found, type(self.optimizer).__name__)
            if self._is_ours:
                warn_of(self.optimizer, lacking, left)
            yield state.Loading(*parts, type(self.optimizer).__name__)

    def _names_by_param(self, names: Names) -> dict[Tensor, str]:
        params = [param for group in self.optimizer.param_groups for param in group["params"]]
        return dict(zip(params, names(params), strict=True))

    def _in_order(self, saved: list[Group], titles: Mapping[Tensor, str]) -> list[Group]:
        """The groups of a file with the parameters in the order that they have here."""
        made: list[Group] = []
        for place, other in enumerate(saved):
            groups = self.optimizer.param_groups[place : place + 1]
            names = [titles[param] for group in groups for param in group["params"]]
            is_same = sorted(names) == sorted(other["params"])
            made.append({**other, "params": names} if is_same else other)
        return made

    def _prepare_parts(
        self,
        given: Any,
        saved: list[Group],
        titles: Mapping[Tensor, str],
        found: list[str],
        lacking: list[str],
    ) -> tuple[list[tuple[Item, Any]], list[Call]]:
        """What sets state and groups; differences are added to those found, and what options keep
        and begins at the parameters to what is lacking."""
        groups: list[Group] = self.optimizer.param_groups
        pairs: list[tuple[Item, Any]] = []
        calls: list[Call] = []
        if len(groups) != len(saved):
            found.append(f"there are {len(groups)} groups of parameters, in the file {len(saved)}")
            return pairs, calls
        made: dict[Tensor, Any] = defaultdict(dict)
        merged, seen = list[Group](), set[object]()
        for index, (group, other) in enumerate(zip(groups, saved, strict=True)):
            names = [titles[param] for param in group["params"]]
            found += unmatched(names, other["params"], f" of group {index}")
            options = self._merge_options(group, other)
            faults = self._unfit_options(options, index)
            found += faults
            for param, name in zip(group["params"], names, strict=True):
                theirs = given.get(name, {})
                begins = self._beginning(param, theirs, name, found, lacking)
                if self._has_rule:
                    own = self.optimizer.state[param]
                    calls += setting(own, theirs, name, found, pairs, param, None, begins)
                    calls += [partial(own.pop, each, None) for each in begins]
                    continue
                own_group, problems = group if faults else options, list[str]()
                if self._checker is not None:
                    makes = self._is_ours and _chooses_otherwise(group, other)
                    problems = self._checker._unfit_state(own_group, theirs, param, name, makes)
                    if not problems:
                        checked = (own_group, theirs, param, name, seen)
                        problems = self._checker._unfit_numbers(*checked)
                found += problems
                if name in given and not problems:
                    made[param] = self._prepare_state(param, own_group, theirs)
            merged.append(options)
            calls += [partial(group.clear), partial(group.update, options)]
        if self._is_ours:
            found += self.optimizer._unfit_groups(merged)
        if not self._has_rule:
            own: dict[str, Any] = self.optimizer.__dict__
            calls.append(partial(own.update, {"state": made}))
        return pairs, calls

    def _unfit_options(self, options: Group, place: int) -> list[str]:
        """Return why no step could be taken with the options of a group."""
        if self._checker is None:
            return []
        found: list[str] = self._checker._unfit_options(options, place)
        if self._is_ours or found:
            return found
        # Scalars that torch's own steps give to kernels must be numbers of float32.
        sizes = {name: value for name, value in options.items() if is_number(value)}
        return [
            f"'{name}' of group {place} is {state.shown(value)}, beyond float32"
            for name, value in sizes.items()
            if _MOST_FLOAT32 < abs(float(value)) < math.inf
        ]

    def _beginning(
        self,
        param: Tensor,
        given: Mapping[str, Any],
        title: str,
        found: list[str],
        lacking: list[str],
    ) -> list[str]:
        """What options keep of a parameter and a state does not have, if that may be."""
        if not self._is_ours:
            return []
        names = [key for key in self.optimizer._around.keys(param) if key not in given]
        is_new = is_before_steps(given)
        if self._converts:
            lacking += () if is_new else names
            return names
        if not (is_new or self._has_rule):
            how = "convert=True has it begin at the parameter"
            found += [f"'{title}/{key}' is missing; {how}" for key in names]
        return []

    def _prepare_state(self, param: Tensor, group: Group, given: dict[str, Any]) -> dict[str, Any]:
        """Return the state of one parameter, which was checked, in memory of its own."""
        moves = group.get("capturable") or group.get("fused")
        kinds = self.optimizer._around.kinds if self._is_ours else PLAIN
        devices = {
            key: "cpu" if key == "step" and not moves else kinds.home_of(key, param)
            for key in given
        }
        made = {
            key: _map_tensors(value, lambda own, to=devices[key]: own.to(to, copy=True))
            for key, value in given.items()
        }
        if self._checker is not None:
            slots = self._checker._own_rule(group, param).slots
            fit_slots(self._checker, group, param, made)
            kinds.widen_slots(made, slots, param)
            if self._checker._around.keeps_as_torch:
                _narrow_slots(made, slots, param)
        return made

    def _merge_options(self, group: Group, given: Group) -> Group:
        """Return a group with the numbers of a file, and its own other options.

        A number that the file has as None, such as `heads`, becomes None.
        """
        stays = {*given, *self.optimizer.defaults}
        made = {key: each for key, each in group.items() if key in stays or not _is_number(each)}
        for key, value in given.items():
            is_flag = key in HOW or isinstance(group.get(key), bool)
            is_unset = value is None and _is_number(group.get(key)) and not is_flag
            if key != "params" and (
                key not in group or is_unset or (_is_number(value) and not is_flag)
            ):
                # No kernel takes a larger integer.
                number: Any = value
                is_large = type(number) is int and is_number(number) and abs(number) >= 2**63
                made[key] = float(number) if is_large else _map_tensors(value, torch.clone)
        if self._has_rule:
            hypers_of(made, self.optimizer.rule)
        return made


def _checker_of(cls: type[torch.optim.Optimizer]) -> Any:
    """Return an optimizer of `thalweg.optim`, without groups, to check states of `cls`.

    It is made without `__init__`, so it has neither groups nor state. None for classes that
    `thalweg.optim` does not have, and for those of users.
    """
    kind: Any = class_named(cls.__name__) if is_named(cls.__name__) else None
    return kind.__new__(kind) if kind is not None and kind._torch is cls else None


def _chooses_otherwise(group: Group, saved: Group) -> bool:
    """Return whether options that choose a rule differ, so that a file may lack slots."""
    return any(
        isinstance(value, bool) and name in saved and saved[name] != value
        for name, value in group.items()
    )


def without_converted(description: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an optimizer without arguments in which another may differ from it
    where states are converted: masters, too, where either has split weights.
    """
    names = {each.name for kind in _CONVERTED for each in kind.keywords()}
    if any(_SPLIT in each["arguments"] for each in (description, other)):
        names |= {each.name for each in Masters.keywords()}
    own: Mapping[str, Any] = description["arguments"]
    return {**description, "arguments": {n: x for n, x in own.items() if n not in names}}


def _narrow_slots(own: dict[str, Any], slots: Iterable[Slot], param: Tensor) -> None:
    """Have slots that options made wider be of their parameter's dtype, as torch loads them."""
    for slot in slots:
        value = own.get(slot.name)
        if slot.is_shaped or slot.scalar or not isinstance(value, Tensor):
            continue
        if value.is_floating_point() and (dtype := PLAIN.of(slot, param)).is_floating_point:
            own[slot.name] = value.to(dtype)


def _is_number(value: object) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_number, cast("list[Any]", value)))
    return isinstance(value, int | float | Tensor) and not isinstance(value, bool)


def _copy_value(value: object, what: str) -> Any:
    return (
        state.taken(value, what) if isinstance(value, Tensor) else _map_tensors(value, state.taken)
    )


def _map_tensors(value: object, change: Callable[[Tensor], Tensor]) -> Any:
    """A value whose tensors are changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_tensors(each, change) for key, each in cast("Group", value).items()}
    if isinstance(value, list | tuple):
        items = [_map_tensors(each, change) for each in cast("list[Any]", value)]
        return tuple(items) if isinstance(value, tuple) else items
    return value
