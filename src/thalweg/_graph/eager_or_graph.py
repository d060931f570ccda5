"""Classes with an eager and a graph implementation; the constructor chooses one."""

from __future__ import annotations

from typing import Any

from thalweg import indexed_slices as eager
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.symbolic_slices import SymbolicSlices


class EagerOrGraphMeta(type):
    """Metaclass: `isinstance(x, cls)` is true for instances of the classes in `cls.CLASSES`."""

    CLASSES: tuple[type, ...] = ()

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.CLASSES)


class IndexedSlices(metaclass=EagerOrGraphMeta):
    """Some rows of a tensor: `values` at `indices`; see `thalweg.IndexedSlices`.

    The constructor returns `SymbolicSlices` if an argument is a symbolic tensor.
    """

    CLASSES = (eager.IndexedSlices, SymbolicSlices)

    values: Any
    indices: Any
    dense_shape: Any

    from_sparse = eager.IndexedSlices.from_sparse

    def __new__(cls, values: Any, indices: Any, dense_shape: Any = None) -> Any:
        components = (values, indices, dense_shape)
        symbolic = any(isinstance(component, SymbolicTensor) for component in components)
        make = SymbolicSlices if symbolic else eager.IndexedSlices
        return make(values, indices, dense_shape)
