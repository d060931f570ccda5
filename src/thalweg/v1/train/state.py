"""State of a v1 optimizer: slots of each variable, and optimizer-wide variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from thalweg import _graph, distribute
from thalweg._base.execution_context import graph_of
from thalweg._core.dtensor import is_imported
from thalweg._core.hyperparameters import is_function
from thalweg._core.slot_dict_view import SlotsByName, SlotsOfName
from thalweg._core.state import Entry
from thalweg._core.trackable import TrackableSlots
from thalweg._graph.slice_info import mark_slice_like
from thalweg.formula import Slot
from thalweg.v1.train.slot_creator import base_name, scoped_name
from thalweg.variable import Variable, as_dtype, over, to_tensor


class State(TrackableSlots):
    """Base class of `Optimizer` that stores slots and optimizer-wide variables.

    In graph mode, the state consists of graph variables, separate for each graph. During a run of a
    session, `get_slot` and `_get_non_slot_variable` return the session's tensors.
    """

    PER_GRAPH = True

    _name: str
    _under_way: Any
    _slots: SlotsByName

    def __init__(self) -> None:
        self._maybe_initialize_trackable()
        self._slots = SlotsByName()
        self._non_slots: dict[tuple[str, Any], Any] = {}
        # How often each full name was used in eager mode.
        self._slot_names: dict[str, int] = {}

    def get_slot(self, var: Any, name: str) -> Any:
        """Return the slot `name` of a variable, or None if the slot does not exist (yet).

        If a `thalweg.distribute.Strategy` shards slots, return a copy of the full slot; all ranks
        must call this method.

        Args:
            var: A variable that was passed to `minimize` or `apply_gradients`.
            name: A name from `get_slot_names()`.
        """
        var = var if _graph.executing_eagerly() else _graph.graph_variable_of(var)
        slot = self._slots.get(var, name)
        if slot is None:
            self._settle(var, name)
            slot = self._slots.get(var, name)
        if slot is not None and self._slots.parts_of(name) is not None:
            with self._locked():
                return over(self._slots.whole(var, name), slot.name)
        # The caller may write to the slot: replays compare such slots before a step.
        self._slots.handed_out([slot])
        return slot

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots made so far, sorted; [] before the first step."""
        self._settle()
        return sorted(self._slots.names())

    def variables(self) -> list[Any]:
        """Return a new list of all slots and optimizer-wide variables, sorted by name.

        In graph mode, the list has only variables of the default graph. In eager mode, it has only
        eager variables; missing slots whose values were restored are created first.
        """
        self._settle()
        graph = graph_of()
        all_vars = [slot for _, _, slot in self._slots.triples()] + list(self._non_slots.values())
        variables = [var for var in all_vars if getattr(var, "graph", None) is graph]
        self._slots.handed_out(variables)
        return sorted(variables, key=base_name)

    def _var_key(self, var: object) -> Any:
        return self._slots.key(var)

    def _slot_dict(self, slot_name: str) -> SlotsOfName:
        """Return the slots of a name by `_var_key` of their variable; it can be written to."""
        return SlotsOfName(self._slots, slot_name)

    def _zeros_slot(self, var: object, slot_name: str, op_name: str) -> Any:
        """Return the slot of a variable; if missing, make it of zeros in the variable's dtype."""
        self._fill_slots([var], 0.0, slot_name, op_name)
        return self.get_slot(var, slot_name)

    def _fill_slots(
        self,
        variables: Sequence[Any],
        initial_value: float,
        slot_name: str,
        op_name: str,
        kind: Slot | None = None,
    ) -> None:
        """Create the missing slots of several variables, filled with a number.

        Args:
            variables: Eager variables, or variables of one graph.
            slot_name, op_name: The name for `get_slot`; the last part of the variable's name.
            kind: Optional. The rule's description of the slot.
        """
        missing = [var for var in variables if self._slots.get(var, slot_name) is None]
        if missing:
            if is_imported():
                distribute.keep_local_slots(self._slots, missing)
            names = [self._slot_title(var, op_name) for var in missing]
            slots = self._slots.make(missing, slot_name, initial_value, names, kind)
            self._take_slots(slot_name, missing, slots)

    def _get_or_make_slot(self, var: object, val: object, slot_name: str, op_name: str) -> Any:
        """Return a slot of a variable; create the slot with the value `val` if missing.

        Args:
            val: The initial value: a tensor, array or number.
            slot_name, op_name: The name for `get_slot`; the last part of the variable's name.
        """
        if self._slots.get(var, slot_name) is None:
            self._put_slot(var, val, slot_name, op_name)
        return self.get_slot(var, slot_name)

    def _get_or_make_slot_with_initializer(
        self,
        var: object,
        initializer: Callable[..., object],
        shape: Sequence[int],
        dtype: object,
        slot_name: str,
        op_name: str,
    ) -> Any:
        """Return a slot of `var`; if missing, create it with `initializer(shape, dtype=dtype)`."""
        if self._slots.get(var, slot_name) is None:
            initial_value = initializer(tuple(shape), dtype=as_dtype(dtype))
            if not _graph.is_symbolic(initial_value):
                initial_value = to_tensor(initial_value, dtype).expand(tuple(shape))
            self._put_slot(var, initial_value, slot_name, op_name)
        return self.get_slot(var, slot_name)

    def _put_slot(self, var: Any, val: Any, slot_name: str, op_name: str) -> None:
        """Create a slot and register it; see `_get_or_make_slot` for the arguments."""
        name = self._slot_title(var, op_name)
        if not _graph.is_symbolic(val):
            val = to_tensor(val, getattr(val, "dtype", var.dtype)).detach().to(var.device)
        if isinstance(var, _graph.GraphVariable):
            with var.graph.as_default():
                slot: Any = _graph.make_variable(val, name, like=var)
            mark_slice_like(slot, var)
        else:
            slot = over(val.clone(), name)
        self._take_slots(slot_name, [var], [self._slots.put(var, slot_name, slot)])

    def _slot_title(self, var: object, op_name: str) -> str:
        """Return a slot's name such as `w/Adam`; in eager mode, `w/Adam_1` for the second slot."""
        name = f"{base_name(var)}/{op_name}"
        if _graph.is_symbolic(var):
            return scoped_name(var, name)
        count = self._slot_names.get(name, 0)
        self._slot_names[name] = count + 1
        return f"{name}_{count}" if count else name

    def _create_non_slot_variable(self, initial_value: Any, name: str, colocate_with: Any) -> Any:
        """Return the optimizer-wide variable `name`; create it if missing.

        If a checkpoint with the variable was restored before, create it with the restored value.

        Args:
            initial_value: A number, array or tensor, or a callable without arguments that returns a
                value. The value sets the dtype; a float gives float32.
            name: The name of the variable; in a graph, the name scope is prepended.
            colocate_with: A graph variable, in whose graph `name` is created; or an eager variable.
        """
        graph = getattr(_graph.handle_of(colocate_with), "graph", None)
        if (name, graph) not in self._non_slots:
            # A beta may be a callable: the power begins with its first result.
            if is_function(initial_value):
                initial_value = initial_value()
            if graph is None:
                restored_value = self._begun(name, initial_value)
                variable: Any = Variable(restored_value, name=name, trainable=False)
            else:
                with graph.as_default():
                    template = _graph.handle_of(colocate_with)
                    variable = _graph.make_variable(
                        initial_value, graph.scope + name, like=template
                    )
            self._handle_deferred_dependencies(name=name, trackable=variable)
            self._non_slots[name, graph] = variable
        return _graph.resolve(self._non_slots[name, graph])

    def _get_non_slot_variable(self, name: str, graph: object = None) -> Any:
        """Return the optimizer-wide variable `name` of a graph, or None if it does not exist.

        If `graph` is None, use the graph of the running session, or the default graph while hooks
        build operations. Outside of both, return the variable of eager mode.
        """
        session, step = _graph.current_session(), self._under_way
        if graph is None and session is not None:
            graph = session.graph
        elif graph is None and step is not None and step.builds:
            graph = _graph.get_default_graph()
        return _graph.resolve(self._non_slots.get((name, graph)))

    def _non_slots_of(self, graph: object) -> dict[str, Any]:
        """Return the optimizer-wide variables of a graph, or of eager mode for None, by name."""
        return {name: var for (name, key), var in self._non_slots.items() if key is graph}

    @property
    def _non_slot_dict(self) -> Mapping[tuple[str, object], object]:
        """Read-only {(name, graph or None): variable} of optimizer-wide variables."""
        return MappingProxyType(self._non_slots)

    def _non_slot_variables(self) -> list[object]:
        """Return the optimizer-wide variables of all graphs."""
        return list(self._non_slots.values())

    def _own_children(self) -> dict[str, object]:
        """Return the present graph's optimizer-wide variables by name, sorted."""
        return dict(sorted(self._non_slots_of(graph_of()).items()))

    def _lookup_dependency(self, name: str) -> object:
        """Return the tracked object or the present graph's optimizer-wide variable of this name."""
        child = self._tracked.get(name)
        # A subclass may override `_get_non_slot_variable`, as in TensorFlow.
        return self._get_non_slot_variable(name, graph=graph_of()) if child is None else child

    def _own_entries(self) -> list[Entry]:
        """Return the optimizer-wide variables as entries of a state."""
        return [Entry(name, variable) for (name, _), variable in self._non_slots.items()]
