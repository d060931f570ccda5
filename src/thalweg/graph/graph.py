"""`Graph`: a set of operations."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from thalweg.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
)
from thalweg.graph import interception, modules, recording
from thalweg.graph.arguments import filler, inputs_of
from thalweg.graph.collections import Collections
from thalweg.graph.names import cleaned
from thalweg.graph.operation import Operation
from thalweg.graph.running import process, thread
from thalweg.graph.scopes import Scopes
from thalweg.graph.shapes import Output
from thalweg.graph.slices import SymbolicSlices
from thalweg.graph.tensor import SymbolicTensor

if TYPE_CHECKING:
    from thalweg.graph.variables import GraphVariable

_LIBRARY = str(Path(__file__).parent.parent)
_CPU = torch.device("cpu")


class Graph(Scopes, Collections):
    """A set of operations, to be run by sessions.

    Example:
        >>> from thalweg.graph import Session, constant
        >>> graph = Graph()
        >>> with graph.as_default():
        ...     total = constant(2.0) + constant(3.0)
        >>> Session(graph=graph).run(total)
        np.float32(5.0)
    """

    def __init__(self) -> None:
        super().__init__()
        self._operations: dict[str, Operation] = {}
        self._finalized = False
        # By the ids of parameters and buffers, which are kept alive so that their ids stay theirs.
        self._stand_ins: dict[int, tuple[torch.Tensor, GraphVariable]] = {}
        self.seed: int | None = None
        self.variable_store: dict[str, GraphVariable] = {}  # by the names get_variable was given

    def __deepcopy__(self, memo: Any) -> Graph:
        return self  # as its tensors and operations are their own copies

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Build this graph in the `with` block, in this thread."""
        thread.graphs.append(self)
        interception.start()
        try:
            yield self
        finally:
            interception.stop()
            thread.graphs.pop()

    def finalize(self) -> None:
        """Refuse new operations from now on."""
        self._finalized = True

    @property
    def finalized(self) -> bool:
        """Whether new operations are refused."""
        return self._finalized

    def add(
        self,
        name: str,
        function: Callable[..., Any] | None,
        arguments: Sequence[Any] = (),
        *,
        outputs: Sequence[Output] = (),
        picks: tuple[int, ...] | None = None,
        kind: str = "pure",
        type: str | None = None,
        control_inputs: Sequence[Operation] = (),
        absolute: bool = False,
        make: Callable[..., SymbolicTensor] = SymbolicTensor,
    ) -> Operation:
        """Add an operation.

        Args:
            name: Is made unique, below the current name scope unless `absolute`.
            function: Called with the arguments of the run; None if it only orders others.
            arguments: Nests of symbolic tensors of this graph, references, and plain objects.
            outputs: What is known of each output.
            picks: Which leaves of the nest that the function returns are the outputs; None if it
                returns the only output itself.
            kind: "pure", "update", "blocking", "placeholder" or "variable".
            type: What the operation does; by default as `name`.
            control_inputs: Run before it, in addition to those of `control_dependencies`.
            make: The class of the outputs.

        Raises:
            FailedPreconditionError: The graph is finalized.
            InvalidArgumentError: An input is of another graph, or the name is not valid.
        """
        if self._finalized:
            raise FailedPreconditionError("Graph is finalized and cannot be modified.")
        inputs = inputs_of(arguments, self)
        controls = tuple(dict.fromkeys((*self.control, *control_inputs)))
        device = next((tensor.device for tensor in inputs), _CPU)
        with self.lock:
            full = self.unique_name(name, absolute=absolute)
            op = Operation(self, full, kind, type or name, inputs, controls, device)
            op.index = len(self._operations)
            self._operations[full] = op
        op.function, op.fill, op.picks, op.origin = function, filler(arguments), picks, _origin()
        op.outputs = tuple(make(op, i, out.dtype, out.shape) for i, out in enumerate(outputs))
        if outputs and all(out.flows is not None for out in outputs):
            op.flows = tuple(out.flows or () for out in outputs)
        return op

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        name: str | None = None,
        sparse_flows: frozenset[SymbolicTensor] = frozenset(),
    ) -> Any:
        """Record a call; see `recording.record`."""
        title = name or cleaned(function.__name__)
        return recording.record(self, function, args, kwargs or {}, title, sparse_flows)

    def torch_call(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Record a call of one of torch's functions."""
        return recording.torch_call(self, function, args, kwargs)

    def attribute(self, tensor: SymbolicTensor, name: str) -> Any:
        """What the attribute `name` of a symbolic tensor is."""
        return recording.attribute(tensor, name)

    def operand(self, value: Any, dtype: torch.dtype | None) -> Any:
        """The other operand of an operator on a tensor of `dtype`."""
        return recording.operand(value, dtype)

    def call_module(self, module: torch.nn.Module, args: Sequence[Any], kwargs: Any) -> Any:
        """Record a call of a torch module as one operation."""
        return modules.call_module(self, module, args, kwargs)

    def variable_of(self, tensor: torch.Tensor, name: str | None = None) -> GraphVariable:
        """The variable that stands for a parameter or buffer in this graph, made when first asked.

        `name` is for a tensor that has no name of its own.
        """
        with self.lock:
            if id(tensor) not in self._stand_ins:
                self._stand_ins[id(tensor)] = (tensor, modules.variable_for(self, tensor, name))
            return self._stand_ins[id(tensor)][1]

    def get_operations(self) -> list[Operation]:
        """All operations in order of creation."""
        return list(self._operations.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """The operation of that name; NotFoundError, a KeyError, if there is none."""
        if name not in self._operations:
            raise NotFoundError(f"The name '{name}' refers to an Operation not in the graph.")
        return self._operations[name]

    def get_tensor_by_name(self, name: str) -> SymbolicTensor:
        """The tensor called like "add:0"; NotFoundError, a KeyError, if there is none."""
        op_name, _, index = str(name).rpartition(":")
        if not op_name or not index.isdigit():
            raise InvalidTypeError(f"{name!r} is no name of a tensor; expected one like 'add:0'.")
        op = self._operations.get(op_name)
        if op is None or int(index) >= len(op.outputs):
            raise NotFoundError(f"The name '{name}' refers to a Tensor which does not exist.")
        return op.outputs[int(index)]

    def as_operation(self, item: Any) -> Operation:
        """The operation that `item` is or comes from; errors as in `as_graph_element`."""
        element = self.as_graph_element(item)
        return element if isinstance(element, Operation) else element.op

    def as_graph_element(self, item: Any) -> Operation | SymbolicTensor:
        """The operation or tensor that `item` is, names, or stands for.

        Raises:
            InvalidTypeError: It is none.
            InvalidArgumentError: It is of another graph.
            NotFoundError: Nothing has that name.
        """
        if isinstance(item, str):
            return (
                self.get_tensor_by_name(item) if ":" in item else self.get_operation_by_name(item)
            )
        if isinstance(item, torch.Tensor) and id(item) in self._stand_ins:
            return self._stand_ins[id(item)][1]
        if not isinstance(item, (Operation, SymbolicTensor, SymbolicSlices)):
            raise InvalidTypeError(
                f"Can not convert a {type(item).__name__} into a Tensor or Operation."
            )
        if item.graph is not self:
            raise InvalidArgumentError(f"'{item.name}' is not an element of this graph.")
        return item.source if isinstance(item, SymbolicSlices) else item


def _origin() -> str:
    """The line of the user's code that led here."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARY):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


process.graph = Graph()


def reset_default_graph() -> None:
    """Forget the global graph and begin a new one.

    Raises:
        FailedPreconditionError: Called inside `Graph.as_default`.
    """
    if thread.graphs:
        raise FailedPreconditionError("reset_default_graph() cannot be called inside as_default().")
    process.graph = Graph()


def disable_eager_execution() -> None:
    """Let calls build the default graph from now on, in all threads."""
    if process.eager:
        process.eager = False
        interception.start()


def enable_eager_execution() -> None:
    """Undo `disable_eager_execution`."""
    if not process.eager:
        process.eager = True
        interception.stop()
