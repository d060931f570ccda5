"""Hyperparameters of an optimizer that an operation of a graph captures.

Later changes of the optimizer do not affect the operation. In each run, symbolic hyperparameters
have their values before the run's updates, and schedules are called. Callables have the results of
the operation's creation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import is_symbolic
from thalweg._core.hyperparameters import as_step_scalar
from thalweg._core.nest import leaves_of
from thalweg._engines import compute_dtype
from thalweg._graph.operation import operation
from thalweg._graph.shapes import Output
from thalweg._graph.variables import GraphVariable
from thalweg.schedules import LearningRateSchedule
from thalweg.variable import as_dtype

# Types of the numbers that a user would pass for these dtypes.
_SCALAR_TYPES = {torch.float32: float, torch.float64: np.float64, torch.int32: int}


@dataclass
class Captured:
    """Hyperparameters that an operation captured at its creation.

    Attributes:
        fixed: {name: value at the creation}.
        scalars: Names of hyperparameters that a run passes as Python numbers.
        inputs: Inputs of the operation: a list of scalars, and {name: tensor}. A schedule has a
            key (name, dtype). The inputs' values are the arguments of `values_in_run`.
    """

    fixed: dict[Any, Any]
    scalars: list[str]
    inputs: list[Any]

    def values_in_run(
        self, scalars: Sequence[object], tensors: dict[object, object]
    ) -> dict[Any, Any]:
        """Return {name: value} of all hyperparameters in a run, for `Hyperparameters.knowing`."""
        values = {**self.fixed, **dict(zip(self.scalars, scalars, strict=True)), **tensors}
        for key, value in tensors.items():
            if isinstance(key, tuple):
                values[key] = as_step_scalar(key[0], value, key[1])
        return values


def capture_hypers(
    optimizer: Any, values_by_function: dict[str, Any], dtypes: Iterable[torch.dtype]
) -> Captured:
    """Add operations that read an optimizer's hyperparameters; return the `Captured` object.

    `values_by_function` has the results of the hyperparameters that are functions, by name. A
    schedule with symbolic attributes is evaluated for each compute dtype of variables of `dtypes`.
    """
    fixed = optimizer._hyper.all_of(values_by_function)
    symbols = {name: value for name, value in fixed.items() if is_symbolic(value)}
    scalars = [name for name, value in symbols.items() if _is_scalar(value)]
    tensors: dict[Any, Any] = {name: symbols[name] for name in symbols if name not in scalars}
    for name, value in fixed.items():
        if isinstance(value, LearningRateSchedule) and any(
            map(is_symbolic, _list_attributes(value))
        ):
            for kind in {compute_dtype(dtype) for dtype in dtypes}:
                tensors[name, kind] = value(optimizer.iterations.to(as_dtype(kind)))
    # One operation, which reads all of them before anything is written in the run.
    variables, output = [symbols[name] for name in scalars], Output(None, None, ())
    read: Any = ()
    if variables:
        read = operation(_read_scalars, variables, "ReadVariableOp", kind="pure", outputs=output)
    return Captured(fixed, scalars, [read, tensors])


def _is_scalar(value: object) -> bool:
    """Return True for a scalar variable whose value is passed as a number."""
    return isinstance(value, GraphVariable) and value.shape == () and value.dtype in _SCALAR_TYPES


def _read_scalars(*leaves: Tensor) -> list[object]:
    """Return the values of scalar variables as numbers, as the user would pass them."""
    return [_SCALAR_TYPES[leaf.dtype](leaf.item()) for leaf in leaves]


def _list_attributes(schedule: LearningRateSchedule) -> Iterator[object]:
    """Yield the attributes of a schedule and of nested schedules."""
    for attribute in leaves_of(list(vars(schedule).values())):
        yield from (
            _list_attributes(attribute)
            if isinstance(attribute, LearningRateSchedule)
            else (attribute,)
        )
