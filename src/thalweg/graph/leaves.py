"""The tensors in which a session keeps its variables."""

from __future__ import annotations

from typing import Any

import torch

from thalweg.core.state import readable
from thalweg.errors import FailedPreconditionError, InvalidArgumentError
from thalweg.graph.variables import GraphVariable
from thalweg.indexed_slices import IndexedSlices, with_values
from thalweg.running import SessionVariable
from thalweg.variable import to_tensor


class Leaves:
    """The variables of one session that have a value."""

    def __init__(self) -> None:
        self._leaves: dict[GraphVariable, SessionVariable] = {}
        self._memory: set[int] = set()  # addresses of the leaves' memory
        self._lost = ""  # why values were forgotten

    def __contains__(self, variable: GraphVariable) -> bool:
        return variable in self._leaves

    def get(self, variable: GraphVariable) -> SessionVariable:
        """The leaf; FailedPreconditionError if the variable is not initialized."""
        leaf = self._leaves.get(variable)
        if leaf is None:
            name = variable.op.name
            raise FailedPreconditionError(
                f"Attempting to use uninitialized value {name}{self._lost}"
            )
        return leaf

    def put(self, variable: GraphVariable, value: Any) -> None:
        """Give a variable a value; a leaf of the same shape and dtype is written in place.

        Raises:
            InvalidArgumentError: The variable's static shape is another.
            InvalidTypeError: The value is not numeric, or a tensor that cannot be read.
        """
        if isinstance(value, torch.Tensor):
            value = readable(value, f"The value for '{variable.name}'")
        tensor = to_tensor(value, variable.dtype).detach()
        if variable.shape is not None and not variable.shape.accepts(tensor.shape):
            raise InvalidArgumentError(
                f"Cannot give '{variable.name}' of shape {tuple(variable.shape)} a value of shape "
                f"{tuple(tensor.shape)}."
            )
        leaf = self._leaves.get(variable)
        if leaf is not None and leaf.shape == tensor.shape and leaf.dtype == tensor.dtype:
            leaf.assign(tensor)
            return
        name, trainable = variable.name, variable.trainable
        made: Any = SessionVariable(tensor, name, trainable, variable.constraint)
        made._handle = variable
        self._leaves[variable] = made
        self._memory = {leaf.untyped_storage().data_ptr() for leaf in self._leaves.values()} - {0}

    def clear(self, reason: str = "") -> None:
        """Forget all values; the reason is told to those who look for one."""
        self._lost = reason
        self._leaves.clear()
        self._memory.clear()

    def kept(self, value: Any) -> Any:
        """`value`, or a copy of it if an update of a variable would change it."""
        if isinstance(value, torch.Tensor):
            shares = value.layout == torch.strided and self._shares(value)
            return value.clone() if shares else value
        if isinstance(value, IndexedSlices) and self._shares(value.values):
            return with_values(value, value.values.clone())
        return value

    def _shares(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._memory
