"""`state_dict` and `load_state_dict` of Keras optimizers: state by variable names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg._base.execution_context import executing_eagerly, is_symbolic
from thalweg._base.tracing import untraced
from thalweg._core import state
from thalweg._core.grads_and_vars import distinct, flatten
from thalweg._core.graph_mode import graph_mode
from thalweg._core.state import Entry, Names, Number
from thalweg.errors import NumericsWarning, listed, warn
from thalweg.keras.optimizers.hyperparameters import Hypers
from thalweg.keras.optimizers.weights import COUNTERS
from thalweg.variable import name_of

FORMAT = 1
_SECTIONS = ("hyperparameters", "weights", "slots")
# Prefix of the names of a variable's slots, the variable's name in a state, and the variable.
SlotKey = tuple[str, str, Tensor]
_KEYS = ("class_name", "format", "iterations", *_SECTIONS)


class KerasStateDict(Hypers, state.StateDict):
    """Base class of `Optimizer` that saves and loads state.

    Attributes:
        EXTRA: Names of the class's scalar weights that belong to no variable.
    """

    EXTRA: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._pending: dict[str, dict[str, Tensor]] = {}
        # True while no variable of a loaded state has been trained.
        self._awaits = False

    def _foreign(self) -> list[object]:
        """Return tensors and callables from the user, which copies share with the original."""
        weight_ids = {id(weight) for weight in self._weights if weight is not self._counts_for}
        tensors = [tensor for tensor in super()._foreign() if id(tensor) not in weight_ids]
        return tensors + [self._hyper.raw(name) for name in self._hyper]

    def _extra_weights(self) -> dict[str, Tensor]:
        """Return the existing weights named in `EXTRA`, by name."""
        return {}

    def _make_extra(self, name: str, weight_dtype: torch.dtype) -> None:
        """Create the weight `name` of `EXTRA`."""
        raise NotImplementedError

    @untraced
    def state_dict(self) -> dict[str, Any]:
        """Return copies of all state as a dict that `torch.load(weights_only=True)` reads.

        With slots sharded by `thalweg.distribute.Strategy`, all ranks must call `state_dict`; each
        rank receives all slots.

        Returns:
            "class_name", "format", "iterations" (int64 tensor), "hyperparameters" ({name: number},
            without schedules, callables and tensors), "weights" ({name: optimizer-wide tensor}) and
            "slots" ({variable name: {slot name: tensor}}). A second variable named "name:0" has the
            key "name:0#1".

        Raises:
            ReplicaLostError: A rank has not called `state_dict`.
            FailedPreconditionError: The state consists of graph variables, which `Saver` saves.
        """
        return self._saved(_name_variables)

    def _saved(self, names: Names = state.keys_of) -> dict[str, object]:
        """Return the dict of `state_dict()`; `names(variables)` returns the keys of variables."""
        self._check_eager()
        with self._lock:
            self._settle()
            variables = self._owners()
            slots = {
                name: {
                    entry.name[1:]: entry.read() for entry in state.of_slots(self._slots, var, "")
                }
                for name, var in zip(names(variables), variables, strict=True)
            }
            # A save before the first step must not lose loaded slots that still await variables.
            for name, pending_slots in self._pending.items():
                slots[name] = {key: value.clone() for key, value in pending_slots.items()}
            return {
                "class_name": type(self).__name__,
                "format": FORMAT,
                "iterations": self._make_counter_entry().read(),
                "hyperparameters": state.snapshot(self._number_entries()),
                "weights": state.snapshot(self._list_extra_entries()),
                "slots": slots,
            }

    @untraced
    def load_state_dict(
        self, state_dict: dict[str, object], var_list: Sequence[Tensor] | None = None
    ) -> None:
        """Load a dict that `state_dict()` returned; change nothing on an error.

        Variables are matched by name. Without `var_list`, saved slots of variables that have no
        slots yet are kept until the optimizer creates the slots.

        Args:
            state_dict: A dict that `state_dict` returned.
            var_list: Optional. Variables whose slots are created now. Then all saved slots must
                belong to variables with slots.

        Raises:
            ValueError: The state belongs to another class of optimizer.
            CheckpointMismatchError: Names, shapes or dtypes differ; lists up to ten differences.
            FailedPreconditionError: The state consists of graph variables, which `Saver` restores.
        """
        with self._loading(state_dict, var_list) as loading:
            state.restore(loading)

    def _given_state(self, state_dict: object, var_list: object) -> tuple[object, object]:
        """Return the validated (state dict, list of variables or None) for `load_state_dict`."""
        var_list = None if var_list is None else flatten(var_list)
        self._check_eager(var_list or ())
        _check_form(state_dict, type(self).__name__)
        return state_dict, var_list

    def _check_eager(self, variables: Sequence[object] = ()) -> None:
        """Raise FailedPreconditionError if state or variables are of a graph."""
        tensors = [*self._weights, *self._own_children().values(), *variables]
        state.check_eager(
            f"The state of {self._name}", tensors, self._weights or executing_eagerly()
        )

    def _state_parts(
        self, state_dict: dict[str, Any], variables: Sequence[Tensor] | None, names: Names
    ) -> tuple[str, list[state.Given]]:
        """Create missing slots; return ("", parts of the state). The text is a prefix of errors.

        A part is (tensors of self as `Entry`s, {entry name: saved value}, True if every entry needs
        a value).

        Args:
            variables: Variables whose slots are created now. With None and default `names`, saved
                slots of unknown variables wait for the variables' first step.
            names: `names(variables)` returns the key of each variable in `state_dict`.
        """
        slots, has_custom_names = state_dict["slots"], names is not state.keys_of
        self._pending = {}
        owners = self._slots.owners()
        if variables is not None:
            new_variables = distinct(variables)
            if new_variables:
                self._create_all_weights(new_variables)
            owners = distinct([*self._slots.owners(), *new_variables])
        for name in self.EXTRA if slots else state_dict["weights"].keys() & set(self.EXTRA):
            if name not in self._extra_weights():
                self._make_extra(name, _choose_float_dtype(state_dict["weights"].get(name)))
        if has_custom_names:
            keys = names(owners)
            slot_keys = list(zip(keys, keys, owners, strict=True))
        else:
            slot_keys = _match_names(owners, slots)
        entries, values, other_slots = self._slot_entries(slot_keys, slots)
        waiting = (
            self._reserve_pending(other_slots) if variables is None and not has_custom_names else []
        )
        self._awaits = bool(waiting) and not owners
        return "", [
            ([self._make_counter_entry()], {"iterations": state_dict["iterations"]}, True),
            (self._number_entries(includes_all=True), state_dict["hyperparameters"], False),
            (self._list_extra_entries(), state_dict["weights"], bool(slots)),
            (entries, values, True),
            (waiting, _flatten_slots(other_slots), True),
        ]

    def _reserve_pending(self, slots: dict[str, dict[str, Any]]) -> list[Entry]:
        """Reserve pending tensors for slots of unknown variables; return their entries."""
        for var_name, values in slots.items():
            self._pending[var_name] = {
                name: state.room_for(value) for name, value in values.items()
            }
        return [Entry(name, tensor) for name, tensor in _flatten_slots(self._pending).items()]

    def _make_counter_entry(self) -> Entry:
        """Return the entry of `iterations`."""
        return Entry("iterations", self.iterations, COUNTERS, lowest=0)

    def _number_entries(self, includes_all: bool = False) -> list[Number]:
        """Return entries of the numeric hyperparameters, or of all, others then with value 0."""
        hyper, values = self._hyper, self._hyper.numbers()
        names = hyper if includes_all else values
        return [Number(name, values.get(name, 0), partial(hyper.setting, name)) for name in names]

    def _list_extra_entries(self) -> list[Entry]:
        """Return the entries of the weights in `EXTRA`."""
        return [Entry(name, weight) for name, weight in self._extra_weights().items()]

    def _slot_entries(
        self,
        slot_keys: Sequence[SlotKey],
        saved_slots: dict[str, dict[str, Any]],
        includes_all: bool = True,
    ) -> tuple[list[Entry], dict[str, Any], dict[str, Any]]:
        """Return entries for the existing slots of variables, and the saved values by entry name.

        Args:
            slot_keys: (prefix of entry names, key in `saved_slots`, variable) tuples.
            saved_slots: {key: {slot name: saved value}}.
            includes_all: False to skip variables without saved slots.

        Returns:
            An `Entry` "<prefix>/<slot name>" per slot; {entry name: saved value}; and the rest of
            `saved_slots`, whose keys are not in `slot_keys`.
        """
        entries: list[Entry] = []
        values: dict[str, Any] = {}
        other_slots = dict(saved_slots)
        for key, var_name, var in slot_keys:
            if not includes_all and var_name not in saved_slots:
                continue
            entries += state.of_slots(self._slots, var, key)
            values |= {
                f"{key}/{name}": value for name, value in other_slots.pop(var_name, {}).items()
            }
        return entries, values, other_slots

    def _create_all_weights(self, var_list: Sequence[Tensor]) -> None:
        """Create `iterations`, hyperparameter variables and slots; set slots to pending values."""
        children = self._own_children().values()
        if any(map(is_symbolic, children)):
            graph_mode().check_graph(children, self._name)
        _ = self.iterations
        self._create_hypers()
        self._create_slots(list(var_list))
        self._restore_pending(var_list)

    def _restore_pending(self, var_list: Sequence[Tensor]) -> None:
        """Restore loaded slots that wait for variables in `var_list`.

        Raise CheckpointMismatchError if shapes or dtypes differ. In the first step after a load,
        warn if no waiting slot belongs to these variables.
        """
        if not self._pending:
            return
        variables, ids = self._owners(), {id(var) for var in var_list}
        slot_keys = _match_names(variables, self._pending)
        pending = {
            name: self._pending[name]
            for _, name, var in slot_keys
            if id(var) in ids and name in self._pending
        }
        entries, values, _ = self._slot_entries(slot_keys, pending, includes_all=False)
        differences = state.differences(entries, values)
        if differences:
            raise state.mismatch(differences, outcome="The step was not taken.")
        if self._awaits and var_list:
            self._awaits = False
            if not pending:
                warn(
                    f"{self._name} loaded slots for {_list_quoted(self._pending)}, but the first"
                    f" step is over {_list_quoted(_name_variables(variables))}, whose slots begin"
                    " anew. Name the variables by thalweg.named_variables(module), or give them to"
                    " load_state_dict.",
                    NumericsWarning,
                )
        pops = [partial(self._pending.pop, name) for name in pending]
        state.restore(state.Loading([(entry, values[entry.name]) for entry in entries], pops))


def _check_form(state_dict: object, class_name: str) -> None:
    """Raise unless `state_dict` is a state of the class `class_name` and of format `FORMAT`.

    Raise ValueError if it is no state or of another class, else CheckpointMismatchError.
    """
    if not isinstance(state_dict, dict) or not isinstance(state_dict.get("class_name"), str):
        raise ValueError(
            "state_dict must be what state_dict() of an optimizer returned. Nothing was loaded."
        )
    if state_dict["class_name"] != class_name:
        raise ValueError(
            f"The state is of {state_dict['class_name']}, this optimizer is {class_name}."
            " Nothing was loaded."
        )
    version = state_dict.get("format")
    if type(version) is not int or version != FORMAT:
        raise state.mismatch([f"The state is of format {state.shown(version)}, not {FORMAT}"])
    differences = _find_strange_sections(state_dict)
    if not differences:
        slots: Any = state_dict["slots"]
        # Slots are restored under joined names, "variable/slot", which must be distinct.
        if len(_flatten_slots(slots)) < sum(len(var_slots) or 1 for var_slots in slots.values()):
            differences = ["two slots have the same name"]
    if differences:
        raise state.mismatch(differences)


def _find_strange_sections(state_dict: dict[str, Any]) -> list[str]:
    """Return error texts for missing sections, unknown sections and sections that are not dicts."""
    differences = [f"the state has no {key!r}" for key in _KEYS if key not in state_dict]
    differences += state.differences([], {key: None for key in state_dict if key not in _KEYS})
    sections = {key: state_dict[key] for key in _SECTIONS if key in state_dict}
    if isinstance(sections.get("slots"), dict):
        sections |= {
            f"slots of {state.shown(name)}": slots for name, slots in state_dict["slots"].items()
        }
    for label, section in sections.items():
        if not isinstance(section, dict):
            differences.append(f"{label}: {state.shown(section)} is no dictionary")
        else:
            names = [state.shown(name) for name in section if not isinstance(name, str)]
            differences += [f"{label}: {name} is no name" for name in names]
    return differences


def _name_variables(variables: Sequence[Tensor]) -> list[str]:
    """Return the variables' names in a state: "w:0", and "w:0#1" for its second use."""
    return state.distinct([name_of(var) for var in variables])


def _match_names(variables: Sequence[Tensor], slots_by_name: Mapping[str, object]) -> list[SlotKey]:
    """Return slot keys of variables that a state names "w:0", or "w" as files do."""
    keys = zip(state.keys_of(variables), _name_variables(variables), variables, strict=True)
    return [(key, name if name in slots_by_name else key, var) for key, name, var in keys]


def _choose_float_dtype(value: Any) -> torch.dtype:
    """Return the dtype of a saved value if floating-point, else float32."""
    with torch._C.DisableTorchFunctionSubclass():
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.dtype if is_float else torch.float32


def _strip_suffix(name: str) -> str:
    """Return a name in a state without its ":0"."""
    return name.replace(":0", "", 1)


def _flatten_slots(slots: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return slots by full names such as "w/momentum"; None for a variable without slots."""
    flat: dict[str, object] = {}
    for var_name, var_slots in slots.items():
        named_slots = {
            f"{_strip_suffix(var_name)}/{name}": value for name, value in var_slots.items()
        }
        flat |= named_slots or {_strip_suffix(var_name): None}
    return flat


def _list_quoted(names: Iterable[str]) -> str:
    """Return names as quoted text, separated by commas."""
    return listed((f"'{name}'" for name in names), limit=4)
