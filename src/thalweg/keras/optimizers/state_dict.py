"""`state_dict` and `load_state_dict`: everything an optimizer remembers, by name."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.core.hyperparameters import Hyperparameters
from thalweg.core.pairs import flatten
from thalweg.core.slots import SlotStore
from thalweg.errors import (
    CheckpointMismatchError,
    FailedPreconditionError,
    NumericsWarning,
    warn,
)
from thalweg.graph import executing_eagerly, is_symbolic
from thalweg.keras.optimizers.weights import COUNTERS
from thalweg.variable import Variable, dtype_name, name_of

FORMAT = 1
_LISTED = 10  # differences that an error names
_PARTS = ("hyperparameters", "weights", "slots")


def numbered(variables: Sequence[Tensor]) -> list[str]:
    """Names that tell variables apart: the second "w:0" becomes "w:0#1"."""
    seen: Counter[str] = Counter()
    names = []
    for var in variables:
        name = name_of(var)
        names.append(f"{name}#{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return names


def mismatch(
    differences: list[str], outcome: str = "Nothing was loaded."
) -> CheckpointMismatchError:
    """The error that lists differences."""
    shown = differences[:_LISTED]
    if len(differences) > _LISTED:
        shown.append(f"and {len(differences) - _LISTED} more")
    if any("'Variable:0" in difference for difference in shown):
        outcome = (
            "Variables without a name are matched by their order; thalweg.named_variables(module)"
            f" names them. {outcome}"
        )
    return CheckpointMismatchError(f"{'; '.join(shown)}. {outcome}")


class StateDict:
    """The part of `Optimizer` that saves and loads.

    Attributes:
        EXTRA: Names of scalar weights that belong neither to a variable nor to every optimizer.
    """

    EXTRA: tuple[str, ...] = ()

    _name: str
    _lock: Any
    _slots: SlotStore
    _hyper: Hyperparameters
    _weights: list[Tensor]
    iterations: Tensor

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, Tensor]] = {}
        self._awaits = False  # whether no variable has come for what was loaded

    def _extra_weights(self) -> dict[str, Tensor]:
        """The weights named in `EXTRA` that exist by now."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All state as named tensors and plain numbers; `torch.load(weights_only=True)` reads it.

        Returns:
            "class_name", "format", "iterations" (int64 tensor), "hyperparameters" (numbers; not
            those given as schedules, callables or tensors), "weights" (optimizer-wide tensors) and
            "slots": for each variable's name a dict from slot name to tensor. Tensors are copies.
            The second variable of a name is "name:0#1".

        Raises:
            FailedPreconditionError: The state is variables of a graph, which sessions keep.
        """
        self._check_eager("get_weights()")
        with self._lock:
            return self._state_dict()

    def _state_dict(self) -> dict[str, Any]:
        owners = self._slots.owners()
        slots: dict[str, dict[str, Tensor]] = {}
        for name, var in zip(numbered(owners), owners, strict=True):
            own = self._slots.all_of(var)
            slots[name] = {key: slot.detach().clone() for key, slot in own.items()}
        for name, waiting in self._pending.items():
            slots.setdefault(name, {key: value.clone() for key, value in waiting.items()})
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
            FailedPreconditionError: The state is variables of a graph, which sessions keep.
        """
        var_list = None if var_list is None else flatten(var_list)
        self._check_eager("set_weights(values)", var_list or ())
        _check_form(state_dict, type(self).__name__)
        with self._lock:
            self._load(state_dict, var_list)

    def _check_eager(self, instead: str, variables: Sequence[Any] = ()) -> None:
        is_deferred = any(map(is_symbolic, [*self._weights, *variables]))
        if is_deferred or not (self._weights or executing_eagerly()):
            raise FailedPreconditionError(
                f"The state of {self._name} is variables of a graph: a session has its values. Use"
                f" {instead} inside `with session:`."
            )

    def _load(self, state_dict: dict[str, Any], var_list: Sequence[Tensor] | None) -> None:
        before = self._mark()
        try:
            owners = self._owners(var_list)
            differences = self._differences(state_dict, owners, var_list is not None)
            if differences:
                raise mismatch(differences)
        except BaseException:
            self._revert(before)
            raise
        with torch.no_grad():
            self._load_common(state_dict)
            self._pending = {key: dict(value) for key, value in state_dict["slots"].items()}
            self._restore(owners)
            self._awaits = bool(self._pending) and not owners

    def _mark(self) -> dict[str, Any]:
        """Which weights there are, for `_revert`; their values are not kept."""
        own = {"_weights": list(self._weights), "_slots": copy.copy(self._slots)}
        return {**vars(self), **own, "_hyper": copy.copy(self._hyper)}

    def _revert(self, mark: dict[str, Any]) -> None:
        own = vars(self)
        own.update(mark)
        for key in own.keys() - mark.keys():
            del own[key]

    def _owners(self, var_list: Sequence[Tensor] | None) -> list[Tensor]:
        """The variables to load slots for; with `var_list` their slots are made."""
        if var_list is None:
            return self._slots.owners()
        variables = list({id(var): var for var in var_list}.values())
        self._pending, pending = {}, self._pending
        self._create_all_weights(variables)
        self._pending = pending
        known = self._slots.owners()
        return known + [var for var in variables if all(var is not other for other in known)]

    def _differences(
        self, state_dict: dict[str, Any], owners: Sequence[Tensor], is_complete: bool
    ) -> list[str]:
        found: list[str] = []
        steps, counter = state_dict["iterations"].item(), self.iterations
        if steps > torch.iinfo(counter.dtype).max:
            found.append(f"iterations is {steps}, more than {dtype_name(counter.dtype)}")
        for name, value in state_dict["hyperparameters"].items():
            if name not in self._hyper:
                found.append(f"there is no hyperparameter '{name}'")
            elif not self._hyper.accepts(name, value):
                found.append(f"hyperparameter '{name}' is no number that fits it: {value!r}")
        saved = state_dict["slots"]
        found += self._weight_differences(state_dict["weights"], bool(saved))
        names = numbered(owners)
        if is_complete:
            surplus = [name for name in saved if name not in names]
            found += [f"the state has slots for '{name}', which is not given" for name in surplus]
        for name, var in zip(names, owners, strict=True):
            own = self._slots.all_of(var)
            if own and name not in saved:
                found.append(f"the state has no slots for '{name}'")
            else:
                found += _slot_differences(name, own, saved.get(name, {}))
        return found

    def _weight_differences(self, saved: dict[str, Any], is_expected: bool) -> list[str]:
        found = [f"there is no weight '{name}'" for name in saved if name not in self.EXTRA]
        own = self._extra_weights()
        for name in self.EXTRA:
            value = saved.get(name)
            if value is None and is_expected:
                found.append(f"the state has no weight '{name}'")
            elif value is not None:
                here = own.get(name, torch.zeros((), dtype=getattr(value, "dtype", None)))
                found += _tensor_differences(f"weight '{name}'", value, here)
        return found

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
            for difference in _slot_differences(name, self._slots.all_of(var), self._pending[name])
        ]
        if differences:
            raise mismatch(differences, "The step was not taken.")
        if self._awaits and var_list:
            self._awaits = False
            if not found:
                names = numbered(owners)
                warn(
                    f"{self._name} loaded slots for {_listed(self._pending)}, but the first step is"
                    f" over {_listed(names)}, whose slots begin anew. Name the variables by"
                    " thalweg.named_variables(module), or give them to load_state_dict.",
                    NumericsWarning,
                )
        with torch.no_grad():
            for name, var in found:
                own = self._slots.all_of(var)
                for key, value in self._pending.pop(name).items():
                    own[key].copy_(value)


def _check_form(state_dict: Any, class_name: str) -> None:
    """Refuse what is no state of this class of optimizer."""
    if not isinstance(state_dict, dict) or "class_name" not in state_dict:
        raise ValueError(
            "state_dict must be what state_dict() of an optimizer returned. Nothing was loaded."
        )
    if state_dict["class_name"] != class_name:
        raise ValueError(
            f"The state is of {state_dict['class_name']}, this optimizer is {class_name}."
            " Nothing was loaded."
        )
    if state_dict.get("format") != FORMAT:
        raise mismatch([f"The state is of format {state_dict.get('format')}, not {FORMAT}"])
    missing = [key for key in ("iterations", *_PARTS) if key not in state_dict]
    if missing:
        raise mismatch([f"the state has no '{key}'" for key in missing])
    steps, slots = state_dict["iterations"], state_dict["slots"]
    if not isinstance(steps, Tensor) or steps.is_meta or steps.dim() or steps.dtype not in COUNTERS:
        raise mismatch([f"iterations must be an integer scalar, not {steps!r}"])
    if steps < 0:
        raise mismatch([f"iterations must be 0 or more, not {steps.item()}"])
    parts = [state_dict[key] for key in _PARTS]
    parts += slots.values() if isinstance(slots, dict) else []
    if not all(isinstance(part, dict) for part in parts):
        raise mismatch(["the state is damaged: a part of it is no dictionary"])


def _slot_differences(name: str, own: dict[str, Variable], saved: dict[str, Any]) -> list[str]:
    found = [f"the state has no slot '{key}' of '{name}'" for key in own if key not in saved]
    found += [f"'{name}' has no slot '{key}'" for key in saved if key not in own]
    for key, value in saved.items():
        if key in own:
            found += _tensor_differences(f"slot '{key}' of '{name}'", value, own[key])
    return found


def _tensor_differences(what: str, saved: Any, own: Tensor) -> list[str]:
    if not isinstance(saved, Tensor):
        return [f"{what} is no tensor in the state"]
    if saved.is_meta or saved.layout != torch.strided:
        kind = "on the meta device" if saved.is_meta else saved.layout
        return [f"{what} is {kind} in the state"]
    if saved.shape != own.shape:
        return [f"{what} has shape {tuple(saved.shape)} in the state but {tuple(own.shape)} here"]
    if saved.dtype != own.dtype:
        kinds = f"{dtype_name(saved.dtype)} in the state but {dtype_name(own.dtype)} here"
        return [f"{what} is {kinds}"]
    return []


def _listed(names: Iterable[str]) -> str:
    shown = [f"'{name}'" for name in names]
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")
