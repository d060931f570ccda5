"""`tf.Variable`, `tf.Tensor` and `tf.IndexedSlices`, in eager mode and in graph mode."""

from __future__ import annotations

from typing import Any

import torch

from thalweg import graph
from thalweg import indexed_slices as eager_slices
from thalweg import variable as eager
from thalweg.variable import VariableAggregation, VariableSynchronization

__all__ = [
    "IndexedSlices",
    "Tensor",
    "Variable",
]


class _Either(type):
    """A class whose instances are of other classes, named in `CLASSES`."""

    CLASSES: tuple[type, ...] = ()

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.CLASSES)


class Variable(metaclass=_Either):
    """A tensor that training updates: a `thalweg.Variable`, or in graph mode a variable of the
    graph.

    Args:
        initial_value: A number, nested list, array, tensor, or a callable that returns one.
        trainable: Whether `minimize` without a list of variables includes it; True if None.
        validate_shape: In graph mode False leaves the shape open.
        caching_device: Ignored, as are `variable_def` and `import_scope`.
        name: Optional.
        dtype: Optional; converts the initial value.
        constraint: Optional. A function that an optimizer applies after each update.
        synchronization: Ignored, as is `aggregation`: there is one copy.
        shape: Optional; in graph mode for an initializer.
    """

    CLASSES = (eager.Variable, graph.GraphVariable)

    def __new__(
        cls,
        initial_value: Any = None,
        trainable: bool | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        import_scope: Any = None,
        constraint: Any = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        shape: Any = None,
    ) -> Any:
        return graph.Variable(
            initial_value,
            trainable is not False,
            validate_shape=validate_shape,
            name=name,
            dtype=dtype,
            constraint=constraint,
            shape=shape,
        )


class Tensor(metaclass=_Either):
    """For `isinstance`: tensors of torch and of graphs. `tf.constant` makes one."""

    CLASSES = (torch.Tensor, graph.SymbolicTensor)


class IndexedSlices(metaclass=_Either):
    """Some rows of a tensor: `values` at `indices`; see `thalweg.IndexedSlices`."""

    CLASSES = (eager_slices.IndexedSlices, graph.SymbolicSlices)

    def __new__(cls, values: Any, indices: Any, dense_shape: Any = None) -> Any:
        parts = (values, indices, dense_shape)
        symbolic = any(isinstance(part, graph.SymbolicTensor) for part in parts)
        make = graph.SymbolicSlices if symbolic else eager_slices.IndexedSlices
        return make(values, indices, dense_shape)
