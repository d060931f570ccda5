"""`GraphVariable`: a symbolic tensor whose value a session keeps from run to run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.graph.arguments import Reference, whole
from thalweg.graph.operation import Operation, session_for
from thalweg.graph.running import current_session
from thalweg.graph.shapes import Output
from thalweg.graph.slices import SymbolicSlices
from thalweg.graph.tensor import SymbolicTensor
from thalweg.variable import Constraint, dtype_name, to_tensor
from thalweg.variable import Variable as EagerVariable

if TYPE_CHECKING:
    pass


class GraphVariable(SymbolicTensor):
    """A variable of a graph. Each session that initializes it has a value of its own.

    Where an operation takes it, it is read when that operation runs. Made by `Variable`,
    `get_variable` and `make_variable`.

    Attributes:
        trainable: Whether it is in the collection of variables that `minimize` trains.
        constraint: A function that an optimizer applies after each update, or None.
        initial_value: A symbolic tensor.
        initializer: The operation that gives the variable its initial value.
    """

    trainable: bool
    constraint: Constraint | None
    initial_value: SymbolicTensor
    initializer: Operation

    def read_value(self) -> SymbolicTensor:
        """A tensor that is read where control dependencies put it."""
        return aliased(self, "Identity")

    value = read_value

    def initialized_value(self) -> SymbolicTensor:
        """The value, or the initial value in a session that has not initialized the variable."""

        def choose(initial: torch.Tensor) -> torch.Tensor:
            session = current_session()
            if session is not None and session.is_initialized(self):
                return session.leaf(self).detach()
            return initial

        output = Output(self.dtype, self.shape, ())
        arguments = (self.initial_value,)
        return self.graph.add("initialized_value", choose, arguments, outputs=[output]).outputs[0]

    def assign(
        self, value: Any, use_locking: Any = None, name: str | None = None
    ) -> SymbolicTensor:
        """An operation that replaces all elements; its value is the new value.

        Args:
            value: A symbolic tensor of the same shape and dtype, or what `to_tensor` takes.
            use_locking: Ignored; all updates lock.
            name: Optional.

        Raises:
            InvalidArgumentError: The shapes differ.
            InvalidTypeError: The dtypes differ.
        """
        return self._update(EagerVariable.assign, value, name or "Assign")

    def assign_add(
        self, delta: Any, use_locking: Any = None, name: str | None = None
    ) -> SymbolicTensor:
        """An operation that adds to all elements; otherwise like `assign`."""
        return self._update(EagerVariable.assign_add, delta, name or "AssignAdd")

    def assign_sub(
        self, delta: Any, use_locking: Any = None, name: str | None = None
    ) -> SymbolicTensor:
        """An operation that subtracts from all elements; otherwise like `assign`."""
        return self._update(EagerVariable.assign_sub, delta, name or "AssignSub")

    def _update(self, method: Callable[..., Any], value: Any, name: str) -> SymbolicTensor:
        if isinstance(value, SymbolicSlices):
            value = value.source
        if not isinstance(value, SymbolicTensor):
            value = to_tensor(value, self.dtype)
        elif isinstance(value, GraphVariable):
            value = value.read_value()
        what = f"Cannot assign to '{self.name}': "
        if value.dtype not in (self.dtype, None) and self.dtype is not None:
            kinds = f"it is {dtype_name(self.dtype)} but the value is {dtype_name(value.dtype)}"
            raise InvalidTypeError(f"{what}{kinds}. Cast the value.")
        own, given = self.shape, value.shape
        if own is not None and given is not None and not own.accepts(given):
            shapes = f"it has shape {tuple(own)} but the value has {tuple(given)}"
            raise InvalidArgumentError(f"{what}{shapes}.")
        output = Output(self.dtype, self.shape, ())
        arguments = (Reference(self), whole(value))
        return self.graph.add(name, method, arguments, outputs=[output], kind="update").outputs[0]

    def load(self, value: Any, session: Any = None) -> None:
        """Give the variable a value in `session` or the default one, outside of a run."""
        session_for(session, f"load '{self.name}'").load(self, value)

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' {self._description()}>"


def aliased(tensor: SymbolicTensor, name: str) -> SymbolicTensor:
    """A tensor with the value that `tensor` has where control dependencies put this one."""
    output = Output(tensor.dtype, tensor.shape, (tensor,))
    (alias,) = tensor.graph.add(name, _alias, (tensor,), outputs=[output]).outputs
    alias.may_be_sparse = tensor.may_be_sparse
    return alias


def _alias(value: Any) -> Any:
    # Not view_as(), through which no sparse gradient flows.
    return value[...] if isinstance(value, torch.Tensor) else value
