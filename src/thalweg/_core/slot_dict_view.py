"""Slots as dicts, as in the attribute `_slots` of TensorFlow's optimizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any, ClassVar, cast

from torch import Tensor

from thalweg._base.execution_context import handle_of, is_symbolic, resolve
from thalweg._base.tensorflow_names import unique_id
from thalweg._core.slots import SlotStore
from thalweg.variable import Variable, tensor_of


def variable_key(var: object) -> str:
    """Return a name that is unique among variables of eager mode, or of the variable's graph."""
    handle = handle_of(var)
    return handle.op.name if is_symbolic(handle) else unique_id(handle)


def variable_key_in_graph(var: object) -> Any:
    """Return a unique key of a variable: (graph, name) for one of a graph, else `variable_key`."""
    handle = handle_of(var)
    return (handle.graph, handle.op.name) if is_symbolic(handle) else unique_id(handle)


class _SlotDict(SlotStore, Mapping[Any, Mapping[Any, Any]]):
    """Slot store that is also a read-only dict of dicts of slots."""

    BY_NAME: ClassVar[bool]

    def _nested(self) -> dict[object, dict[object, object]]:
        nested: dict[Any, dict[Any, Any]] = {}
        for var, name, slot in self.triples():
            outer, inner = (name, self.key(var)) if self.BY_NAME else (self.key(var), name)
            nested.setdefault(outer, {})[inner] = resolve(slot)
        return nested

    def get(self, var: Any, name: Any = None) -> Any:
        """Return the slot `name` of a variable; with a string as `var`, as `dict.get` does."""
        if not isinstance(var, str):
            return super().get(var, name)
        try:
            return self[var]
        except KeyError:
            return name

    def __getitem__(self, key: object) -> Mapping[Any, Any]:
        entries = self._nested()[key]
        self.handed_out(entries.values())
        return MappingProxyType(entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._nested())

    def __len__(self) -> int:
        return len(self._nested())

    def __repr__(self) -> str:
        return repr(self._nested())

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


class SlotsOfName(MutableMapping[Any, Any]):
    """Mutable dict {variable key: slot} of the slots with one name, for `_slot_dict`.

    Setting a key stores the variable's slot.
    """

    def __init__(self, store: SlotsByName, name: str) -> None:
        self._store = store
        self._name = name

    def _slots(self) -> Mapping[Any, Any]:
        return self._store.slots_of(self._name)

    def __getitem__(self, key: object) -> Any:
        slot = self._slots()[key]
        self._store.handed_out([slot])
        return slot

    def __setitem__(self, key: object, slot: Any) -> None:
        self._store.put_by_key(key, self._name, slot)

    def __delitem__(self, key: object) -> None:
        self._store.forget_by_key(key, self._name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._slots())

    def __len__(self) -> int:
        return len(self._slots())

    def __repr__(self) -> str:
        return repr(dict(self._slots()))

    def __copy__(self) -> dict[Any, Any]:
        # `Session.run` writes the values of the slots into a copy.
        return dict(self._slots())


class SlotsByName(_SlotDict):
    """Slots as a dict of TensorFlow 1: {slot name: {variable key: slot}}.

    A slot may be set for the key of a variable that the store does not have yet. It is stored when
    that variable is first used.
    """

    BY_NAME = True

    def __init__(self) -> None:
        super().__init__()
        # Slots under keys of variables of eager mode that have not been met yet.
        self._unclaimed: dict[tuple[str, object], Any] = {}

    def key(self, var: object) -> Any:
        return variable_key_in_graph(var)

    def get(self, var: Any, name: Any = None) -> Any:
        """See `_SlotDict.get`; the variable claims the slots that were put under its key."""
        if self._unclaimed and not isinstance(var, str):
            self._claim(tensor_of(var))
        return super().get(var, name)

    def all_of(self, var: Tensor) -> dict[str, Variable]:
        """See `SlotStore.all_of`; the variable claims the slots that were put under its key."""
        if self._unclaimed:
            self._claim(var)
        return super().all_of(var)

    def _claim(self, var: Tensor) -> None:
        """Store the slots that were set under the key of `var` before the variable was used."""
        var_key = self.key(var)
        for name in [name for name, key in self._unclaimed if key == var_key]:
            self.put(var, name, self._unclaimed.pop((name, var_key)))

    def __getitem__(self, key: Any) -> Mapping[Any, Any]:
        if not self.slots_of(key):
            raise KeyError(key)
        return SlotsOfName(self, key)

    def slots_of(self, name: object) -> dict[Any, Any]:
        """Return the slots of a name by the keys of their variables."""
        return self._nested().get(name, {})

    def _nested(self) -> dict[object, dict[object, object]]:
        nested = super()._nested()
        for (name, key), slot in self._unclaimed.items():
            nested.setdefault(name, {})[key] = slot
        return nested

    def put_by_key(self, key: Any, name: str, slot: Any) -> None:
        """Store a slot under the key of its variable, which may be used later."""
        var = self._owner_of(key)
        if var is None:
            self._unclaimed[name, key] = slot
        else:
            self.put(var, name, slot)

    def forget_by_key(self, key: Any, name: str) -> None:
        """Remove the slot under a key; raise KeyError if there is none."""
        if key not in self.slots_of(name):
            raise KeyError(key)
        if self._unclaimed.pop((name, key), None) is None:
            self.forget(self._owner_of(key), name)

    def _owner_of(self, key: Any) -> Any:
        """Return the variable with a key, if it has slots or belongs to a graph; else None."""
        for var in self.owners():
            if self.key(var) == key:
                return var
        if not isinstance(key, tuple):
            return None
        graph, name = cast("tuple[Any, str]", key)
        return graph.get_tensor_by_name(f"{name}:0")


class SlotsByVariable(_SlotDict):
    """Slots as a dict of Keras: {variable key: {slot name: slot}}."""

    BY_NAME = False

    def key(self, var: object) -> Any:
        return variable_key(var)
