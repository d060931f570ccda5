"""`state_dict` and `load_state_dict`: everything an optimizer remembers, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.errors import CheckpointMismatchError
from thalweg.hyperparameters import Hyperparameters
from thalweg.slots import SlotStore
from thalweg.variable import Variable, dtype_name, name_of

FORMAT = 1
_LISTED = 10  # differences that an error names


def numbered(variables: Sequence[Tensor]) -> list[str]:
    """Names that tell variables apart: the second "w:0" becomes "w:0#1"."""
    seen: Counter[str] = Counter()
    names = []
    for var in variables:
        name = name_of(var)
        names.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def mismatch(differences: list[str]) -> CheckpointMismatchError:
    """The error that lists differences."""
    shown = differences[:_LISTED]
    if len(differences) > _LISTED:
        shown.append(f"and {len(differences) - _LISTED} more")
    return CheckpointMismatchError("; ".join(shown) + ". Nothing was loaded.")


class State:
    """The part of `Optimizer` that saves and loads."""

    _name: str
    _slots: SlotStore
    _hyper: Hyperparameters
    iterations: Tensor

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, Tensor]] = {}

    def _extra_weights(self) -> dict[str, Tensor]:
        """Weights that belong neither to a variable nor to every optimizer, by name."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All state as named tensors and plain numbers; `torch.load(weights_only=True)` reads it.

        Returns:
            "class_name", "format", "iterations" (int64 tensor), "hyperparameters" (numbers; not
            those given as schedules, callables or tensors), "weights" (optimizer-wide tensors) and
            "slots": for each variable's name a dict from slot name to tensor. Tensors are copies.
            A variable whose name another had before is "name:0#1".
        """
        owners = self._slots.owners()
        slots: dict[str, dict[str, Tensor]] = {}
        for name, var in zip(numbered(owners), owners, strict=True):
            own = self._slots.all_of(var)
            slots[name] = {key: slot.detach().clone() for key, slot in own.items()}
        extra = self._extra_weights()
        return {
            "class_name": type(self).__name__,
            "format": FORMAT,
            "iterations": self.iterations.detach().clone(),
            "hyperparameters": self._hyper.numbers(),
            "weights": {key: value.detach().clone() for key, value in extra.items()},
            "slots": slots,
        }

    def load_state_dict(
        self, state_dict: dict[str, Any], var_list: Sequence[Tensor] | None = None
    ) -> None:
        """Set all state from `state_dict()`; all or nothing.

        Variables are matched by name. Slots of variables that this optimizer has not met yet are
        kept and put in place when their variable comes.

        Args:
            state_dict: As `state_dict` returns it.
            var_list: Optional. The variables, so that all slots are made and checked now.

        Raises:
            ValueError: It is the state of another class of optimizer.
            CheckpointMismatchError: Names, shapes or dtypes differ; lists up to ten differences.
        """
        differences = self._differences(state_dict)
        saved: dict[str, dict[str, Tensor]] = state_dict.get("slots", {})
        owners = self._slots.owners()
        known = {id(var) for var in owners}
        owners = owners + [var for var in var_list or [] if id(var) not in known]
        names = numbered(owners)
        if var_list is not None or known:
            missing = [name for name in names if name not in saved]
            differences += [f"the state has no slots for '{name}'" for name in missing]
        if var_list is not None:
            extra = [name for name in saved if name not in names]
            differences += [
                f"the state has slots for '{name}', which is not given" for name in extra
            ]
        for name, var in zip(names, owners, strict=True):
            if name in saved:
                own = self._slots.all_of(var)
                differences += _slot_differences(name, var, own, saved[name])
        if differences:
            raise mismatch(differences)
        with torch.no_grad():
            self._load_common(state_dict)
            self._pending = {key: dict(value) for key, value in saved.items()}
            if var_list is not None:
                self._create_all_weights(var_list)
            self._restore(owners)

    def _differences(self, state_dict: Any) -> list[str]:
        if not isinstance(state_dict, dict) or "class_name" not in state_dict:
            raise ValueError("state_dict must be what state_dict() of an optimizer returned.")
        if state_dict["class_name"] != type(self).__name__:
            raise ValueError(
                f"The state is of {state_dict['class_name']}, this optimizer is"
                f" {type(self).__name__}. Nothing was loaded."
            )
        unknown = [name for name in state_dict["hyperparameters"] if name not in self._hyper]
        return [f"there is no hyperparameter '{name}'" for name in unknown]

    def _load_common(self, state_dict: dict[str, Any]) -> None:
        self.iterations.copy_(state_dict["iterations"])
        for name, value in state_dict["hyperparameters"].items():
            self._hyper.restore(name, value)
        for name, value in state_dict["weights"].items():
            self._load_extra(name, value)

    def _load_extra(self, name: str, value: Tensor) -> None:
        self._extra_weights()[name].copy_(value)

    def _create_all_weights(self, var_list: Sequence[Tensor]) -> None:
        raise NotImplementedError

    def _restore(self, var_list: Sequence[Tensor]) -> None:
        """Put pending slots of these variables in place."""
        if not self._pending:
            return
        owners = self._slots.owners()
        wanted = {id(var) for var in var_list}
        found = [
            (name, var)
            for name, var in zip(numbered(owners), owners, strict=True)
            if id(var) in wanted and name in self._pending
        ]
        differences = [
            difference
            for name, var in found
            for difference in _slot_differences(
                name, var, self._slots.all_of(var), self._pending[name]
            )
        ]
        if differences:
            raise mismatch(differences)
        with torch.no_grad():
            for name, var in found:
                own = self._slots.all_of(var)
                for key, value in self._pending.pop(name).items():
                    own[key].copy_(value)


def _slot_differences(
    name: str, var: Tensor, own: dict[str, Variable], saved: dict[str, Tensor]
) -> list[str]:
    if not own:
        return [
            f"slot '{key}' of '{name}' has shape {tuple(value.shape)} but the variable has shape"
            f" {tuple(var.shape)}"
            for key, value in saved.items()
            if value.shape != var.shape
        ]
    found = [f"the state has no slot '{key}' of '{name}'" for key in own if key not in saved]
    found += [f"'{name}' has no slot '{key}'" for key in saved if key not in own]
    for key, value in saved.items():
        slot = own.get(key)
        if slot is not None and slot.shape != value.shape:
            found.append(
                f"slot '{key}' of '{name}' has shape {tuple(value.shape)} in the state but"
                f" {tuple(slot.shape)} here"
            )
        elif slot is not None and slot.dtype != value.dtype:
            found.append(
                f"slot '{key}' of '{name}' is {dtype_name(value.dtype)} in the state but"
                f" {dtype_name(slot.dtype)} here"
            )
    return found
