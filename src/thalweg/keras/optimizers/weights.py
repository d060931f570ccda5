"""Variables of an optimizer: `iterations`, slots and weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg import distribute
from thalweg._base.execution_context import (
    SymbolicVariable,
    executing_eagerly,
    is_symbolic,
    resolve,
    thread,
)
from thalweg._base.showing import show_value
from thalweg._base.tracing import untraced
from thalweg._core.dtensor import any_on_mesh
from thalweg._core.graph_mode import graph_mode
from thalweg._core.hyperparameters import is_function
from thalweg._core.reentrance import check_no_step
from thalweg._core.slot_dict_view import SlotsByVariable
from thalweg._core.slots import SlotStore
from thalweg._core.state import Entry, Loading, of_slots, readable, restore
from thalweg._core.trackable import TrackableSlots
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.formula import Slot
from thalweg.keras import backend
from thalweg.variable import (
    Variable,
    VariableAggregation,
    VariableSynchronization,
    as_dtype,
    dtype_name,
    name_of,
    numpy_value,
    over,
    to_tensor,
)

# Dtypes that `iterations` may have.
COUNTERS = (torch.int64, torch.int32)
_FILL = {"zeros": 0.0, "ones": 1.0}


def initial_value(initializer: Any, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a new tensor with an initial value; it is on the CPU unless the value is a tensor.

    If a callable `initializer` returns a graph tensor, return the graph tensor unchanged.

    Args:
        initializer: "zeros", "ones", a value, or a callable: `initializer(shape, dtype=dtype)`
            returns a value.
        shape, dtype: Of the result.

    Raises:
        ValueError: The name is unknown, or the value does not fit the shape.
    """
    if isinstance(initializer, str):
        if initializer not in _FILL:
            raise ValueError(f"Unknown initializer {initializer!r}; known: {', '.join(_FILL)}.")
        return torch.full(tuple(shape), _FILL[initializer], dtype=dtype, device="cpu")
    if callable(initializer) and not isinstance(initializer, Tensor):
        initializer = initializer(tuple(shape), dtype=dtype)
        if is_symbolic(initializer):
            return initializer
    value = to_tensor(initializer).detach().to(dtype)
    # Steps write to slots, so that each element needs memory of its own: `clone` after `expand`.
    try:
        return value.expand(tuple(shape)).clone()
    except RuntimeError:
        raise ValueError(
            f"The initial value has shape {tuple(value.shape)}, expected {tuple(shape)}."
        ) from None


class Weights(TrackableSlots):
    """Base class of `Optimizer` that stores `iterations`, slots and other weights."""

    _name: str

    def __init__(self) -> None:
        self._maybe_initialize_trackable()
        self._iterations: Any = None
        # `iterations`, if a user has set it.
        self._counts_for: Tensor | None = None
        self._slots = SlotsByVariable()
        self._weights: list[Tensor] = []
        self._added_weights: list[Tensor] = []

    def _with_inner(self) -> list[Weights]:
        """Return this optimizer and, recursively, the optimizers that it tracks."""
        inner = [child for child in self._tracked.values() if isinstance(child, Weights)]
        return [self, *(nested for optimizer in inner for nested in optimizer._with_inner())]

    @property
    def iterations(self) -> Tensor:
        """Number of training steps of this optimizer, a variable."""
        if self._iterations is None:
            self._iterations = self._make_tracked_variable(np.int64(0), "iter")
            # `weights` begins with `iterations` even if slots were created before.
            self._weights.insert(0, self._iterations)
        return resolve(self._iterations) if thread.frames else self._iterations

    def _steps_taken(self) -> int | None:
        """Return the value of `iterations`; None before it exists or in a graph."""
        count = None if self._iterations is None else self.iterations
        return None if count is None or is_symbolic(count) else int(count)

    def _make_variable(self, name: str, initial_value: object) -> Any:
        """Return a new untrained variable of the optimizer.

        In graph mode it belongs to the graph and is named below the current name scope.
        """
        if executing_eagerly():
            full_name = f"{self._name}/{name}"
            return Variable(self._begun(name, initial_value), full_name, trainable=False)
        return graph_mode().variable(initial_value, name)

    def _make_tracked_variable(self, initial_value: object, name: str) -> Any:
        """Return a new untrained variable and track it under its name."""
        variable = self._make_variable(name, initial_value)
        self._handle_deferred_dependencies(name=name, trackable=variable)
        return variable

    @iterations.setter
    def iterations(self, variable: Tensor) -> None:
        if self._iterations is not None:
            raise RuntimeError(
                "Cannot set `iterations` to a new Variable after the Optimizer weights have been"
                f" created. Here it is attempting to set `iterations` to {show_value(variable)}."
            )
        if not _is_counter(variable):
            raise InvalidTypeError(
                f"iterations must be an integer scalar, not {show_value(variable)}."
            )
        if not is_symbolic(variable) and variable < 0:
            raise InvalidArgumentError(f"iterations must be 0 or more, not {variable.item()}.")
        self._handle_deferred_dependencies(name="iter", trackable=variable)
        self._iterations = self._counts_for = variable
        self._weights.insert(0, variable)

    def add_slot(
        self,
        var: Tensor,
        slot_name: str,
        initializer: Any = "zeros",
        shape: Sequence[int] | None = None,
    ) -> Variable:
        """Create and return a slot of `var`; return an existing slot unchanged.

        Args:
            var: A variable.
            slot_name: Name of the slot.
            initializer: "zeros", "ones", or a callable: `initializer(shape, dtype=dtype)` returns a
                value. A number, array, tensor or variable is the value itself.
            shape: Shape of the slot. None selects the shape of the value, or of `var` if
                `initializer` is a string or callable.

        Returns:
            The slot, of the variable's dtype and device.

        Raises:
            ValueError: The value cannot be expanded to `shape`.
            TypeError: `var` is not a variable.
        """
        existing_slot = self._slots.get(var, slot_name)
        if existing_slot is not None:
            return existing_slot
        if not isinstance(var, Tensor | SymbolicVariable):
            raise InvalidTypeError(f"add_slot needs a variable, not {show_value(var)}.")
        has_var_shape = shape is None or tuple(shape) == tuple(var.shape)
        if has_var_shape and isinstance(initializer, str) and initializer in _FILL:
            return self._add_slots([var], slot_name, _FILL[initializer])[0]
        name = self._slot_title(var, slot_name)
        value: Any = initializer
        if not is_symbolic(initializer):
            if shape is None:
                fits_any_shape = isinstance(initializer, str) or is_function(initializer)
                shape = var.shape if fits_any_shape else tuple(np.shape(initializer))
            value = initial_value(initializer, shape, var.dtype)
        if isinstance(var, SymbolicVariable):
            slot: Any = graph_mode().slot(var, value, name)
        else:
            slot = over(value.to(var.device), name)
        self._take_slots(slot_name, [var], [self._slots.put(var, slot_name, slot)])
        return slot

    def _add_slots(
        self, variables: Sequence[Tensor], name: str, initial: float, kind: Slot | None = None
    ) -> list[Variable]:
        """Create slots for the variables that lack a slot `name`; return the new slots.

        All elements are `initial`. `kind`, if not None, defines the shape and dtype.
        """
        missing = [var for var in variables if self._slots.get(var, name) is None]
        if not missing:
            return []
        # Slots of DTensors are stored as slots of their local parts.
        if any_on_mesh(missing):
            distribute.keep_local_slots(self._slots, missing)
        names = [self._slot_title(var, name) for var in missing]
        new_slots = self._slots.make(missing, name, initial, names, kind)
        self._take_slots(name, missing, new_slots)
        return new_slots

    def _take_store(self, store: SlotStore, replacements: dict[int, Any]) -> None:
        """Replace the slots, as the base class does, in `weights`, too."""
        super()._take_store(store, replacements)
        self._weights = [replacements.get(id(weight), weight) for weight in self._weights]

    def _keep_slot(self, slot: Tensor) -> None:
        """Add a new slot to `weights`."""
        self._weights.append(slot)

    def _slot_title(self, var: Any, slot_name: str) -> str:
        """Return the name of a slot: "SGD/w/momentum", in a graph "<name scope>/w/momentum"."""
        path = f"{name_of(var).split(':')[0]}/{slot_name}"
        return f"{var.graph.scope}{path}" if is_symbolic(var) else f"{self._name}/{path}"

    def get_slot(self, var: Tensor, slot_name: str) -> Variable:
        """Return a slot of `var`; it is a copy if a `thalweg.distribute.Strategy` shards slots.

        With sharded slots, all ranks must call this method.

        Raises:
            KeyError: The variable has no slot of this name (yet).
            ReplicaLostError: Slots are sharded, and a rank has not called this method.
        """
        var = var if executing_eagerly() else graph_mode().variable_of(var)
        slot = self._slots.get(var, slot_name)
        if slot is None:
            self._settle(var, slot_name)
            slot = self._slots.get(var, slot_name)
        waiting: Any = None if slot is not None else self._waiting.get(var, slot_name)
        if waiting is not None and executing_eagerly():
            # A restored slot that `_create_slots` does not make.
            slot = self.add_slot(var, slot_name, shape=tuple(waiting.value().shape))
        if slot is None:
            slot_names = ", ".join(self._slots.all_of(var))
            hint = f" It has {slot_names}." if slot_names else " It has none before its first step."
            raise KeyError(f"'{name_of(var)}' has no slot {slot_name!r}.{hint}")
        if self._slots.parts_of(slot_name) is not None:
            with self._lock:
                return over(self._slots.whole(var, slot_name), slot.name)
        # The caller may write to the slot, which replays must then notice.
        self._slots.handed_out([slot])
        return slot

    def get_slot_names(self) -> list[str]:
        """Return the names of the slots in order of creation; [] before the first step."""
        self._settle()
        return self._slots.names()

    def add_weight(
        self,
        name: str,
        shape: Sequence[int],
        dtype: object = None,
        initializer: object = "zeros",
        trainable: bool | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
    ) -> Variable:
        """Create a variable of the optimizer that is not a slot and not in `weights`; return it.

        Args:
            name, shape, dtype, initializer, trainable: Of the variable.
            synchronization: `ON_READ` creates a separate value per replica.
            aggregation: How `assign`, `assign_add` and `assign_sub` combine the values of a
                strategy's replicas: `SUM`, `MEAN` or `ONLY_FIRST_REPLICA`. With `NONE`, each
                replica assigns its own value. In graph mode, values are combined when a session
                runs the assignment.

        Differs from:
            TensorFlow raises an error for an assignment in a replica without aggregation.

        Raises:
            ValueError: Trainable together with `VariableSynchronization.ON_READ`; or an unknown
                `aggregation` or `synchronization`.
        """
        synchronization = distribute.as_mode(VariableSynchronization, synchronization)
        aggregation = distribute.as_mode(VariableAggregation, aggregation)
        if synchronization is VariableSynchronization.ON_READ:
            if trainable:
                raise ValueError(
                    "Synchronization value can be set to VariableSynchronization.ON_READ only for"
                    " non-trainable variables. You have specified trainable=True."
                )
            trainable = False
        value = initial_value(initializer, shape, as_dtype(dtype or torch.float32))
        if executing_eagerly():
            start = self._begun(name, value)
            weight: Any = Variable(start, name, trainable=trainable is not False)
        else:
            weight = graph_mode().variable(value, name, trainable is not False)
        weight = distribute.aggregate_assignments(weight, synchronization, aggregation)
        self._track_trackable(weight, name, overwrite=True)
        self._added_weights.append(weight)
        return resolve(weight)

    @property
    def weights(self) -> list[Tensor]:
        """Variables of the optimizer in order of creation, `iterations` first.

        Where slots are sharded over ranks, the flat shards of this rank.
        """
        self._settle()
        self._slots.handed_out(self._weights)
        return list(self._weights)

    def variables(self) -> list[Tensor]:
        """Return the optimizer's variables in order of creation, `iterations` first."""
        return self.weights

    @untraced
    def get_weights(self) -> list[Any]:
        """Return the values of `weights` as a list of NumPy arrays, bfloat16 as float32.

        If a `thalweg.distribute.Strategy` shards slots, all ranks must call this method and receive
        all values.
        """
        self._settle()
        listed_weights = self._list_weights()
        if any(map(is_symbolic, listed_weights)):
            return backend.batch_get_value(listed_weights)
        with self._lock:
            return [numpy_value(entry.read()) for entry in self._list_weight_entries()]

    @untraced
    def set_weights(self, weights: Sequence[object]) -> None:
        """Assign a list of values to `weights`, in order, converted to each weight's dtype.

        Raises:
            ValueError: The list has another length, an array has another shape, a weight's dtype
                cannot hold a value, or iterations is negative. Nothing is set then.
        """
        self._settle()
        weights = self._adapted_weights(list(weights))
        listed_weights = self._list_weights()
        if len(weights) != len(listed_weights):
            hint = (
                " Slots appear at the first apply_gradients; before it, use"
                " load_state_dict(state, var_list=variables)."
            )
            raise ValueError(
                f"You called `set_weights(weights)` on optimizer {self._name} with a  weight list"
                f" of length {len(weights)}, but the optimizer was expecting {len(listed_weights)}"
                f" weights. Provided weights: {str(weights)[:50]}..."
                f"{'' if self._slots.names() else hint}"
            )
        entries = self._list_weight_entries()
        # All values are validated before the first is written.
        values = list(map(_fit_value, entries, weights))
        if self._iterations is not None and values[0] < 0:
            raise InvalidArgumentError(f"iterations must be 0 or more, not {values[0].item()}.")
        if any(map(is_symbolic, listed_weights)):
            backend.batch_set_value(zip(listed_weights, values, strict=True))
            return
        with self._lock.to_load():
            check_no_step(self._plans, self._name, "set_weights")
            restore(Loading(list(zip(entries, values, strict=True))))
            self._lock.loaded()

    def _list_weights(self) -> list[Tensor]:
        """Return `weights`, which a subclass that wraps optimizers may extend."""
        is_inherited = type(self).weights is Weights.weights
        return self._weights if is_inherited else self.weights

    def _list_weight_entries(self) -> list[Entry]:
        """Return an `Entry` per element of `weights`; `read` gathers sharded slots of all ranks."""
        slot_entries = {
            id(entry.own): entry
            for optimizer in self._with_inner()
            for var in optimizer._slots.owners()
            for entry in of_slots(optimizer._slots, var, "")
        }
        listed_weights = self._list_weights()
        entries = [slot_entries.get(id(weight)) for weight in listed_weights]
        pairs = zip(entries, listed_weights, strict=True)
        return [entry or Entry(name_of(weight), weight) for entry, weight in pairs]

    def _own_children(self) -> dict[str, object]:
        """Return the variables other than slots, by their names in checkpoints."""
        return {} if self._iterations is None else {"iter": self._iterations}

    def _adapted_weights(self, weights: list[object]) -> list[object]:
        """Hook: return the weights to set, converted from lists of other lengths."""
        return weights


def _is_counter(variable: object) -> bool:
    """Return True for an integer scalar variable."""
    shape, dtype = getattr(variable, "shape", None), getattr(variable, "dtype", None)
    return isinstance(variable, Tensor | SymbolicVariable) and shape == () and dtype in COUNTERS


def _fit_value(entry: Entry, value: object) -> Tensor:
    """Return `value`, a tensor or array, as a tensor of the dtype of the weight `entry.own`.

    Raises:
        ValueError: The shapes differ.
        InvalidTypeError: The value is not numeric, or complex.
        InvalidArgumentError: The weight has integers, and the value is not an integer.
    """
    weight, shape = entry.own, tuple(entry.shape)
    name = name_of(weight)
    try:
        array = value if isinstance(value, Tensor) else to_tensor(np.asarray(value))
    except TypeError:
        raise InvalidTypeError(f"The value for '{name}' is no array of numbers.") from None
    array = readable(array, f"The value for '{name}'")
    if shape != tuple(array.shape):
        raise ValueError(
            f"Optimizer weight shape {shape} not compatible with provided"
            f" weight shape {tuple(array.shape)}."
        )
    if array.is_complex():
        raise InvalidTypeError(f"The value for '{name}' is {dtype_name(array.dtype)}, not real.")
    weight_value = array.detach().to(weight.dtype)
    # The conversion back reveals fractions and integers out of range.
    if not weight.dtype.is_floating_point and not torch.equal(weight_value.to(array.dtype), array):
        raise InvalidArgumentError(
            f"'{name}' is {dtype_name(weight.dtype)} and cannot hold {array.tolist()!r}."
        )
    return weight_value
