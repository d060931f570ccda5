"""`state_dict` and `load_state_dict`: everything an optimizer remembers, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg._base.execution_context import executing_eagerly
from thalweg._base.tracing import untraced
from thalweg._core import state
from thalweg._core.grads_and_vars import distinct, flatten
from thalweg._core.hyperparameters import Hyperparameters
from thalweg._core.state import Entry, Names, Number
from thalweg._core.trackable import TrackableSlots
from thalweg.errors import NumericsWarning, listed, warn
from thalweg.keras.optimizers.weights import COUNTERS
from thalweg.variable import name_of

FORMAT = 1
_SECTIONS = ("hyperparameters", "weights", "slots")
Called = tuple[str, str, Tensor]  # what a variable's slots' names begin with, its name in a state
_PARTS = ("class_name", "format", "iterations", *_SECTIONS)


class KerasStateDict(TrackableSlots, state.StateDict):
    """The part of `Optimizer` that saves and loads.

    Attributes:
        EXTRA: Names of scalar weights that belong neither to a variable nor to every optimizer.
    """

    EXTRA: tuple[str, ...] = ()

    _name: str
    _hyper: Hyperparameters
    _weights: list[Tensor]
    _counts_for: Tensor | None
    iterations: Tensor

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, Tensor]] = {}
        self._awaits = False  # whether no variable has come for what was loaded

    def _foreign(self) -> list[object]:
        own = {id(weight) for weight in self._weights if weight is not self._counts_for}
        given = [each for each in super()._foreign() if id(each) not in own]
        return given + [self._hyper.raw(name) for name in self._hyper]

    def _own_children(self) -> dict[str, object]:
        """The variables that are no slots."""
        raise NotImplementedError

    def _extra_weights(self) -> dict[str, Tensor]:
        """The weights named in `EXTRA` that exist by now."""
        return {}

    def _make_extra(self, name: str, dtype: torch.dtype) -> None:
        """Make one that does not exist."""
        raise NotImplementedError

    @untraced
    def state_dict(self) -> dict[str, Any]:
        """Return all state as named tensors and plain numbers; `torch.load(weights_only=True)`
        reads it.

        Returns:
            "class_name", "format", "iterations" (int64 tensor), "hyperparameters" (numbers; not
            those given as schedules, callables or tensors), "weights" (optimizer-wide tensors) and
            "slots": for each variable's name a dict from slot name to tensor. Tensors are copies.
            The second variable of a name is "name:0#1".

        Where slots are shared out over the ranks of a `thalweg.distribute.Strategy`, all ranks call
        this, and each gets all of them.

        Raises:
            ReplicaLostError: A rank has not called it.
            FailedPreconditionError: The state is variables of a graph, which `Saver` saves.
        """
        return self._saved(_titles_of)

    def _saved(self, names: Names = state.keys_of) -> dict[str, object]:
        """`state_dict` by other names of variables."""
        self._check_eager()
        with self._lock:
            self._settle()
            owners = self._owners()
            slots = {
                name: {each.name[1:]: each.read() for each in state.of_slots(self._slots, var, "")}
                for name, var in zip(names(owners), owners, strict=True)
            }
            for name, own in self._pending.items():
                slots[name] = {key: value.clone() for key, value in own.items()}
            return {
                "class_name": type(self).__name__,
                "format": FORMAT,
                "iterations": self._counter_entry().read(),
                "hyperparameters": state.snapshot(self._number_entries()),
                "weights": state.snapshot(self._extra_entries()),
                "slots": slots,
            }

    @untraced
    def load_state_dict(
        self, state_dict: dict[str, object], var_list: Sequence[Tensor] | None = None
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
            FailedPreconditionError: The state is variables of a graph, which `Saver` restores.
        """
        with self._loading(state_dict, var_list) as found:
            state.restore(found)

    def _given_state(self, state_dict: object, var_list: object) -> tuple[object, object]:
        var_list = None if var_list is None else flatten(var_list)
        self._check_eager(var_list or ())
        _check_form(state_dict, type(self).__name__)
        return state_dict, var_list

    def _check_eager(self, variables: Sequence[object] = ()) -> None:
        own = [*self._weights, *self._own_children().values(), *variables]
        state.check_eager(f"The state of {self._name}", own, self._weights or executing_eagerly())

    def _state_parts(
        self, given: dict[str, Any], variables: Sequence[Tensor] | None, names: Names
    ) -> tuple[str, list[state.Given]]:
        slots, is_named = given["slots"], names is not state.keys_of
        self._pending = {}
        owners = self._slots.owners()
        if variables is not None:
            wanted = distinct(variables)
            if wanted:
                self._create_all_weights(wanted)
            owners = distinct([*self._slots.owners(), *wanted])
        for name in self.EXTRA if slots else given["weights"].keys() & set(self.EXTRA):
            if name not in self._extra_weights():
                self._make_extra(name, _float_type(given["weights"].get(name)))
        called = _named_by(names, owners) if is_named else _names_in_state(owners, slots)
        entries, known, rest = self._slot_entries(called, slots)
        waiting = self._make_room(rest) if variables is None and not is_named else []
        self._awaits = bool(waiting) and not owners
        return "", [
            ([self._counter_entry()], {"iterations": given["iterations"]}, True),
            (self._number_entries(all_of_them=True), given["hyperparameters"], False),
            (self._extra_entries(), given["weights"], bool(slots)),
            (entries, known, True),
            (waiting, _flatten_slots(rest), True),
        ]

    def _make_room(self, slots: dict[str, dict[str, Any]]) -> list[Entry]:
        """Where slots of variables that are not known yet are to be kept."""
        for title, own in slots.items():
            self._pending[title] = {name: state.room_for(value) for name, value in own.items()}
        return [Entry(name, room) for name, room in _flatten_slots(self._pending).items()]

    def _counter_entry(self) -> Entry:
        return Entry("iterations", self.iterations, COUNTERS, lowest=0)

    def _number_entries(self, all_of_them: bool = False) -> list[Number]:
        """The hyperparameters that are numbers, or all: those of other kinds stay as they are."""
        hyper, numbers = self._hyper, self._hyper.numbers()
        names = hyper if all_of_them else numbers
        return [Number(name, numbers.get(name, 0), partial(hyper.setting, name)) for name in names]

    def _extra_entries(self) -> list[Entry]:
        return [Entry(name, weight) for name, weight in self._extra_weights().items()]

    def _slot_entries(
        self, called: Sequence[Called], given: dict[str, dict[str, Any]], all_of_them: bool = True
    ) -> tuple[list[Entry], dict[str, Any], dict[str, Any]]:
        """The slots of these variables, or of those in a state; what that has of them, by name;
        and what of others.
        """
        entries: list[Entry] = []
        known: dict[str, Any] = {}
        rest = dict(given)
        for key, title, var in called:
            if not all_of_them and title not in given:
                continue
            entries += state.of_slots(self._slots, var, key)
            known |= {f"{key}/{name}": value for name, value in rest.pop(title, {}).items()}
        return entries, known, rest

    def _create_all_weights(self, var_list: Sequence[Tensor]) -> None:
        raise NotImplementedError

    def _restore_pending(self, var_list: Sequence[Tensor]) -> None:
        """Put pending slots of these variables in place."""
        if not self._pending:
            return
        owners, wanted = self._owners(), {id(var) for var in var_list}
        called = _names_in_state(owners, self._pending)
        found = {
            title: self._pending[title]
            for _, title, var in called
            if id(var) in wanted and title in self._pending
        }
        entries, known, _ = self._slot_entries(called, found, all_of_them=False)
        differences = state.differences(entries, known)
        if differences:
            raise state.mismatch(differences, outcome="The step was not taken.")
        if self._awaits and var_list:
            self._awaits = False
            if not found:
                warn(
                    f"{self._name} loaded slots for {_list_quoted(self._pending)}, but the first"
                    f" step is over {_list_quoted(_titles_of(owners))}, whose slots begin anew."
                    " Name the variables by thalweg.named_variables(module), or give them to"
                    " load_state_dict.",
                    NumericsWarning,
                )
        pops = [partial(self._pending.pop, title) for title in found]
        state.restore(state.Loading([(each, known[each.name]) for each in entries], pops))


def _check_form(given: object, class_name: str) -> None:
    """Refuse what is no state of this class of optimizer."""
    if not isinstance(given, dict) or not isinstance(given.get("class_name"), str):
        raise ValueError(
            "state_dict must be what state_dict() of an optimizer returned. Nothing was loaded."
        )
    if given["class_name"] != class_name:
        raise ValueError(
            f"The state is of {given['class_name']}, this optimizer is {class_name}."
            " Nothing was loaded."
        )
    version = given.get("format")
    if type(version) is not int or version != FORMAT:
        raise state.mismatch([f"The state is of format {state.shown(version)}, not {FORMAT}"])
    found = _find_strange_parts(given)
    if not found:
        slots: Any = given["slots"]
        if len(_flatten_slots(slots)) < sum(len(own) or 1 for own in slots.values()):
            found = ["two slots have the same name"]
    if found:
        raise state.mismatch(found)


def _find_strange_parts(given: dict[str, Any]) -> list[str]:
    """What is missing, is too much, or is no dictionary of names."""
    found = [f"the state has no {key!r}" for key in _PARTS if key not in given]
    found += state.differences([], {key: None for key in given if key not in _PARTS})
    parts = {key: given[key] for key in _SECTIONS if key in given}
    if isinstance(parts.get("slots"), dict):
        parts |= {f"slots of {state.shown(name)}": own for name, own in given["slots"].items()}
    for title, part in parts.items():
        if not isinstance(part, dict):
            found.append(f"{title}: {state.shown(part)} is no dictionary")
        else:
            names = [state.shown(name) for name in part if not isinstance(name, str)]
            found += [f"{title}: {name} is no name" for name in names]
    return found


def _titles_of(variables: Sequence[Tensor]) -> list[str]:
    """What a state calls the variables: "w:0", and the second one "w:0#1"."""
    return state.distinct([name_of(var) for var in variables])


def _names_in_state(owners: Sequence[Tensor], given: Mapping[str, object]) -> list[Called]:
    """The variables by what a state calls them: "w:0", or "w", as in a file."""
    named = zip(state.keys_of(owners), _titles_of(owners), owners, strict=True)
    return [(key, title if title in given else key, var) for key, title, var in named]


def _named_by(names: Names, owners: Sequence[Tensor]) -> list[Called]:
    return [(name, name, var) for name, var in zip(names(owners), owners, strict=True)]


def _float_type(value: Any) -> torch.dtype:
    with torch._C.DisableTorchFunctionSubclass():
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.dtype if is_float else torch.float32


def _key_of(title: str) -> str:
    return title.replace(":0", "", 1)


def _flatten_slots(slots: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Slots by their full names."""
    found: dict[str, object] = {}
    for title, own in slots.items():
        named = {f"{_key_of(title)}/{name}": value for name, value in own.items()}
        found |= named or {_key_of(title): None}
    return found


def _list_quoted(names: Iterable[str]) -> str:
    return listed((f"'{name}'" for name in names), most=4)
