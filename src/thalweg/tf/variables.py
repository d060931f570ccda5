"""`tf.Variable`, `tf.Tensor` and `tf.IndexedSlices`, in eager mode and in graph mode."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from thalweg import _graph, v1
from thalweg import variable as eager
from thalweg._graph.eager_or_graph import EagerOrGraphMeta, IndexedSlices
from thalweg.tf.convert import named_in_graphs
from thalweg.variable import VariableAggregation, VariableSynchronization

__all__ = ["IndexedSlices", "SparseTensor", "Tensor", "Variable"]


class Variable(metaclass=EagerOrGraphMeta):
    """Variable: a `thalweg.Variable`, or in graph mode a variable of the graph.

    Args:
        initial_value: A number, nested list, array, tensor, or a callable that returns one.
        trainable: True if `minimize` without a list of variables includes it. By default False if
            `synchronization` is `ON_READ`, otherwise True.
        validate_shape: In graph mode False leaves the shape open.
        caching_device, variable_def, import_scope: Ignored.
        dtype: Optional; converts the initial value.
        constraint: Optional. A function that an optimizer applies after each update.
        synchronization: `ON_READ` means a separate value for each replica of a strategy.
        aggregation: Reduction of the values that replicas assign; see
            `thalweg.keras.optimizers.Optimizer.add_weight`.
        shape: Optional. Shape for an initializer, or declared shape. None marks a size that
            assignments may change.
    """

    CLASSES = (eager.Variable, _graph.GraphVariable)

    @named_in_graphs(3, "collections")
    def __new__(
        cls,
        initial_value: object = None,
        trainable: bool | None = None,
        validate_shape: bool = True,
        caching_device: object = None,
        name: str | None = None,
        variable_def: object = None,
        dtype: object = None,
        import_scope: object = None,
        constraint: Any = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        shape: Any = None,
    ) -> Any:
        return v1.Variable(
            initial_value,
            trainable,
            validate_shape=validate_shape,
            name=name,
            dtype=dtype,
            constraint=constraint,
            shape=shape,
            synchronization=synchronization,
            aggregation=aggregation,
        )


class _NoVariable(EagerOrGraphMeta):
    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) and not isinstance(instance, Variable)


class Tensor(metaclass=_NoVariable):
    """Class for `isinstance`: tensors of torch and of graphs, other than variables."""

    CLASSES = (torch.Tensor, _graph.SymbolicTensor)


class SparseTensor(metaclass=EagerOrGraphMeta):
    """Class for `isinstance`, without instances.

    Raises:
        NotImplementedError: Always.
    """

    CLASSES = ()

    def __new__(cls, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(
            "There is no SparseTensor in thalweg: use tf.IndexedSlices, or torch.sparse."
        )
