"""`SymbolicSlices`: some rows of a symbolic tensor, such as a sparse gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thalweg._base.execution_context import SymbolicRows
from thalweg._base.static_shape import UNKNOWN, Shape, UnknownShape
from thalweg._graph.add_operation import add_tensor
from thalweg._graph.nodes import Nodes, Operation, SymbolicTensor
from thalweg._graph.shapes import Output
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices, IndexedSlicesValue

__all__ = ["IndexedSlicesValue", "SymbolicSlices"]


class SymbolicSlices(SymbolicRows):
    """`IndexedSlices` of symbolic tensors.

    Args:
        values: The rows, of shape (n, *row shape). One argument at least is symbolic.
        indices: The indices of the rows: int32 or int64, of shape (n,).
        dense_shape: Optional. The shape of the dense tensor.

    Attributes:
        source: The symbolic tensor whose value in a run is an `IndexedSlices`.
    """

    __array_ufunc__ = None

    def __init__(self, values: Any, indices: Any, dense_shape: Any = None) -> None:
        components = (values, indices, dense_shape)
        graph = next((x.graph for x in components if isinstance(x, SymbolicTensor)), None)
        if graph is None:
            raise InvalidTypeError("Neither values nor indices are symbolic; use IndexedSlices.")
        self.values, self.indices, self.dense_shape = values, indices, dense_shape
        dtype = getattr(values, "dtype", None)
        shape = None if isinstance(dense_shape, SymbolicTensor) else dense_shape
        output = Output(dtype, shape)
        self.source = add_tensor(graph, "IndexedSlices", IndexedSlices, components, output)
        self.source.may_be_sparse = True

    @classmethod
    def of(cls, source: SymbolicTensor) -> SymbolicSlices:
        """Return slices for `source`, a symbolic tensor whose value in a run is `IndexedSlices`."""
        slices = cls.__new__(cls)
        slices.source = source
        rows = None if source.shape is UNKNOWN else (None, *source.shape[1:])
        rank = None if source.shape is UNKNOWN else (len(source.shape),)
        slices.values = _add_field(source, "values", Output(source.dtype, rows))
        slices.indices = _add_field(source, "indices", Output(torch.int64, (None,)))
        slices.dense_shape = _add_field(source, "dense_shape", Output(torch.int64, rank))
        return slices

    @property
    def op(self) -> Operation:
        """Operation that computes the slices."""
        return self.source.op

    @property
    def name(self) -> str:
        """Name of the output of `op`."""
        return self.source.name

    @property
    def graph(self) -> Nodes:
        """Graph of the slices."""
        return self.source.graph

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the values."""
        return self.source.dtype

    @property
    def device(self) -> torch.device:
        """Device on which the slices are expected."""
        return self.source.device

    @property
    def shape(self) -> Shape | UnknownShape:
        """The static shape of the dense tensor."""
        return self.source.shape

    def _scale_values(
        self, function: Callable[[Any, Any], object], factor: object
    ) -> SymbolicSlices:
        """Return slices whose values are `function(values, factor)`."""
        if getattr(factor, "shape", UNKNOWN) not in ((), UNKNOWN):
            raise InvalidArgumentError("IndexedSlices can be scaled by a scalar only.")
        return SymbolicSlices(function(self.values, factor), self.indices, self.dense_shape)

    def __neg__(self) -> SymbolicSlices:
        return SymbolicSlices(-self.values, self.indices, self.dense_shape)

    def __mul__(self, factor: object) -> SymbolicSlices:
        return self._scale_values(lambda values, by: values * by, factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: object) -> SymbolicSlices:
        return self._scale_values(lambda values, by: values / by, divisor)

    def eval(self, feed_dict: object = None, session: object = None) -> IndexedSlicesValue:
        """Return the value in `session` or the default one."""
        return self.source.eval(feed_dict, session)

    def __repr__(self) -> str:
        return f"IndexedSlices(values={self.values!r}, indices={self.indices!r})"

    def __deepcopy__(self, memo: object) -> SymbolicSlices:
        return self


def _add_field(source: SymbolicTensor, name: str, output: Output) -> SymbolicTensor:
    """Return a new node for a field of `source`: values, indices or dense_shape (int64)."""

    def get_field(slices: IndexedSlices) -> object:
        value = getattr(slices, name)
        if name != "dense_shape":
            return value
        return torch.tensor(value, dtype=torch.int64, device=torch.get_default_device())

    # The "/" at the end means a complete name, which no name scope precedes.
    node_name = f"{source.op.name}_{name}/"
    return add_tensor(source.graph, node_name, get_field, (source,), output)
