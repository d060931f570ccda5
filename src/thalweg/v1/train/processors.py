"""Processors: per-variable objects through which `apply_gradients` calls an optimizer's hooks.

An optimizer with its own `apply_gradients` calls, between `_prepare` and `_finish`,
`_get_processor(var).update_op(optimizer, grad)`, as in TensorFlow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from thalweg._base.execution_context import is_symbolic
from thalweg._core.validation import sparse_and_constrained
from thalweg._graph import GraphVariable, apply_constraint, executing_eagerly
from thalweg._graph.eager_or_graph import IndexedSlices
from thalweg.variable import is_variable, name_of, variable_constraint


class OptimizableVariable(ABC):
    """Interface of the processor of one variable."""

    @abstractmethod
    def target(self) -> Any:
        """Return the tensor or variable by which the loss is differentiated."""
        raise NotImplementedError("Calling an abstract method.")

    @abstractmethod
    def update_op(self, optimizer: object, g: object) -> Any:
        """Update the variable by a hook of `optimizer` with gradient `g`; return the hook's result.

        If the variable has a constraint, apply it and return the constrained update.

        Raises:
            NotImplementedError: The target is not a variable.
        """
        raise NotImplementedError("Calling an abstract method.")


class _Processor(OptimizableVariable):
    """Processor of one variable or tensor.

    Raises:
        NotImplementedError: The argument is neither a variable nor a tensor.
    """

    def __init__(self, var: object) -> None:
        if not (is_symbolic(var) or isinstance(var, torch.Tensor)):
            raise NotImplementedError(f"Trying to optimize unsupported type {var}")
        self._var: Any = var

    def target(self) -> Any:
        return self._var

    def __str__(self) -> str:
        return f"<_{type(self).__name__}({self._var})>"

    def _apply_constraint(self, update: Any) -> Any:
        """Return an operation that applies the variable's constraint after an update."""
        constraint = variable_constraint(self._var)
        if constraint is None:
            return update
        if executing_eagerly():
            return self._var.assign(constraint(self._var))
        return apply_constraint(self._var, update)

    def _check_variable(self) -> None:
        if not _is_variable(self._var):
            raise NotImplementedError(f"Trying to update a Tensor {self._var}")

    def _check_sparse(self) -> None:
        if variable_constraint(self._var) is not None:
            raise sparse_and_constrained(name_of(self._var))


class DenseResourceVariableProcessor(_Processor):
    """Processor that calls the hooks of resource variables."""

    def update_op(self, optimizer: Any, g: Any) -> Any:
        self._check_variable()
        if isinstance(g, IndexedSlices):
            self._check_sparse()
            return optimizer._resource_apply_sparse_duplicate_indices(
                g.values, self._var, g.indices
            )
        return self._apply_constraint(optimizer._resource_apply_dense(g, self._var))


class DenseReadResourceVariableProcessor(DenseResourceVariableProcessor):
    """TensorFlow's name for the processor of a value read from a resource variable.

    Here such a value is the variable itself, so the class adds nothing.
    """


class RefVariableProcessor(_Processor):
    """Processor that calls the hooks of plain variables."""

    def update_op(self, optimizer: Any, g: Any) -> Any:
        self._check_variable()
        if isinstance(g, IndexedSlices):
            self._check_sparse()
            return optimizer._apply_sparse_duplicate_indices(g, self._var)
        if not (is_symbolic(g) or isinstance(g, torch.Tensor)):
            raise AssertionError("Gradient ", g, " is neither a tensor nor IndexedSlices.")
        return self._apply_constraint(optimizer._apply_dense(g, self._var))


class StreamingModelPortProcessor(_Processor):
    """Processor of a tensor made by an operation of type "SubmodelPort"; returns the gradient."""

    def update_op(self, optimizer: object, g: object) -> Any:
        return g


class TensorProcessor(_Processor):
    """Processor of a tensor that is not a variable: it has a gradient, but cannot be updated."""

    def update_op(self, optimizer: object, g: object) -> Any:
        raise NotImplementedError(f"Trying to update a Tensor {self._var}")


def _is_variable(var: object) -> bool:
    return isinstance(var, GraphVariable) or is_variable(var)


def processor_of(var: object) -> OptimizableVariable:
    """Return the processor for a variable or tensor.

    Raises:
        NotImplementedError: `var` has another type.
    """
    if _is_variable(var):
        return DenseResourceVariableProcessor(var)
    if getattr(getattr(var, "op", None), "type", None) == "SubmodelPort":
        return StreamingModelPortProcessor(var)
    if is_symbolic(var) or isinstance(var, torch.Tensor):
        return TensorProcessor(var)
    raise NotImplementedError(f"Trying to optimize unsupported type {var}")
