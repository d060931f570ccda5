"""Processors of each kind of variable, through which `apply_gradients` calls the hooks.

Optimizers that replace `apply_gradients` with their own call these, as that of TensorFlow does:
`_get_processor(var).update_op(optimizer, grad)` between `_prepare` and `_finish`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from thalweg._base.execution_context import is_symbolic
from thalweg._core.validation import sparse_and_constrained
from thalweg._graph import (
    GraphVariable,
    apply_constraint,
    executing_eagerly,
)
from thalweg._graph.eager_or_graph import IndexedSlices
from thalweg.variable import is_variable, name_of, variable_constraint


class OptimizableVariable(ABC):
    """Interface of a variable in `apply_gradients`."""

    @abstractmethod
    def target(self) -> Any:
        """Return the tensor or variable by which the loss is differentiated."""
        raise NotImplementedError("Calling an abstract method.")

    @abstractmethod
    def update_op(self, optimizer: object, g: object) -> Any:
        """Call the hook of an optimizer that updates the variable by the gradient `g`.

        Returns:
            What the hook returns: in graph mode an operation, or what comes from one.

        Raises:
            NotImplementedError: The target is not a variable.
        """
        raise NotImplementedError("Calling an abstract method.")


class _Processor(OptimizableVariable):
    """Processor of one variable or tensor.

    Raises:
        NotImplementedError: It is neither a variable nor a tensor.
    """

    def __init__(self, v: object) -> None:
        if not (is_symbolic(v) or isinstance(v, torch.Tensor)):
            raise NotImplementedError(f"Trying to optimize unsupported type {v}")
        self._v: Any = v

    def target(self) -> Any:
        return self._v

    def __str__(self) -> str:
        return f"<_{type(self).__name__}({self._v})>"

    def _apply_constraint(self, update: Any) -> Any:
        """The variable's constraint applied, after an update."""
        constraint = variable_constraint(self._v)
        if constraint is None:
            return update
        if executing_eagerly():
            return self._v.assign(constraint(self._v))
        return apply_constraint(self._v, update)

    def _check_variable(self) -> None:
        if not _is_variable(self._v):
            raise NotImplementedError(f"Trying to update a Tensor {self._v}")

    def _check_sparse(self) -> None:
        if variable_constraint(self._v) is not None:
            raise sparse_and_constrained(name_of(self._v))


class DenseResourceVariableProcessor(_Processor):
    """Calls the hooks of resource variables."""

    def update_op(self, optimizer: Any, g: Any) -> Any:
        self._check_variable()
        if isinstance(g, IndexedSlices):
            self._check_sparse()
            return optimizer._resource_apply_sparse_duplicate_indices(g.values, self._v, g.indices)
        return self._apply_constraint(optimizer._resource_apply_dense(g, self._v))


class DenseReadResourceVariableProcessor(DenseResourceVariableProcessor):
    """For what was read from a resource variable; here that is the variable."""


class RefVariableProcessor(_Processor):
    """Calls the hooks of plain variables."""

    def update_op(self, optimizer: Any, g: Any) -> Any:
        self._check_variable()
        if isinstance(g, IndexedSlices):
            self._check_sparse()
            return optimizer._apply_sparse_duplicate_indices(g, self._v)
        if not (is_symbolic(g) or isinstance(g, torch.Tensor)):
            raise AssertionError("Gradient ", g, " is neither a tensor nor IndexedSlices.")
        return self._apply_constraint(optimizer._apply_dense(g, self._v))


class StreamingModelPortProcessor(_Processor):
    """For ports, whose gradient is all that is asked for."""

    def update_op(self, optimizer: object, g: object) -> Any:
        return g


class TensorProcessor(_Processor):
    """For tensors, which have gradients and cannot be updated."""

    def update_op(self, optimizer: object, g: object) -> Any:
        raise NotImplementedError(f"Trying to update a Tensor {self._v}")


def _is_variable(v: object) -> bool:
    return isinstance(v, GraphVariable) or is_variable(v)


def processor_of(v: object) -> OptimizableVariable:
    """Return the processor for a variable or tensor.

    Raises:
        NotImplementedError: It is neither.
    """
    if _is_variable(v):
        return DenseResourceVariableProcessor(v)
    if getattr(getattr(v, "op", None), "type", None) == "SubmodelPort":
        return StreamingModelPortProcessor(v)
    if is_symbolic(v) or isinstance(v, torch.Tensor):
        return TensorProcessor(v)
    raise NotImplementedError(f"Trying to optimize unsupported type {v}")
