"""The operations that TensorFlow 1 programs build their graphs from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from thalweg._base.execution_context import executing_eagerly, resolve
from thalweg._base.scatter import UPDATES, scatter
from thalweg._base.static_shape import UNKNOWN, Shape
from thalweg._core.nest import leaves_of
from thalweg._graph.add_operation import add_tensor
from thalweg._graph.default_graph import get_default_graph, graph_variable_of, has_symbol
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.shape_arguments import ints, known_sizes, sizes_of
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg._graph.variables import GraphVariable, alias_node, scatter_node
from thalweg.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import embedding_lookup as eager_lookup
from thalweg.indexed_slices import table_of
from thalweg.variable import as_asked, as_dtype, check_held, dtype_name


def placeholder(
    dtype: object, shape: Sequence[int | None] | None = None, name: str | None = None
) -> SymbolicTensor:
    """Return a tensor whose value is passed in `feed_dict` to each run.

    Args:
        dtype: Fed values are converted to this dtype.
        shape: By default unknown. A size of None may differ between runs.

    Raises:
        FailedPreconditionError: Called in eager mode.
    """
    if executing_eagerly():
        raise FailedPreconditionError(
            "placeholder() is not compatible with eager execution. Build the graph inside of `with"
            " thalweg.v1.Graph().as_default():`, or call thalweg.v1.disable_eager_execution()"
            " before anything else."
        )
    graph, kind = get_default_graph(), as_dtype(dtype)

    # Called only if a run needs the tensor, but does not feed it.
    def refuse_unfed() -> NoReturn:
        raise InvalidArgumentError(
            f"You must feed a value for placeholder tensor '{fed.op.name}' with dtype "
            f"{dtype_name(kind)}"
        )

    label, options = name or "Placeholder", {"kind": "placeholder", "type": "Placeholder"}
    fed = add_tensor(graph, label, refuse_unfed, (), Output(kind, shape), **options)
    return fed


def placeholder_with_default(
    input: object, shape: Sequence[int | None] | None, name: str | None = None
) -> SymbolicTensor:
    """Return a tensor that can be fed; in runs without a feed, it has the value of `input`."""
    value = convert_to_tensor(input)
    default = alias_node(value, name or "PlaceholderWithDefault")
    default.shape = Shape(shape)
    return default


def constant(
    value: object,
    dtype: object = None,
    shape: Sequence[int] | None = None,
    name: str | None = "Const",
    verify_shape: bool = False,
) -> Any:
    """Return a constant symbolic tensor; in eager mode a torch tensor.

    Args:
        value: Any argument of `thalweg.variable.to_tensor`.
        dtype: Optional; converts the value, see `thalweg.variable.as_asked`.
        shape: Optional. A single number fills the shape; several numbers are reshaped. In a graph,
            the last number is repeated if there are too few numbers.
        verify_shape: True to require a value of shape `shape`.

    Raises:
        InvalidTypeError: The value is not numeric. Or it does not fit the shape, in eager mode or
            with `verify_shape`.
        InvalidArgumentError: There are too many numbers for the shape, or a number does not fit
            the dtype.
    """
    if isinstance(value, torch.Tensor):
        check_held(value)
    tensor = as_asked(value, dtype).detach()
    # A copy, since the caller may change the tensor later.
    if isinstance(value, torch.Tensor):
        tensor = tensor.clone()
    if shape is not None:
        count, capacity = tensor.numel(), torch.Size(shape).numel()
        if verify_shape and tuple(tensor.shape) != tuple(shape):
            raise InvalidTypeError(
                f"Expected a value with shape {tuple(shape)}, but got shape {tuple(tensor.shape)}."
            )
        if count not in (1, capacity):
            tensor = _pad_elements(tensor, capacity, shape)
        tensor = tensor.reshape(() if count == 1 else shape).expand(shape)
    if executing_eagerly():
        return tensor
    output = Output(tensor.dtype, tuple(tensor.shape), ())
    graph, label = get_default_graph(), name or "Const"
    symbol = add_tensor(graph, label, lambda: tensor, (), output, type="Const")
    symbol.op.device = tensor.device
    return symbol


def _pad_elements(tensor: torch.Tensor, capacity: int, shape: Sequence[int]) -> torch.Tensor:
    """Return the elements as a vector, extended to `capacity` by copies of the last element.

    A tensor without elements is extended by 0. Raise InvalidArgumentError if there are more than
    `capacity` elements. In eager mode always raise InvalidTypeError.
    """
    count = tensor.numel()
    message = f"{count} values do not fit shape {tuple(shape)}, which holds {capacity}."
    # TensorFlow pads constants only in graphs.
    if executing_eagerly():
        raise InvalidTypeError(message)
    if count > capacity:
        raise InvalidArgumentError(f"Too many elements provided: {message}")
    last_element = tensor.reshape(-1)[-1:] if count else tensor.new_zeros(1)
    return torch.cat([tensor.reshape(-1), last_element.expand(capacity - count)])


def convert_to_tensor(value: object, dtype: object = None, name: str | None = None) -> Any:
    """Return `value` as a symbolic tensor, or in eager mode as a torch tensor.

    Args:
        value: A symbolic tensor, slices, a torch parameter, an object with `_as_graph_element`, or
            an argument of `to_tensor`. Also a list of symbolic tensors and values of one shape.
        dtype: Optional; an eager tensor of another dtype is converted.

    Raises:
        InvalidTypeError: The value is not numeric, or a symbolic tensor of another dtype.
    """
    # While a session runs an operation, use the run's values.
    value = resolve(value)
    if isinstance(value, SymbolicSlices):
        value = value.graph.call(lambda whole: whole.to_dense(), (value,), name="to_dense")
    elif has_symbol(value) and not executing_eagerly():
        value = graph_variable_of(value)
    if isinstance(value, (list, tuple)) and any(
        isinstance(leaf, SymbolicTensor) for leaf in leaves_of(value)
    ):
        value = torch.stack([convert_to_tensor(item, dtype) for item in value])
    if isinstance(value, torch.Tensor) and executing_eagerly():
        if dtype is None:
            return value
        check_held(value)
        # Not a new tensor: gradients flow through `to`.
        return value.to(as_dtype(dtype))
    if not isinstance(value, SymbolicTensor):
        return constant(value, dtype, name=name or "Const")
    if dtype is not None and value.dtype not in (None, as_dtype(dtype)):
        raise InvalidTypeError(
            f"'{value.name}' is {dtype_name(value.dtype or torch.float32)}, not "
            f"{dtype_name(as_dtype(dtype))}. Cast it."
        )
    return value


def identity(input: object, name: str | None = None) -> Any:
    """Return a copy of a tensor, computed after the current control dependencies."""
    value = convert_to_tensor(input)
    if not isinstance(value, SymbolicTensor):
        return value
    return alias_node(value, name or "Identity")


def stop_gradient(input: object, name: str | None = None) -> Any:
    """Return a tensor with the same value, through which no gradient flows."""
    value = convert_to_tensor(input)
    if not isinstance(value, SymbolicTensor):
        return value.detach()
    return value.graph.call(torch.Tensor.detach, (value,), name=name or "StopGradient")


def embedding_lookup(params: object, ids: object, name: str | None = None) -> Any:
    """Return the rows of `params` at `ids`; the gradient of a variable is `IndexedSlices`.

    Args:
        params: A tensor of shape (rows, *row shape), or a list of one tensor.
        ids: int32 or int64, of any shape.

    Raises:
        InvalidTypeError: The ids are not int32 or int64, or `params` lists several tensors.
        InvalidArgumentError: In a run on the CPU, an id is not in [0, rows).
    """
    if executing_eagerly():
        return eager_lookup(params, ids)
    table = convert_to_tensor(table_of(params))
    node_name = name or "embedding_lookup"
    return table.graph.call(
        eager_lookup,
        (table, convert_to_tensor(ids)),
        name=node_name,
        sparse_flows=frozenset({table}),
    )


def gather(
    params: object, indices: object, validate_indices: object = None, name: str | None = None
) -> Any:
    """Return `embedding_lookup(params, indices)`; `validate_indices` is ignored."""
    return embedding_lookup(convert_to_tensor(params), indices, name or "Gather")


def cast(x: object, dtype: object, name: str | None = None) -> Any:
    """Return `x` converted to a dtype."""
    kind = as_dtype(dtype)
    value = convert_to_tensor(x)
    if not isinstance(value, SymbolicTensor):
        return value.to(kind)
    return value.graph.call(torch.Tensor.to, (value, kind), name=name or "Cast")


def assign(
    ref: GraphVariable, value: object, validate_shape: object = None, use_locking: object = None,
    name: str | None = None,
) -> Any:  # fmt: skip
    """Return `ref.assign(value)`; `validate_shape=False` lets the variable change its shape."""
    if validate_shape is False and isinstance(ref, GraphVariable):
        ref.shape = UNKNOWN
    return ref.assign(value, name=name)


def assign_add(
    ref: GraphVariable, value: object, use_locking: object = None, name: str | None = None
) -> SymbolicTensor:
    """Return `ref.assign_add(value)`."""
    return ref.assign_add(value, name=name)


def assign_sub(
    ref: GraphVariable, value: object, use_locking: object = None, name: str | None = None
) -> SymbolicTensor:
    """Return `ref.assign_sub(value)`."""
    return ref.assign_sub(value, name=name)


def creation_node(
    function: Callable[..., torch.Tensor], shape: object, dtype: object, name: str
) -> Any:
    """Return `function(sizes, dtype)`; in graph mode, each run calls `function`.

    `sizes` is a tuple of ints. `shape` may contain symbolic sizes, see `sizes_of`.
    """
    kind, sizes = as_dtype(dtype), sizes_of(shape)
    if executing_eagerly():
        return function(sizes, kind)
    output = Output(kind, known_sizes(sizes), ())

    def create_tensor(sizes: object) -> torch.Tensor:
        return function(ints(sizes), kind)

    return add_tensor(get_default_graph(), name, create_tensor, (sizes,), output)


def zeros(shape: object, dtype: object = torch.float32, name: str | None = "zeros") -> Any:
    """Return a tensor of zeros."""
    return creation_node(
        lambda size, kind: torch.zeros(size, dtype=kind, device=torch.get_default_device()),
        shape,
        dtype,
        name or "zeros",
    )


def ones(shape: object, dtype: object = torch.float32, name: str | None = "ones") -> Any:
    """Return a tensor of ones."""
    return creation_node(
        lambda size, kind: torch.ones(size, dtype=kind, device=torch.get_default_device()),
        shape,
        dtype,
        name or "ones",
    )


def _scatter_function(update: str) -> Callable[..., Any]:
    """Return the function `scatter_<update>(ref, indices, updates, use_locking, name)`."""

    def apply(
        ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
    ) -> object:
        node_name = name or f"Scatter{update.capitalize()}"
        if isinstance(ref, GraphVariable):
            return scatter_node(ref, indices, updates, update, node_name)
        scatter(ref, indices, updates, update)
        return ref

    apply.__name__ = apply.__qualname__ = f"scatter_{update}"
    apply.__doc__ = f"""Change rows of a variable by "{update}"; see `_base.scatter.scatter`.

    Args:
        ref: The variable.
        indices: int32 or int64, of any shape.
        updates: Of shape (*indices shape, *row shape), or a scalar.
        use_locking: Ignored; all updates lock.
        name: Optional.

    Returns:
        The variable; in a graph a tensor that makes the update and is the new value.
    """
    return apply


scatter_add, scatter_sub, scatter_mul, scatter_div, scatter_min, scatter_max, scatter_update = map(
    _scatter_function, UPDATES
)
