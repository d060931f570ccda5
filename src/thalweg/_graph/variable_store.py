"""Values of a session's variables. The *leaf* of a variable is the tensor that holds its value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from thalweg._base.context_managers import no_grad
from thalweg._base.execution_context import SessionVariable
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.atomic_section import Call
from thalweg._core.commit import putting_back
from thalweg._core.state import readable
from thalweg._graph.variables import GraphVariable
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.indexed_slices import IndexedSlices, with_values
from thalweg.variable import check_held, to_tensor


class Leaves:
    """Values of the variables of one session.

    Attributes:
        leaf_by_variable: {variable: tensor}.
        memory: The storage addresses of all these tensors.
        is_closed: True if the session cannot run any more.
    """

    def __init__(self) -> None:
        self.leaf_by_variable: dict[GraphVariable, SessionVariable] = {}
        self.memory: set[int] = set()
        self.is_closed = False
        # Why values were dropped; the end of the error for a missing value.
        self._lost = ""

    def __contains__(self, variable: GraphVariable) -> bool:
        return variable in self.leaf_by_variable

    def check_open(self) -> None:
        """Raise FailedPreconditionError if the session is closed."""
        if self.is_closed:
            raise FailedPreconditionError("Attempted to use a closed Session.")

    def kept_in(self) -> list[dict[Any, Any]]:
        """Return the dicts whose entries change if leaves are replaced, for checks by replays."""
        return [vars(self), self.leaf_by_variable]

    def get(self, variable: GraphVariable) -> SessionVariable:
        """Return the tensor of a variable.

        Raises:
            FailedPreconditionError: The variable is not initialized, or the session is closed.
            LayoutError: The tensor's storage is too small.
        """
        leaf = self.leaf_by_variable.get(variable)
        if leaf is None:
            # Another thread may have closed the session during the run.
            self.check_open()
            raise FailedPreconditionError(
                f"Attempting to use uninitialized value {variable.op.name}{self._lost}"
            )
        if leaf.untyped_storage().nbytes() < leaf.nbytes:
            check_held(leaf)
        return leaf

    def all_of(self, variables: Sequence[GraphVariable]) -> list[SessionVariable]:
        """Return the leaf tensors of variables, in order; see `get`."""
        leaves_by_variable, leaves = self.leaf_by_variable, []
        for variable in variables:
            leaf = leaves_by_variable.get(variable)
            if leaf is None or leaf.untyped_storage().nbytes() < leaf.nbytes:
                leaf = self.get(variable)
            leaves.append(leaf)
        return leaves

    def put(self, variable: GraphVariable, value: object) -> None:
        """Set the value of a variable, in place if the tensor has the shape and dtype of the value.

        Raises:
            InvalidArgumentError: The value does not have the variable's static shape.
            InvalidTypeError: The value is not numeric, or a tensor that cannot be read.
        """
        tensor = _check_fits(variable, value)
        leaf = self.leaf_by_variable.get(variable)
        if leaf is not None and leaf.shape == tensor.shape and leaf.dtype == tensor.dtype:
            leaf.assign(tensor)
            return
        new_leaf = _make_leaf(variable, tensor)
        # The address first: a superfluous address costs a copy, a missing one corrupts a value.
        if leaf is None:
            self.memory |= _addresses_of([new_leaf])
            self.leaf_by_variable[variable] = new_leaf
        else:
            self._call_to_set({**self.leaf_by_variable, variable: new_leaf})()

    def calls_to_load(self, values: Mapping[GraphVariable, torch.Tensor]) -> list[Call]:
        """Return functions without arguments that set all variables when called in order.

        Values are checked and converted now. The functions are written in C, so that no signal
        handler interrupts them. A leaf of equal shape and dtype is written in place.

        Raises:
            InvalidArgumentError: A value does not have its variable's static shape.
            LayoutError: The storage of a variable's tensor is too small.
        """
        leaves = dict(self.leaf_by_variable)
        calls: list[Call] = []
        for variable, value in values.items():
            tensor = _check_fits(variable, value)
            leaf = leaves.get(variable)
            if leaf is not None:
                check_held(leaf)
            tensor = tensor.to(variable.op.device if leaf is None else leaf.device)
            if leaf is not None and _can_copy(leaf, tensor):
                calls.append(partial(leaf.detach().copy_, tensor))
            else:
                leaves[variable] = _make_leaf(variable, tensor)
        return [*calls, self._call_to_set(leaves)]

    def _call_to_set(self, leaves: dict[GraphVariable, SessionVariable]) -> Call:
        """Return a function in C without arguments that replaces all leaves."""
        attributes = {"leaf_by_variable": leaves, "memory": _addresses_of(leaves.values())}
        return partial(vars(self).update, attributes)

    def putting_back(self, variables: Sequence[GraphVariable]) -> list[Call]:
        """Return C functions without arguments that restore the present values of variables.

        The functions also remove later values of variables that have none now.
        """
        leaves = [leaf for leaf in map(self.leaf_by_variable.get, variables) if leaf is not None]
        with no_grad():
            values = putting_back(leaves)
        if len(leaves) == len(variables) and all(var.shape is not UNKNOWN for var in variables):
            return values
        # An assignment may create a leaf, or replace a leaf of another shape.
        return [
            *values,
            self._call_to_set(dict(self.leaf_by_variable)),
        ]

    def clear(self, reason: str = "") -> None:
        """Drop all values; `reason` is added to the error of later reads."""
        self._lost = reason
        self.leaf_by_variable.clear()
        self.memory.clear()

    def copy_if_shared(self, value: object) -> Any:
        """Return a value, copied if it shares memory with a leaf."""
        if isinstance(value, torch.Tensor):
            is_shared = value.layout == torch.strided and self._shares_memory(value)
            return value.clone() if is_shared else value
        if isinstance(value, IndexedSlices) and self._shares_memory(value.values):
            return with_values(value, value.values.clone())
        return value

    def _shares_memory(self, tensor: torch.Tensor) -> bool:
        """Return True if a tensor is in the storage of a leaf."""
        return tensor.untyped_storage().data_ptr() in self.memory


def _check_fits(variable: GraphVariable, value: object) -> torch.Tensor:
    """Return the value as a tensor of the variable's dtype; raise if dtype or shape do not fit."""
    if isinstance(value, torch.Tensor):
        value = readable(value, f"The value for '{variable.name}'")
    tensor = to_tensor(value, variable.dtype).detach()
    if not variable.shape.accepts(tensor.shape):
        raise InvalidArgumentError(
            f"Cannot give '{variable.name}' of shape {tuple(variable.shape)} a value of shape "
            f"{tuple(tensor.shape)}."
        )
    return tensor


def _make_leaf(variable: GraphVariable, value: torch.Tensor) -> SessionVariable:
    """Return a new leaf tensor that refers to its variable."""
    leaf: Any = SessionVariable(value, variable.name, variable.trainable, variable.constraint)
    leaf._handle = variable
    return leaf


def _can_copy(leaf: torch.Tensor, value: torch.Tensor) -> bool:
    """Return True if `copy_` can write the value to the leaf."""
    # torch rejects writes to inference tensors outside of inference mode.
    has_form = leaf.shape == value.shape and leaf.dtype == value.dtype
    return has_form and not leaf.is_inference()


def _addresses_of(leaves: Iterable[torch.Tensor]) -> set[int]:
    """Return the storage addresses of leaves, without 0."""
    # All empty tensors have the address 0, and share nothing.
    return {leaf.untyped_storage().data_ptr() for leaf in leaves} - {0}
