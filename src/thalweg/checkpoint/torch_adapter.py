"""Checkpoint adapter for `thalweg.optim` and `torch.optim` optimizers."""

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
from thalweg._core.atomic_section import Call
from thalweg._core.dtensor import any_on_mesh, is_on_mesh
from thalweg._core.nest import mapped
from thalweg._core.options.master_weights import Masters
from thalweg._core.options.split_weights import SplitWeights
from thalweg._core.options.state_storage import StateCodec
from thalweg._core.options.stochastic_rounding import Rounding
from thalweg._core.options.update_targets import PLAIN
from thalweg._core.param_groups import Group, params_of
from thalweg._core.state import Item, Names, keys_of
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.formula import Slot
from thalweg.optim import RuleOptimizer
from thalweg.optim.class_lookup import class_named
from thalweg.optim.fused_optimizer import FusedOptimizer
from thalweg.optim.group_options import STEP_FLAGS, hypers_of
from thalweg.optim.load_state import drop_unused, fit_slots, fit_state, plan_entries, warn_of
from thalweg.optim.rule_names import KINDS
from thalweg.optim.state_mismatch import is_before_steps, is_number, unmatched
from thalweg.optim.step_options import KEYWORDS

_MAX_FLOAT32 = torch.finfo(torch.float32).max
OF_TORCH = ("torch.optim.", "thalweg.optim.")
_CONVERTIBLE = (StateCodec, SplitWeights, Rounding)
# Entries of groups that are not arguments; options of all groups are compared apart.
_NO_ARGUMENTS = ("params", "param_names", *STEP_FLAGS, *KEYWORDS)
(_SPLIT,) = (keyword.name for keyword in SplitWeights.keywords())


class TorchOptimizerAdapter:
    """Adapter of a torch-style optimizer, with the methods that `save` and `restore` need.

    Numbers in groups are part of the state. All other options in groups are arguments.

    Raises:
        InvalidTypeError: The class overrides `state_dict` or `load_state_dict`.
    """

    # See `Configurable`: the groups have the parameters.
    _needs_variables = False

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer: Any = optimizer
        self._is_fused = isinstance(optimizer, FusedOptimizer)
        self._checker: Any = optimizer if self._is_fused else _checker_of(type(optimizer))
        self._has_rule = isinstance(optimizer, RuleOptimizer)
        self._converts = False
        self._file_values: Mapping[str, Any] = {}
        # A class with methods of its own may have more state than groups and `state`.
        for name in ("state_dict", "load_state_dict"):
            if not getattr(type(optimizer), name).__module__.startswith(OF_TORCH):
                raise InvalidTypeError(
                    f"optimizer is a {type(optimizer).__name__}, whose class has a {name} of its"
                    ' own: save what that takes, as extra={"optimizer": optimizer.state_dict()}.'
                )

    @property
    def title(self) -> str:
        """Name of the optimizer's class in checkpoints, such as "torch.optim.Adam".

        A `thalweg.optim` class that replaces a torch class has the torch name. A user's class has
        the prefix "mine:" and no package.
        """
        cls: type[Any] = self.optimizer.__class__
        if not cls.__module__.startswith(OF_TORCH):
            return f"mine:{cls.__name__}"
        replaced = cls._torch if self._is_fused and not self._has_rule else cls
        # `_torch` of a class that torch does not have is another class of this library.
        cls = cls if replaced.__module__.startswith("thalweg.") else replaced
        depth = 3 if cls.__module__.endswith(".tensorflow") else 2
        return ".".join([*cls.__module__.split(".")[:depth], cls.__name__])

    def convert_to_fit(self, values: Mapping[str, Any]) -> None:
        """Make later loadings convert saved state to the storage format of this optimizer.

        Args:
            values: {name in the file: parameter}, to decode split weights. For missing names, the
                optimizer's parameters are used.
        """
        self._converts, self._file_values = True, values

    @property
    def is_on_mesh(self) -> bool:
        """True if parameters are DTensors, so all ranks must save and restore together."""
        return any_on_mesh(params_of(self.optimizer.param_groups))

    def _locked(self) -> AbstractContextManager[Any]:
        """Return a context manager that blocks the optimizer's steps in other threads.

        For an optimizer of torch, the context manager does nothing.

        Raises:
            FailedPreconditionError: `backward()` has applied gradients, and `step()` has not been
                called since; or the call is inside a `swapped()` block.
        """
        if not self._is_fused:
            return nullcontext()
        cache = self.optimizer.step_cache
        if cache.holds_averages or cache.has_applied_grads:
            in_block = cache.holds_averages
            moment = "inside of swapped()" if in_block else "between backward() and step()"
            raise FailedPreconditionError(
                f"{type(self.optimizer).__name__} is {moment}: a training is saved and restored"
                " between two steps. Save or restore it afterwards; until then, module= alone."
            )
        return cache.lock

    def _arguments(self) -> dict[str, Any]:
        """Return {name: value} of all settings that a loaded state must match.

        The settings are the group options other than numbers, the number of groups, the rule, and
        the arguments of a `thalweg.optim` optimizer for its options, such as averages.
        """
        groups = self.optimizer.param_groups
        arguments: dict[str, Any] = {"the number of groups": len(groups)}
        for index, group in enumerate(groups):
            for name, option in group.items():
                if name not in _NO_ARGUMENTS and not _is_number(option):
                    arguments[f"{name} of group {index}"] = option
        if self._has_rule:
            arguments |= {"rule": self.optimizer.rule, "initial": self.optimizer._initial}
        if self._is_fused:
            arguments |= self.optimizer.step_options.arguments
        return arguments

    def _saved(self, names: Names = keys_of) -> dict[str, Any]:
        """Return copies of the state: {"state": {parameter name: entries}, "groups": groups}.

        "params" of a group has parameter names.

        Args:
            names: `names(parameters)` returns the names of all parameters, in order.

        Raises:
            InvalidTypeError: The state has a parameter that is in no group.
        """
        param_names, groups = self._names_by_param(names), list[Group]()
        for group in self.optimizer.param_groups:
            options = {name: option for name, option in group.items() if name != "param_names"}
            groups.append({**options, "params": [param_names[param] for param in group["params"]]})
        for param in self.optimizer.state:
            if param not in param_names:
                raise InvalidTypeError(f"The optimizer's state has {param!r}, no parameter of it.")
        param_states = {param_names[p]: entries for p, entries in self.optimizer.state.items()}
        if self._is_fused:
            self.optimizer.describe_state(groups)
        states = {
            name: {key: _copy_value(entry, f"'{name}/{key}'") for key, entry in entries.items()}
            for name, entries in param_states.items()
        }
        return {"state": states, "groups": _map_tensors(groups, state.taken)}

    @contextmanager
    def _loading(
        self, saved_state: Mapping[str, Any], variables: object = None, names: Names = keys_of
    ) -> Generator[state.Loading]:
        """Validate a state from `_saved`; yield a `Loading`, the writes that set the state.

        Steps in other threads are blocked until the `with` block ends.

        Args:
            variables: Ignored: the groups have the parameters.
            names: `names(parameters)` returns the names of all parameters, in order.

        Raises:
            CheckpointMismatchError: Names, shapes, dtypes or options differ from the state; lists
                all.
        """
        with self._locked(), writable():
            errors, warnings, missing = list[str](), list[str](), list[str]()
            param_names = self._names_by_param(names)
            groups = self._reorder_params(saved_state["groups"], param_names)
            state_dict = {"state": saved_state["state"], "param_groups": groups}
            history_calls: list[Call] = []
            if self._is_fused:
                state_dict, warnings, history_calls = drop_unused(self.optimizer, state_dict)
                values = {p: self._file_values.get(name, p) for p, name in param_names.items()}
                state_dict = fit_state(self.optimizer, state_dict, warnings, self._converts, values)
            states, groups = state_dict["state"], state_dict["param_groups"]
            count = len(self.optimizer.param_groups)
            if count != len(groups):
                text = f"there are {count} groups of parameters, in the file {len(groups)}"
                raise state.mismatch([text], type(self.optimizer).__name__)
            pairs, calls = self._prepare_updates(states, groups, param_names, errors, missing)
            state.raise_mismatch(errors, type(self.optimizer).__name__)
            if self._is_fused:
                warn_of(self.optimizer, missing, warnings)
            yield state.Loading(pairs, calls + history_calls, type(self.optimizer).__name__)

    def _names_by_param(self, names: Names) -> dict[Tensor, str]:
        """Return {parameter: name}; `names` maps a list of parameters to their names."""
        params = params_of(self.optimizer.param_groups)
        return dict(zip(params, names(params), strict=True))

    def _reorder_params(
        self, saved_groups: list[Group], param_names: Mapping[Tensor, str]
    ) -> list[Group]:
        """Return copies of the saved groups with parameters in the order of the optimizer's groups.

        A saved group with other parameters is returned unchanged; the caller validates names.
        """
        ordered_groups: list[Group] = []
        for index, saved_group in enumerate(saved_groups):
            groups = self.optimizer.param_groups[index : index + 1]
            names = [param_names[param] for group in groups for param in group["params"]]
            is_permuted = sorted(names) == sorted(saved_group["params"])
            ordered_groups.append({**saved_group, "params": names} if is_permuted else saved_group)
        return ordered_groups

    def _prepare_updates(
        self, saved_states: Any, saved_groups: list[Group], param_names: Mapping[Tensor, str],
        errors: list[str], missing: list[str],
    ) -> tuple[list[tuple[Item, Any]], list[Call]]:  # fmt: skip
        """Return the writes that load a state; set nothing.

        Args:
            saved_states: {parameter name: saved state}.
            saved_groups: The saved groups, as many as the optimizer has.
            param_names: {parameter: name} of the optimizer.
            errors: A list to which differences are appended.
            missing: A list to which names of missing state are appended, which the writes
                initialize.

        Returns:
            Pairs (entry to set, new value), and functions without arguments that set the rest.
        """
        groups: list[Group] = self.optimizer.param_groups
        pairs, calls = list[tuple[Item, Any]](), list[Call]()
        new_states: dict[Tensor, Any] = defaultdict(dict)
        merged, checked_values = list[Group](), set[object]()
        for index, (group, saved_group) in enumerate(zip(groups, saved_groups, strict=True)):
            names = [param_names[param] for param in group["params"]]
            errors += unmatched(names, saved_group["params"], f" of group {index}")
            options = self._merge_options(group, saved_group)
            errors += (option_errors := self._unfit_options(options, index))
            for param, name in zip(group["params"], names, strict=True):
                saved_state = saved_states.get(name, {})
                initial_keys = self._list_initial_keys(param, saved_state, name, errors, missing)
                if self._has_rule:
                    entries = self.optimizer.state[param]
                    arguments = (entries, saved_state, name, errors, pairs, param)
                    calls += plan_entries(*arguments, None, initial_keys)
                    calls += [partial(entries.pop, key, None) for key in initial_keys]
                    continue
                checked_group = group if option_errors else options
                may_create_slots = self._is_fused and _rule_options_differ(group, saved_group)
                arguments = (checked_group, saved_state, param, name)
                param_errors = self._unfit_state(arguments, may_create_slots, checked_values)
                errors += param_errors
                if name in saved_states and not param_errors:
                    new_states[param] = self._prepare_state(param, checked_group, saved_state)
            merged.append(options)
            # The group's dict is changed in place: other code may refer to it.
            calls += [partial(group.clear), partial(group.update, options)]
        if self._is_fused:
            errors += self.optimizer._unfit_groups(merged)
            if not errors:
                self.optimizer.record_format(merged, new_states)
        if not self._has_rule:
            attributes: dict[str, Any] = self.optimizer.__dict__
            calls.append(partial(attributes.update, {"state": new_states}))
        return pairs, calls

    def _unfit_state(
        self,
        arguments: tuple[Group, dict[str, Any], Tensor, str],
        may_create_slots: bool,
        checked_values: set[object],
    ) -> list[str]:
        """Return the reasons why a step with a saved state would fail; [] if there are none.

        Args:
            arguments: The group, the parameter's saved state, the parameter, and its name.
            may_create_slots: True if slots may be missing.
            checked_values: A cache of numbers that were checked before; extended in place.
        """
        if self._checker is None:
            return []
        errors: list[str] = self._checker._unfit_state(*arguments, may_create_slots)
        return errors or self._checker._unfit_numbers(*arguments, checked_values)

    def _unfit_options(self, options: Group, index: int) -> list[str]:
        """Return the reasons why a step with the options of group `index` would fail; else []."""
        if self._checker is None:
            return []
        errors: list[str] = self._checker._unfit_options(options, index)
        if self._is_fused or errors:
            return errors
        # The steps of torch pass scalars to kernels as float32.
        sizes = {name: option for name, option in options.items() if is_number(option)}
        return [
            f"'{name}' of group {index} is {state.shown(size)}, beyond float32"
            for name, size in sizes.items()
            if _MAX_FLOAT32 < abs(float(size)) < math.inf
        ]

    def _list_initial_keys(
        self,
        param: Tensor,
        saved_state: Mapping[str, Any],
        param_name: str,
        errors: list[str],
        missing: list[str],
    ) -> list[str]:
        """Return the keys of missing state that loading must set to the parameter's value.

        These are keys of the optimizer's keywords, such as "ema" of `ema_decay`. Without
        `convert=True`, return [].
        The lists `errors` and `missing` are unchanged for a parameter before its first step.

        Args:
            param_name: The parameter's name, for errors.
            errors: Without `convert=True`, one line per key is appended, except for a
                `RuleOptimizer`, which reports missing keys itself.
            missing: With `convert=True`, the keys are appended.
        """
        if not self._is_fused:
            return []
        keys = [key for key in self.optimizer.step_options.keys(param) if key not in saved_state]
        is_new = is_before_steps(saved_state)
        if self._converts:
            missing += () if is_new else keys
            return keys
        # `plan_entries` reports the missing keys of a `RuleOptimizer`.
        if not (is_new or self._has_rule):
            advice = "convert=True has it begin at the parameter"
            errors += [f"'{param_name}/{key}' is missing; {advice}" for key in keys]
        return []

    def _prepare_state(self, param: Tensor, group: Group, saved: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a parameter's validated state, with devices and dtypes for steps.

        `group` has the options after loading.
        """
        moves = group.get("capturable") or group.get("fused")
        storage = self.optimizer.step_options.kinds if self._is_fused else PLAIN
        devices = {
            key: "cpu" if key == "step" and not moves else storage.home_of(key, param)
            for key in saved
        }
        new_state = {
            key: _map_tensors(entry, lambda own, to=devices[key]: own.to(to, copy=True))
            for key, entry in saved.items()
        }
        if self._checker is not None:
            slots = self._checker.base_rule(group, param).slots
            fit_slots(self._checker, storage, group, param, new_state)
            storage.widen_slots(new_state, slots, param)
            if self._checker.step_options.keeps_as_torch:
                _narrow_slots(new_state, slots, param)
        return new_state

    def _merge_options(self, group: Group, saved_group: Group) -> Group:
        """Return a copy of `group` with the saved numbers, and with saved options that it lacks.

        Flags of `group` are retained. A number that is None in `saved_group`, such as `heads`,
        becomes None. A number of `group` is removed if neither `saved_group` nor the optimizer's
        defaults have an option of this name.
        """
        retained = {*saved_group, *self.optimizer.defaults}
        merged = {k: x for k, x in group.items() if k in retained or not _is_number(x)}
        for key, option in saved_group.items():
            # Flags select an implementation or a rule; the optimizer's own are retained.
            is_flag = key in STEP_FLAGS or isinstance(group.get(key), bool)
            is_unset = option is None and _is_number(group.get(key)) and not is_flag
            if key != "params" and (
                key not in group or is_unset or (_is_number(option) and not is_flag)
            ):
                # Kernels take integers of 64 bits.
                scalar: Any = option
                is_large = type(scalar) is int and is_number(scalar) and abs(scalar) >= 2**63
                merged[key] = float(scalar) if is_large else _map_tensors(option, torch.clone)
        if self._has_rule:
            hypers_of(merged, self.optimizer.rule)
        return merged


def _checker_of(cls: type[torch.optim.Optimizer]) -> Any:
    """Return an optimizer of `thalweg.optim` that can check states of the torch class `cls`.

    The optimizer has neither groups nor state. Return None if `thalweg.optim` lacks the class.
    """
    kind: Any = class_named(cls.__name__) if cls.__name__ in KINDS else None
    return kind.__new__(kind) if kind is not None and kind._torch is cls else None


def _rule_options_differ(group: Group, saved_group: Group) -> bool:
    """Return True if flags that select a rule differ, so that a file may lack slots."""
    return any(
        isinstance(option, bool) and name in saved_group and saved_group[name] != option
        for name, option in group.items()
    )


def without_converted(
    description: Mapping[str, Any], other_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a copy of `description` without the arguments that `convert=True` may change.

    The arguments are for state storage, split weights and random rounding. If `description` or
    `other_config` has split weights, `masters` is removed, too.
    """
    names = {keyword.name for option in _CONVERTIBLE for keyword in option.keywords()}
    if any(_SPLIT in description["arguments"] for description in (description, other_config)):
        names |= {keyword.name for keyword in Masters.keywords()}
    arguments: Mapping[str, Any] = description["arguments"]
    return {**description, "arguments": {n: x for n, x in arguments.items() if n not in names}}


def _narrow_slots(param_state: dict[str, Any], slots: Iterable[Slot], param: Tensor) -> None:
    """Cast slots in `param_state`, in place, to the dtypes that torch gives them on loading.

    Only floating-point slots with the parameter's shape are cast.
    """
    for slot in slots:
        tensor = param_state.get(slot.name)
        if slot.is_shaped or slot.scalar or not isinstance(tensor, Tensor):
            continue
        if tensor.is_floating_point() and (dtype := PLAIN.of(slot, param)).is_floating_point:
            param_state[slot.name] = tensor.to(dtype)


def _is_number(option: object) -> bool:
    """Return True for a number or tensor, or a tuple or list of these."""
    if isinstance(option, tuple | list):
        return all(map(_is_number, cast("list[Any]", option)))
    return isinstance(option, int | float | Tensor) and not isinstance(option, bool)


def _copy_value(entry: object, name: str) -> Any:
    """Return a copy of a value, or an alias inside `uncopied`; DTensors become full tensors."""
    if is_on_mesh(entry):
        with importing:
            from thalweg.optim.full_states import gather_full
        return gather_full(cast("Tensor", entry))
    return (
        state.taken(entry, name) if isinstance(entry, Tensor) else _map_tensors(entry, state.taken)
    )


def _map_tensors(nested: object, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of lists, tuples and dicts, in which `change(tensor)` replaces each tensor."""
    return mapped(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, nested)
