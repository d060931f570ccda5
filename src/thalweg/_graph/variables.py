"""`GraphVariable`: symbolic tensor with a value that a session keeps from run to run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from thalweg._base.execution_context import (
    SymbolicVariable,
    current_session,
    is_symbolic,
    process,
    resolve,
)
from thalweg._base.scatter import scatter
from thalweg._base.static_shape import UNKNOWN, Shape, UnknownShape
from thalweg._core.validation import sparse_and_constrained
from thalweg._graph.add_operation import add, add_tensor
from thalweg._graph.arguments import Reference, Target, densify
from thalweg._graph.collections import GraphKeys
from thalweg._graph.nodes import IN_PLACE, Nodes, Operation, SymbolicTensor, session_for
from thalweg._graph.shapes import Output
from thalweg._graph.slice_info import mark_slice_like
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg.errors import InvalidArgumentError, InvalidTypeError, OutOfRangeError
from thalweg.variable import (
    Constraint,
    VariableAggregation,
    VariableSynchronization,
    as_asked,
    as_dtype,
    check_constraint,
    check_held,
    dtype_name,
    name_of,
    to_tensor,
    variable_constraint,
)
from thalweg.variable import Variable as EagerVariable


class GraphVariable(SymbolicTensor, SymbolicVariable):
    """Variable of a graph; each session that initializes it has a separate value.

    An operation with this input reads the variable when the operation runs. Created by
    `Variable`, `get_variable` and `make_variable`.

    Attributes:
        trainable: True if `minimize` trains the variable by default.
        constraint: A function that an optimizer applies after each update, or None.
        initial_value: A symbolic tensor.
        initializer: The operation that gives the variable its initial value.
        is_resource: True to fetch the value before the updates of a run, as TensorFlow's resource
            variables do; False to fetch the value after the updates.
    """

    trainable: bool
    constraint: Constraint | None
    initial_value: SymbolicTensor
    initializer: Operation
    is_resource: bool
    # The arguments of `tf.Variable`.
    synchronization = VariableSynchronization.AUTO
    aggregation = VariableAggregation.NONE
    # The position of a part in a partitioned variable, or None.
    _save_slice_info: Any = None

    def read_value(self) -> SymbolicTensor:
        """Return a tensor with the value, read after the current control dependencies."""
        return alias_node(self, "Identity")

    value = read_value

    def initialized_value(self) -> SymbolicTensor:
        """Return a tensor: the variable's value, or the initial value if the session has none."""

        def current_or_initial(initial: torch.Tensor) -> torch.Tensor:
            session = current_session()
            if session is not None and session.is_initialized(self):
                return session.leaf(self).detach()
            return initial

        output = Output(self.dtype, self.shape, ())
        arguments = (self.initial_value,)
        return add_tensor(self.graph, "initialized_value", current_or_initial, arguments, output)

    def assign(
        self,
        value: object,
        use_locking: object = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> SymbolicTensor:
        """Return a tensor: a run of the tensor sets the variable, and returns the new value.

        The assignment also initializes the variable in a session.

        Args:
            value: A symbolic tensor of equal shape and dtype, or an argument of `to_tensor`.
            use_locking: Ignored; all updates lock.
            read_value: Ignored; the value is read on demand.

        Raises:
            InvalidArgumentError: The shapes differ.
            InvalidTypeError: The dtypes differ.
        """
        return self._update(
            functools.partial(_assign_value, self), value, name, "Assign", Target(self)
        )

    def assign_add(
        self,
        delta: object,
        use_locking: object = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> SymbolicTensor:
        """Return a tensor: a run of the tensor adds `delta`, and returns the new value."""
        return self._update(EagerVariable.assign_add, delta, name, "AssignAdd")

    def assign_sub(
        self,
        delta: object,
        use_locking: object = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> SymbolicTensor:
        """Return a tensor: a run of the tensor subtracts `delta`, and returns the new value."""
        return self._update(EagerVariable.assign_sub, delta, name, "AssignSub")

    @property
    def handle(self) -> GraphVariable:
        """The variable itself, for functions that take a handle."""
        return self

    @property
    def create(self) -> Operation:
        """The initializer, as resources have it."""
        return self.initializer

    def _ref(self) -> GraphVariable:
        return self

    @property
    def _graph_key(self) -> str:
        return self.graph._graph_key

    @property
    def _shared_name(self) -> str:
        return self.op.name

    _unique_id = _shared_name
    _in_graph_mode = True

    def sparse_read(self, indices: object, name: str | None = None) -> SymbolicTensor:
        """Return the rows that `indices` names."""
        arguments = (self, indices)
        return self.graph.call(_gather_rows, arguments, name=name or "Gather")

    def _scatter_slices(
        self, update: str, sparse_delta: Any, use_locking: object = None, name: str | None = None
    ) -> SymbolicTensor:
        """Return the operation that changes rows by `update`, such as "add"."""
        node_name = name or f"Scatter{update.capitalize()}"
        return scatter_node(self, sparse_delta.indices, sparse_delta.values, update, node_name)

    scatter_add = functools.partialmethod(_scatter_slices, "add")
    scatter_sub = functools.partialmethod(_scatter_slices, "sub")
    scatter_mul = functools.partialmethod(_scatter_slices, "mul")
    scatter_div = functools.partialmethod(_scatter_slices, "div")
    scatter_min = functools.partialmethod(_scatter_slices, "min")
    scatter_max = functools.partialmethod(_scatter_slices, "max")
    scatter_update = functools.partialmethod(_scatter_slices, "update")

    def _update(
        self,
        method: Callable[..., Any],
        value: Any,
        name: str | None,
        kind: str,
        target: Reference | None = None,
    ) -> SymbolicTensor:
        """Add an operation that calls `method(tensor, value)` in a run; return its output.

        While a session runs an operation, update the session's tensor at once. `kind` is the type
        of the operation. `target` is the argument for `tensor`, by default `Reference(self)`.
        """
        if current_session() is not None:
            return method(resolve(self), resolve(value))
        output = Output(self.dtype, self.shape, ())
        arguments = (target or Reference(self), densify(self._operand(value)))
        options = {"kind": "update", "type": kind}
        return add_tensor(self.graph, name or kind, method, arguments, output, **options)

    def _operand(self, value: object) -> torch.Tensor | SymbolicTensor:
        """Convert `value` to a tensor for an assignment; raise if dtype or shape does not fit."""
        if isinstance(value, SymbolicSlices):
            value = value.source
        if not isinstance(value, SymbolicTensor):
            value = to_tensor(value, self.dtype)
        elif isinstance(value, GraphVariable):
            value = value.read_value()
        message = f"Cannot assign to '{self.name}': "
        if value.dtype not in (self.dtype, None) and self.dtype is not None:
            kinds = f"it is {dtype_name(self.dtype)} but the value is {dtype_name(value.dtype)}"
            raise InvalidTypeError(f"{message}{kinds}. Cast the value.")
        variable_shape, value_shape = self.shape, value.shape
        if not variable_shape.accepts(value_shape):
            shapes = f"it has shape {tuple(variable_shape)} but the value has {tuple(value_shape)}"
            raise InvalidArgumentError(f"{message}{shapes}.")
        return value

    def _writes(self, name: str) -> bool:
        """Return True if the in-place method may become a node in the current unit."""
        unit = self.graph.unit
        return unit is not None and name in IN_PLACE and self.graph.block is unit.block

    def _write(self, name: str, *args: object, **kwargs: object) -> GraphVariable:
        """Add the node of an in-place method; return this variable."""
        self.graph.write(self, name, args, kwargs)
        return self

    def _refuse_augmented(self, operand: object) -> object:
        """Raise InvalidTypeError in hooks, where `+=` is ambiguous; otherwise NotImplemented."""
        # In torch it is an update, in TensorFlow 1 another tensor.
        if not self._is_hook():
            return NotImplemented
        raise InvalidTypeError(
            f"'{self.name}' cannot be written by +=, -= and the like in a hook."
            f" {self._explain_restriction()}"
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ifloordiv__ = __imod__ = __ipow__ = (
        _refuse_augmented
    )
    __iand__ = __ior__ = __ixor__ = __imatmul__ = _refuse_augmented

    def beside(
        self,
        initial: Callable[[], torch.Tensor],
        name: str,
        dtype: torch.dtype | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> GraphVariable:
        """Return a new slot of this variable; a session initializes the slot with `initial()`.

        `name` is the whole name, made unique. The dtype and shape are by default the variable's.
        """
        deferred = Output(dtype or self.dtype, self.shape if shape is None else shape)
        slot = create_variable(
            self.graph,
            initial,
            name,
            trainable=False,
            deferred=deferred,
            absolute=True,
            use_resource=self.is_resource,
        )
        mark_slice_like(slot, self)
        return slot

    def eval(self, session: object = None, feed_dict: object = None) -> Any:
        """Return the value in `session` or the default one; `session` is the first argument."""
        # A mapping is a feed dict, in the argument order of other tensors.
        if isinstance(session, Mapping):
            session, feed_dict = feed_dict, session
        return super().eval(feed_dict, session)

    def count_up_to(self, limit: int) -> SymbolicTensor:
        """Return a tensor: a run of the tensor adds 1 to the variable, and returns the old value.

        Raise OutOfRangeError in a run if the variable has reached `limit`.
        """
        output = Output(self.dtype, self.shape, ())
        count, arguments = functools.partial(_count_up_to, self.name, limit), (Reference(self),)
        return add_tensor(self.graph, "CountUpTo", count, arguments, output, kind="update")

    def load(self, value: object, session: object = None) -> None:
        """Set the value in `session` or the default one, outside of a run."""
        session_for(session, f"load '{self.name}'").load(self, value)

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' {self._dtype_and_shape()}>"


def _assign_value(variable: GraphVariable, leaf: Any, value: Any) -> object:
    """Write a value to a leaf; create a missing leaf, or replace a leaf of another shape."""
    if leaf is not None and variable.shape.is_fully_defined():
        return leaf.assign(value)
    # A variable with unknown sizes may get a value of another shape.
    _initialize_in_session(variable, value)
    return resolve(variable)


def _count_up_to(name: str, limit: int, leaf: Any) -> torch.Tensor:
    """Add 1 to a leaf in place; return the previous value."""
    previous_count = leaf.detach().clone()
    if previous_count.item() >= limit:
        raise OutOfRangeError(f"'{name}' reached limit of {limit}")
    leaf.assign_add(1)
    return previous_count


def _gather_rows(table: torch.Tensor, indices: object) -> torch.Tensor:
    """Return the rows of a table at indices."""
    return table[to_tensor(indices).long()]


def scatter_node(
    var: GraphVariable, indices: object, updates: object, update: str, name: str
) -> Any:
    """Return a tensor: a run of the tensor changes rows of `var`, and returns the new value.

    While a session runs an operation, change the rows at once, and return the session's tensor.
    `update` is one of the updates of `_base.scatter.scatter`, such as "add".
    """
    if current_session() is not None:
        leaf = resolve(var)
        scatter(leaf, resolve(indices), resolve(updates), update)
        return leaf

    def scatter_rows(leaf: torch.Tensor, rows: object, values: object) -> torch.Tensor:
        scatter(leaf, rows, values, update)
        return leaf.detach()

    arguments = (Reference(var), indices, densify(updates))
    output = Output(var.dtype, var.shape, ())
    return add_tensor(var.graph, name, scatter_rows, arguments, output, kind="update")


def check_updates(pairs: Iterable[tuple[Any, Any]]) -> None:
    """Raise an error for (gradient, variable) pairs that no operation can apply.

    Raises:
        NotImplementedError: A variable is a computed or fed tensor.
        RuntimeError: A gradient is sparse, and its variable has a constraint.
        InvalidTypeError: The dtypes of a pair are known and differ.
        InvalidArgumentError: The shapes of a pair are known and differ.
    """
    for grad, var in pairs:
        if not isinstance(var, GraphVariable):
            var_name = var.name if is_symbolic(var) else name_of(var, "Tensor")
            raise NotImplementedError(
                f"Trying to update a Tensor {var_name!r}, which is no variable:"
                " it is computed or fed in each run of a session."
            )
        if isinstance(grad, SymbolicSlices) and var.constraint is not None:
            raise sparse_and_constrained(var.name)
        _check_known(grad, var)


def _check_known(grad: object, var: GraphVariable) -> None:
    """Raise an error if the known dtype or shape of a gradient does not fit the variable."""
    dtype, shape = getattr(grad, "dtype", None), getattr(grad, "shape", UNKNOWN)
    if isinstance(dtype, torch.dtype) and var.dtype not in (None, dtype):
        raise InvalidTypeError(
            f"Gradient of '{var.name}' is {dtype_name(dtype)} but the variable is"
            f" {dtype_name(var.dtype)}. Cast the gradient."
        )
    is_dense = isinstance(grad, SymbolicTensor | torch.Tensor)
    if is_dense and not var.shape.accepts(shape):
        raise InvalidArgumentError(
            f"Gradient of '{var.name}' has shape {tuple(shape)} but the variable has shape"
            f" {tuple(var.shape)}."
        )


def alias_node(tensor: SymbolicTensor, name: str) -> Any:
    """Return a copy of `tensor` after the control dependencies; in a run, the value at once."""
    if current_session() is not None:
        value = resolve(tensor)
        return value.read_value() if isinstance(value, EagerVariable) else value
    output = Output(tensor.dtype, tensor.shape, (tensor,))
    alias = add_tensor(tensor.graph, name, _alias_value, (tensor,), output)
    alias.may_be_sparse = tensor.may_be_sparse
    return alias


def _alias_value(value: object) -> object:
    """Return the value unchanged."""
    # Not view_as(), through which no sparse gradient flows.
    return value[...] if isinstance(value, torch.Tensor) else value


def create_variable(
    graph: Nodes,
    initial_value: Any,
    name: str,
    *,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    dtype: Any = None,
    constraint: Constraint | None = None,
    shape: Sequence[int] | None = None,
    validate_shape: bool = True,
    deferred: Output | None = None,
    absolute: bool = False,
    use_resource: bool | None = None,
) -> GraphVariable:
    """Create a variable of a graph; see `Variable` and `make_variable` for the arguments.

    If `initial_value` is a function, call it now; the result is the initial value. If `deferred`
    describes the result, each run that initializes the variable calls the function instead.
    """
    variable_dtype = None if dtype is None else as_dtype(dtype)
    check_constraint(constraint)
    # A session initializes the variable before it runs the operations of the current scope.
    with graph.as_default(), graph.control_dependencies(None), graph.as_one(False):
        # `add` reserves the name below; the operations of the initial value use it as a scope.
        full = graph.unique_name(name, mark_as_used=False, absolute=absolute)
        if deferred is None:
            arguments = graph, full, initial_value, shape, variable_dtype
            initial_value, shape = _symbolic_start(*arguments)
        options = {"kind": "variable", "type": "VariableV2", "make": GraphVariable}
        variable = add_tensor(graph, full, None, (), Output(), absolute=True, **options)
        initial_name = f"{variable.op.name}/initial_value"
        start = _initial_tensor(graph, initial_value, initial_name, deferred)
        begin_with(variable, start)
    variable.op.device = start.device
    static = start.shape if shape is None else declared_shape(shape, start.shape)
    variable.dtype, variable.shape = start.dtype, static if validate_shape else UNKNOWN
    variable.trainable, variable.constraint = bool(trainable), constraint
    is_resource = process.resource_variables if use_resource is None else use_resource
    variable.is_resource = bool(is_resource)
    _collect_variable(graph, variable, collections)
    return variable


def _symbolic_start(
    graph: Nodes,
    name: str,
    initial_value: Any,
    shape: Sequence[int] | None,
    dtype: torch.dtype | None,
) -> tuple[SymbolicTensor, Sequence[int] | None]:
    """Return (initial value as a torch or symbolic tensor, declared shape or None).

    Call `initial_value` if it is a function. A function that needs arguments receives `shape` and
    `dtype`; the declared shape is then None.
    """
    if callable(initial_value):
        is_initializer = shape is not None and needs_arguments(initial_value)
        with graph.name_scope(f"{name}/Initializer/"):
            initial_value = initial_value(*((shape, dtype) if is_initializer else ()))
        shape = None if is_initializer else shape
    if not isinstance(initial_value, SymbolicTensor):
        initial_value = _constant_copy(initial_value, dtype, name)
    elif dtype not in (None, initial_value.dtype):
        initial_value = initial_value.to(dtype)
    return initial_value, shape


def _collect_variable(
    graph: Nodes, variable: GraphVariable, collections: Iterable[str] | None
) -> None:
    """Add a variable to `collections`; add a trainable variable to TRAINABLE_VARIABLES, too."""
    keys = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
    if variable.trainable and GraphKeys.TRAINABLE_VARIABLES not in keys:
        keys.append(GraphKeys.TRAINABLE_VARIABLES)
    graph.add_to_collections(keys, variable)


def declared_shape(shape: object, value_shape: Any) -> Shape | UnknownShape:
    """Return `shape` as a static shape.

    Raise InvalidArgumentError if `value_shape`, the shape of the initial value, does not fit.
    """
    declared = Shape(shape)
    if not declared.accepts(value_shape):
        raise InvalidArgumentError(
            f"In this `tf.Variable` creation, the initial value's shape ({tuple(value_shape)}) is"
            " not compatible with the explicitly supplied `shape` argument"
            f" ({declared.as_list()})."
        )
    return declared


def needs_arguments(function: Callable[..., object]) -> bool:
    """Return True if a function requires arguments, or has no signature."""
    # `bind` without arguments fails if an argument has no default.
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return True
    return False


def begin_with(variable: GraphVariable, start: SymbolicTensor) -> None:
    """Replace `variable.initial_value` by `start`, and `variable.initializer` by a new operation.

    The former initializer still assigns the former initial value.
    """
    variable.initializer = add(
        variable.graph,
        f"{variable.op.name}/Assign",
        functools.partial(_initialize_in_session, variable),
        (start,),
        kind="update",
        type="Assign",
        absolute=True,
    )
    variable.initial_value = start


def _constant_copy(value: object, dtype: object, name: str) -> torch.Tensor:
    """Return a copy of an initial value as a tensor; raise InvalidTypeError if not numeric."""
    if isinstance(value, torch.Tensor):
        check_held(value, f"The initial value of '{name}'")
    tensor = as_asked(value, dtype).detach()
    # A parameter is not copied: a session's initialization reads its value at that time.
    is_shared = isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
    return tensor.clone() if is_shared else tensor


def _initial_tensor(graph: Nodes, value: Any, name: str, deferred: Output | None) -> SymbolicTensor:
    """Return an initial value as a symbolic tensor; for `deferred` see `create_variable`."""
    if isinstance(value, SymbolicTensor):
        source = value.op.inputs[0] if value.op.function is _alias_value else value
        # Of a variable that begins with another's value, so that either may be initialized first.
        return source.initialized_value() if isinstance(source, GraphVariable) else value
    if deferred is not None:
        return add_tensor(graph, name, value, (), deferred, kind="update", absolute=True)
    output = Output(value.dtype, tuple(value.shape), ())
    start = add_tensor(graph, name, lambda: value, (), output, type="Const", absolute=True)
    start.op.device = value.device
    return start


def _initialize_in_session(variable: GraphVariable, value: object) -> None:
    """Set the first value of a variable in the running session."""
    session = current_session()
    if session is not None:
        session.initialize(variable, value)


def variable_of(graph: Nodes, tensor: torch.Tensor, name: str | None = None) -> GraphVariable:
    """Return the graph variable of a parameter or buffer; the first call creates the variable.

    `name` is for a tensor without a name. The initial value of a buffer is copied now, the value of
    a parameter when a session initializes the variable.
    """
    with graph.lock:
        if id(tensor) not in graph.stand_ins:
            tensor_name = name_of(tensor, "").removesuffix(":0")
            variable = create_variable(
                graph,
                tensor,
                tensor_name or name or "Variable",
                trainable=isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad,
                constraint=variable_constraint(tensor),
                absolute=bool(tensor_name or name),
            )
            # The tensor is stored, too, so that its id is not reused.
            graph.stand_ins[id(tensor)] = (tensor, variable)
        return graph.stand_ins[id(tensor)][1]
