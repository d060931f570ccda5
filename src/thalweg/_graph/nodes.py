"""`Operation` and `SymbolicTensor`: the nodes and edges of a graph; `Nodes`: the table of both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from thalweg._base.execution_context import Symbolic, TensorReference, get_default_session
from thalweg._base.exports import exported_from
from thalweg._base.static_shape import UNKNOWN, DimensionShape, Shape, UnknownShape
from thalweg._graph.collections import Collections
from thalweg._graph.operators import Operators
from thalweg._graph.scopes import Block, Scopes, Unit
from thalweg.errors import InvalidArgumentError, InvalidTypeError, NotFoundError
from thalweg.variable import dtype_name

# In-place methods that hooks of optimizers may call while a graph is built.
IN_PLACE = ("add_", "sub_", "mul_", "addcmul_", "addcdiv_", "copy_")
_IN_PLACE_NAMES = ", ".join(IN_PLACE)
_NEEDS_A_RUN = "has no value until a session runs it"
_RUN_IT = "Use Session.run(...) or .eval()"


@dataclass
class NodeDef:
    """Description of an operation, `Operation.node_def` in TensorFlow.

    Attributes:
        op: Type of the operation.
        input: Names of the inputs, "name:1" for a second output, then "^name" of control inputs.
        device: Device where the operation is expected to run.
        attr: {"shared_name": name} for a variable, otherwise empty.
    """

    name: str
    op: str
    input: list[str]
    device: str
    attr: dict[str, str]


@exported_from("thalweg.v1")
class Operation:
    """Operation of a graph, run by sessions.

    Attributes:
        name: Unique in its graph.
        type: The kind of operation, as "add" or "Placeholder".
        inputs: The symbolic tensors that the operation reads.
        outputs: The symbolic tensors that the operation computes.
        control_inputs: Operations that run first.
        graph: The graph of the operation.
    """

    def __init__(
        self,
        graph: Nodes,
        name: str,
        kind: str,
        type: str,
        inputs: tuple[SymbolicTensor, ...],
        control_inputs: tuple[Operation, ...],
        device: torch.device,
    ) -> None:
        self.graph, self.name, self.kind, self.type = graph, name, kind, type
        self.inputs = inputs
        self.control_inputs = list(control_inputs)
        self.device = device
        self.outputs: tuple[SymbolicTensor, ...] = ()
        self.index = -1
        # None for an operation that only orders others.
        self.function: Callable[..., Any] | None = None
        # The filler of the arguments; `argument` is the only argument, if it is a tensor.
        self.fill: Callable[[Any], Sequence[Any]] = lambda _: ()
        self.argument: SymbolicTensor | None = None
        # Indices of the outputs among the leaves of the function's result; None for one output.
        self.picks: tuple[int, ...] | None = None
        # Called with the error of a run that fails before this operation, on which others wait.
        self.abandoned: Callable[[BaseException], None] | None = None
        self.stateful = False
        self.written: tuple[SymbolicTensor, ...] = ()
        # For each output, the inputs that its gradient reaches; None means all inputs. The
        # gradients of `sparse_flows` are `IndexedSlices`.
        self.flows: tuple[tuple[SymbolicTensor, ...], ...] | None = None
        self.sparse_flows: frozenset[SymbolicTensor] = frozenset()
        # The branch or loop body that contains this operation.
        self.block: Block | None = None
        # The update to which this operation belongs.
        self.unit: Unit | None = None
        # The bodies that this operation runs, if it is a branch or loop.
        self.subgraphs: tuple[Subgraph, ...] = ()
        self.origin = ""
        # The optimizer of a step, if the library created it.
        self.optimizer: Any = None

    @property
    def node_def(self) -> NodeDef:
        """A description of the operation as it is now; changes to it have no effect."""
        inputs = [tensor.name.removesuffix(":0") for tensor in self.inputs]
        inputs += [f"^{control.name}" for control in self.control_inputs]
        attr = {"shared_name": self.name} if self.kind == "variable" else {}
        return NodeDef(self.name, self.type, inputs, str(self.device), attr)

    def flows_to(self, output: SymbolicTensor) -> tuple[SymbolicTensor, ...]:
        """Return the inputs of this operation that a gradient of `output` reaches."""
        if self.flows is not None:
            return self.flows[output.value_index]
        if self.kind != "pure":
            return ()
        return tuple(tensor for tensor in self.inputs if tensor.is_differentiable())

    def run(self, feed_dict: object = None, session: object = None) -> None:
        """Run the operation and its inputs in `session`, by default in the default session.

        Raise InvalidArgumentError if there is no session.
        """
        session_for(session, f"run operation '{self.name}'").run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"

    def __deepcopy__(self, memo: object) -> Operation:
        return self


def session_for(session: object, purpose: str, argument: str = "session") -> Any:
    """Return `session` or the default one; raise InvalidArgumentError if there is none."""
    active = session or get_default_session()
    if active is None:
        raise InvalidArgumentError(
            f"Cannot {purpose}: No default session is registered. Use `with session.as_default()` "
            f"or pass {argument}=."
        )
    return active


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Operations of the body of a branch or loop, run by the operation of the branch or loop.

    Attributes:
        block: The block of the operations.
        parameters: The tensors to which a run assigns the arguments of the body.
        results: The tensors that the body returns, as a flat tuple.
        nest: The results in the structure that the traced function returned.
    """

    block: Block
    parameters: tuple[SymbolicTensor, ...]
    results: tuple[SymbolicTensor, ...]
    nest: Any


@exported_from("thalweg.v1")
class SymbolicTensor(Operators):
    """Output of an operation; it has a value only in runs of a session.

    Arithmetic, comparisons, indexing, torch's functions and the methods of `torch.Tensor` add
    nodes to the graph. `==` and `!=` compare identities, as in TensorFlow 1, so that tensors can
    be keys; `torch.eq` compares elements.

    Attributes:
        op: The operation that computes the value.
        name: The name of the operation and the index of the output: "add:0".
        dtype: A torch dtype, or None if only a run determines it.
        shape: A tuple with None for unknown sizes, or `UNKNOWN` for an unknown number of sizes.
        device: The expected device of the value.
    """

    # True if the value may be `IndexedSlices`, which is known only in a run.
    may_be_sparse = False

    def __init__(
        self,
        op: Operation,
        value_index: int = 0,
        dtype: torch.dtype | None = None,
        shape: Sequence[int | None] | None = None,
    ) -> None:
        self.op, self.value_index, self.dtype = op, value_index, dtype
        self.shape = Shape(shape)

    @property
    def name(self) -> str:
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> Nodes:
        return self.op.graph

    @property
    def device(self) -> torch.device:
        return self.op.device

    def _is_hook(self) -> bool:
        """Return True while a hook of an optimizer builds the graph."""
        return self.graph.unit is not None

    def _explain_restriction(self) -> str:
        """Return advice for an error about a use that a symbolic tensor does not support."""
        if not self._is_hook():
            return super()._explain_restriction()
        return (
            "These methods can write to variables and slots in a hook, outside of branches:"
            f" {_IN_PLACE_NAMES}."
        )

    def get_shape(self) -> Shape | UnknownShape:
        """Return the static shape, of sizes with a `value`; `ndims` is None for unknown rank."""
        return UNKNOWN if self.shape is UNKNOWN else DimensionShape(self.shape)

    def set_shape(self, shape: Sequence[int | None] | UnknownShape | None) -> None:
        """Add known sizes to the static shape, in place. None or an unknown shape changes nothing.

        Raise InvalidArgumentError if `shape` contradicts the static shape.
        """
        if shape is None or isinstance(shape, UnknownShape):
            return
        if self.shape is UNKNOWN:
            self.shape = Shape(shape)
            return
        if not self.shape.accepts(tuple(shape)):
            raise InvalidArgumentError(
                f"'{self.name}' has shape {self.shape}, which does not agree with {tuple(shape)}."
            )
        pairs = zip(self.shape, shape, strict=True)
        self.shape = Shape(new if old is None else old for old, new in pairs)

    def ref(self) -> TensorReference:
        """Return a hashable key that compares by identity."""
        return TensorReference(self)

    experimental_ref = ref

    def is_differentiable(self) -> bool:
        """Return True if the dtype allows a gradient."""
        return self.dtype is None or self.dtype.is_floating_point or self.dtype.is_complex

    def eval(self, feed_dict: object = None, session: object = None) -> Any:
        """Return the value in `session`, by default in the default session; see `Session.run`.

        Raise InvalidArgumentError if there is no session.
        """
        return session_for(session, f"evaluate tensor '{self.name}'").run(self, feed_dict)

    def __iter__(self) -> Iterator[SymbolicTensor]:
        size = self.shape[0] if self.shape else None
        if size is None:
            raise InvalidTypeError(
                f"'{self.name}' {_NEEDS_A_RUN}, nor a first dimension to iterate over it."
                f" {self._explain_evaluation()}"
            )
        return iter([self[index] for index in range(size)])

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise InvalidTypeError(f"'{self.name}' {_NEEDS_A_RUN}. {self._explain_evaluation()}")

    def __array_function__(self, function: object, *_: object) -> Any:
        """Return the result of `np.shape` or `np.ndim`, which read no element; raise for others."""
        if function is np.shape:
            return self.shape
        return self.ndim if function is np.ndim else self._refuse()

    def _explain_evaluation(self) -> str:
        """Return a sentence for errors: how to get the value."""
        if self.op.type != "Placeholder":
            return f"{_RUN_IT}."
        return f"{_RUN_IT} on what is made of it, and feed it: feed_dict={{placeholder: value}}."

    def __bool__(self) -> bool:
        raise InvalidTypeError(
            f"'{self.name}' {_NEEDS_A_RUN}: no `if` can ask for it while a graph is built."
            f" {self._explain_evaluation()} tf.cond and tf.where choose inside of a graph."
        )

    def __format__(self, spec: str) -> str:
        return str(self) if not spec else self._refuse()

    __len__ = __float__ = __int__ = __index__ = __complex__ = __round__ = _refuse
    __array__ = __contains__ = numpy = item = tolist = backward = _refuse

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' {self._dtype_and_shape()}>"

    def _dtype_and_shape(self) -> str:
        dtype = None if self.dtype is None else dtype_name(self.dtype)
        shape = "<unknown>" if self.shape is UNKNOWN else tuple(self.shape)
        return f"shape={shape} dtype={dtype}"

    def __deepcopy__(self, memo: object) -> SymbolicTensor:
        return self

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidTypeError(f"'{self.name}' belongs to its graph and cannot be pickled.")


class Nodes(Scopes, Collections):
    """Table of the operations and variables of a graph; base class of `Graph`.

    Attributes:
        operations: {name: operation} in order of creation.
        stand_ins: {id of a parameter or buffer: (parameter or buffer, its graph variable)}.
        symbols: {id of an object: (object, its symbol)}, see `symbol_of`.
        variable_store: {name: variable} of `get_variable`.
        partitioned_store: {name: partitioned variable} of `get_variable`.
        seed: Seed of the graph for random operations, or None.
        as_default, call, write: Methods that the subclass `Graph` defines.
    """

    as_default: Callable[[], contextlib.AbstractContextManager[Nodes]]
    call: Callable[..., Any]
    write: Callable[..., None]

    def __init__(self) -> None:
        super().__init__()
        self.operations: dict[str, Operation] = {}
        self._finalized = False
        self.stand_ins: dict[int, tuple[torch.Tensor, Any]] = {}
        self.symbols: dict[int, tuple[object, object]] = {}
        self.variable_store: dict[str, Any] = {}
        self.partitioned_store: dict[str, Any] = {}
        self.seed: int | None = None

    @property
    def _graph_key(self) -> str:
        """A string that is unique among existing graphs, under TensorFlow's name."""
        return f"graph-key-{id(self)}/"

    def __deepcopy__(self, memo: object) -> Nodes:
        # Tensors and operations are their own copies, too, so that references stay valid.
        return self

    def finalize(self) -> None:
        """Make `add` raise FailedPreconditionError for new operations."""
        self._finalized = True

    def _unsafe_unfinalize(self) -> None:
        """Accept new operations again; called by `MonitoredSession` at its end."""
        self._finalized = False

    @property
    def finalized(self) -> bool:
        """True if new operations are rejected."""
        return self._finalized

    def get_operations(self) -> list[Operation]:
        """Return all operations in order of creation."""
        return list(self.operations.values())

    def get_operation_by_name(self, name: str) -> Operation:
        """Return the operation of that name; raise NotFoundError, a KeyError, if missing."""
        if name not in self.operations:
            raise NotFoundError(f"The name '{name}' refers to an Operation not in the graph.")
        return self.operations[name]

    def get_tensor_by_name(self, name: str) -> SymbolicTensor:
        """Return the tensor of a name like "add:0"; raise NotFoundError (KeyError) if missing."""
        op_name, _, index = str(name).rpartition(":")
        if not op_name or not index.isdigit():
            raise InvalidTypeError(f"{name!r} is no name of a tensor; expected one like 'add:0'.")
        op = self.operations.get(op_name)
        if op is None or int(index) >= len(op.outputs):
            raise NotFoundError(f"The name '{name}' refers to a Tensor which does not exist.")
        return op.outputs[int(index)]

    def as_operation(self, item: object) -> Operation:
        """Return the operation of `as_graph_element(item)`: the element, or the tensor's `op`."""
        element = self.as_graph_element(item)
        return element if isinstance(element, Operation) else element.op

    def symbol_of(self, item: object) -> Any:
        """Return the symbolic object for `item`: the result of its method `_as_graph_element`.

        The result is cached. An object without this method of TensorFlow is returned unchanged.
        """
        find = getattr(type(item), "_as_graph_element", None)
        if find is None:
            return item
        # `symbols` also holds the item, so that its id is not reused.
        with self.lock:
            if id(item) not in self.symbols:
                with self.as_default(), self.control_dependencies(None):
                    self.symbols[id(item)] = item, find(item)
            return self.symbols[id(item)][1]

    def as_graph_element(self, item: object) -> Operation | SymbolicTensor:
        """Return the operation or tensor of this graph for an object or a name.

        `item` may be an operation, a symbolic tensor, slices, a parameter or buffer with a graph
        variable, an object for `symbol_of`, or a name.

        Raises:
            InvalidTypeError: `item` is another kind of object.
            InvalidArgumentError: `item` is of another graph.
            NotFoundError: No element has the name `item`.
        """
        if isinstance(item, str):
            return (
                self.get_tensor_by_name(item) if ":" in item else self.get_operation_by_name(item)
            )
        item = self.symbol_of(item)
        if isinstance(item, torch.Tensor) and id(item) in self.stand_ins:
            return self.stand_ins[id(item)][1]
        if not isinstance(item, (Operation, Symbolic)):
            raise InvalidTypeError(
                f"Can not convert a {type(item).__name__} into a Tensor or Operation."
            )
        element: Any = item
        if not isinstance(item, (Operation, SymbolicTensor)):
            # Slices are represented by one tensor.
            element = element.source
        if element.graph is not self:
            raise InvalidArgumentError(f"'{element.name}' is not an element of this graph.")
        return element
