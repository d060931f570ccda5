"""Slots read as the dicts that TensorFlow's optimizers keep under the name `_slots`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from thalweg.core.slots import SlotStore
from thalweg.ground.running import handle_of, is_symbolic, resolve
from thalweg.ground.tensorflow_names import unique_id


def variable_key(var: object) -> str:
    """A name that no other variable of eager mode, or of the graph, has."""
    handle = handle_of(var)
    return handle.op.name if is_symbolic(handle) else unique_id(handle)


def variable_key_in_graph(var: object) -> Any:
    """`variable_key`; of a variable of a graph with the graph."""
    handle = handle_of(var)
    return (handle.graph, handle.op.name) if is_symbolic(handle) else unique_id(handle)


class _SlotDict(SlotStore, Mapping[Any, Mapping[Any, Any]]):
    """A store that can be read as a dict of dicts, and is not written to as one."""

    BY_NAME: ClassVar[bool]

    def _nested(self) -> dict[object, dict[object, object]]:
        found: dict[Any, dict[Any, Any]] = {}
        for var, name, slot in self.triples():
            outer, inner = (name, self.key(var)) if self.BY_NAME else (self.key(var), name)
            found.setdefault(outer, {})[inner] = resolve(slot)
        return found

    def get(self, var: Any, name: Any = None) -> Any:
        """The slot called `name` of a variable; or as in a dict the slots of a key, else `name`."""
        if not isinstance(var, str):
            return super().get(var, name)
        try:
            return self[var]
        except KeyError:
            return name

    def __getitem__(self, key: object) -> Mapping[Any, Any]:
        found = self._nested()[key]
        self.handed_out(found.values())
        return MappingProxyType(found)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._nested())

    def __len__(self) -> int:
        return len(self._nested())

    def __repr__(self) -> str:
        return repr(self._nested())

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]


class SlotsByName(_SlotDict):
    """Those of TensorFlow 1: by the slot's name, then by its variable."""

    BY_NAME = True

    def key(self, var: object) -> Any:
        """See `variable_key_in_graph`."""
        return variable_key_in_graph(var)


class SlotsByVariable(_SlotDict):
    """Those of Keras: by the variable, then by the slot's name."""

    BY_NAME = False

    def key(self, var: object) -> Any:
        """See `variable_key`."""
        return variable_key(var)
