"""Creation, shapes and parts of tensors."""

from __future__ import annotations

import builtins
import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import known_size, known_sizes, ones, sizes_of, zeros
from thalweg._graph.ops import creation_node
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices
from thalweg.tf import concat_split
from thalweg.tf.concat_split import *
from thalweg.tf.concat_split import as_known_int
from thalweg.tf.convert import (
    call,
    is_tensor,
    named_in_graphs,
    newer_axis,
    pair,
    set_static,
    sizes,
    tensor,
)
from thalweg.tf.matrices import einsum, matmul, tensordot
from thalweg.variable import Variable, as_asked, as_dtype, dtype_name, to_tensor

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *concat_split.__all__, "broadcast_to", "constant", "convert_to_tensor", "einsum", "expand_dims",
    "eye", "fill", "gather", "identity", "linspace", "matmul", "one_hot", "ones", "ones_like",
    "range", "rank", "reshape", "shape", "size", "squeeze", "tensordot", "tile", "transpose",
    "zeros", "zeros_like",
]  # fmt: skip


def constant(
    value: object, dtype: object = None, shape: object = None, name: str | None = "Const"
) -> Tensor:
    """Return a new tensor from a number, array or nested lists, optionally reshaped to `shape`.

    A single value fills `shape`. Raise InvalidTypeError if the value is not numeric, or has another
    number of elements than the shape.
    """
    if shape is not None and not _graph.executing_eagerly():
        capacity, count = math.prod(sizes(shape)), as_asked(value, dtype).numel()
        if count not in (1, capacity):
            raise InvalidTypeError(
                f"{count} values do not fit shape {sizes(shape)}, which holds {capacity}."
            )
    return _graph.constant(value, dtype, None if shape is None else sizes(shape), name)


@named_in_graphs(2, "name")
def convert_to_tensor(
    value: object, dtype: object = None, dtype_hint: object = None, name: str | None = None
) -> Tensor:
    """Return a tensor unchanged, the value of a variable, or a new tensor from other values.

    `dtype_hint` is the dtype of a new tensor if `dtype` is None. Raise InvalidTypeError if a tensor
    does not have the dtype `dtype`.
    """
    if dtype is not None and isinstance(value, np.ndarray | np.generic):
        return _graph.constant(value, dtype, name=name)
    output = tensor(value, dtype_hint if dtype is None else dtype, name)
    if dtype is not None and output.dtype not in (None, as_dtype(dtype)):
        kinds = f"{dtype_name(output.dtype)}, not {dtype_name(as_dtype(dtype))}"
        raise InvalidTypeError(f"The tensor that is to be converted is {kinds}. Cast it.")
    return output.read_value() if isinstance(output, Variable) else output


def identity(input: object, name: str | None = None) -> Tensor:
    """Return a new tensor with the values of another one."""
    return call(torch.Tensor.clone, tensor(input), name=name or "Identity")


def fill(dims: object, value: object, name: str | None = None) -> Tensor:
    """Return a tensor of one number."""
    filling = tensor(value)
    full = call(lambda num, size: num.expand(sizes(size)), filling, sizes_of(dims), name="Fill")
    return set_static(full, filling.dtype, lambda: known_sizes(dims))


def zeros_like(input: object, dtype: object = None, name: str | None = None) -> Tensor:
    """Return zeros in the shape, and by default the dtype, of a tensor."""
    return _filled_like(torch.zeros_like, input, dtype, name or "zeros_like")


def ones_like(input: object, dtype: object = None, name: str | None = None) -> Tensor:
    """Return ones in the shape, and by default the dtype, of a tensor."""
    return _filled_like(torch.ones_like, input, dtype, name or "ones_like")


def _filled_like(function: Any, input: object, dtype: Any, name: str) -> Tensor:
    source, kind = tensor(input), None if dtype is None else as_dtype(dtype)
    if isinstance(source, _graph.SymbolicTensor) and _graph.Shape(source.shape).is_fully_defined():
        kind = kind or source.dtype
        if kind is not None:
            # Shape and dtype are known, so a constant does without the tensor's value.
            empty = torch.empty((), dtype=kind, device=torch.get_default_device())
            empty = empty.expand(tuple(source.shape))
            return _graph.constant(function(empty), name=name)
    return call(lambda source: function(source.detach(), dtype=kind), source, name=name)


def eye(
    num_rows: object,
    num_columns: object = None,
    batch_shape: object = (),
    dtype: object = torch.float32,
    name: str | None = "eye",
) -> Tensor:
    """Return identity matrices of shape (*batch_shape, num_rows, num_columns)."""
    columns = num_rows if num_columns is None else num_columns

    def make(size: Any, kind: torch.dtype) -> Tensor:
        identity = torch.eye(*size[-2:], dtype=kind, device=torch.get_default_device())
        # Without the copy, all matrices of the batch would share memory.
        return identity.expand(size).contiguous()

    return creation_node(
        make, [*sizes_of(batch_shape or ()), num_rows, columns], dtype, name or "eye"
    )


def range(
    start: object, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str | None = "range"
) -> Tensor:
    """Return the numbers from `start` to below `limit`. `range(n)` begins at 0.

    The default dtype is the dtype of the arguments; for Python numbers int32 or float32. Raise
    InvalidArgumentError if `delta` is 0, or has the wrong sign.
    """
    start, limit = (0, start) if limit is None else (start, limit)
    operands = [tensor(value) for value in (start, limit, delta)]
    common_dtype = functools.reduce(torch.promote_types, (value.dtype for value in operands))
    kind = common_dtype if dtype is None else as_dtype(dtype)

    def count(*values: Tensor) -> Tensor:
        first, end, step = (value.to(kind) for value in values)
        if step.item() == 0 or (end.item() - first.item()) * step.item() < 0:
            start, limit, delta = (value.item() for value in values)
            raise InvalidArgumentError(f"delta={delta} does not lead from {start} to {limit}.")
        device = torch.get_default_device()
        if not kind.is_floating_point:
            bounds = first.item(), end.item(), step.item()
            return torch.arange(*bounds, dtype=kind, device=device)
        # The quotient is rounded in the dtype, as in TensorFlow.
        length = math.ceil(((end - first) / step).item())
        positions = torch.arange(length, dtype=torch.float64, device=device)
        return (positions * step.item() + first.item()).to(kind)

    def static_shape() -> list[int | None]:
        bounds = known_sizes(operands) or [None]
        is_open = None in bounds or not bounds[-1]
        return [None if is_open else len(builtins.range(*bounds))]  # pyright: ignore

    return set_static(call(count, *operands, name=name or "range"), kind, static_shape)


def linspace(start: object, stop: object, num: object, name: str | None = None) -> Tensor:
    """Return `num` equally spaced numbers from `start` to `stop`; integers become float32."""
    first, end = pair(start, stop)
    kind = first.dtype if first.dtype.is_floating_point else torch.float32

    def spread(first: Tensor, end: Tensor, count: Tensor) -> Tensor:
        device = torch.get_default_device()
        return torch.linspace(first.item(), end.item(), int(count), dtype=kind, device=device)

    points = call(spread, first, end, num, name=name or "linspace")
    return set_static(points, kind, lambda: [known_size(num)])


def one_hot(
    indices: object,
    depth: object,
    on_value: object = None,
    off_value: object = None,
    axis: int | None = None,
    dtype: object = None,
    name: str | None = None,
) -> Tensor:
    """Return one-hot vectors of length `depth` along a new `axis`, by default the last axis.

    The element at the index is `on_value`, by default 1, and all others are `off_value`, by default
    0. An index out of range gives `off_value` only. The default dtype is that of `on_value` or
    `off_value`, else float32.
    """
    values = [None if entry is None else tensor_or_value(entry) for entry in (on_value, off_value)]
    dtypes = [entry.dtype for entry in values if entry is not None]
    kind = as_dtype(dtype) if dtype is not None else dtypes[0] if dtypes else torch.float32
    hot, cold = (
        tensor_or_value(default if entry is None else entry, kind)
        for entry, default in ((on_value, 1), (off_value, 0))
    )
    position = -1 if axis is None else axis

    def encode(ids: Tensor, depth: Tensor, hot: Tensor, cold: Tensor) -> Tensor:
        positions = torch.arange(int(depth), dtype=torch.int64, device=ids.device)
        is_hot = ids.unsqueeze(-1) == positions
        return torch.where(is_hot, hot.to(ids.device), cold.to(ids.device)).movedim(-1, position)

    ids = tensor(indices)

    def static_shape() -> Any:
        if ids.shape is UNKNOWN:
            return None
        sizes = list(ids.shape)
        sizes.insert(position if position >= 0 else len(sizes) + 1 + position, known_size(depth))  # pyright: ignore
        return sizes

    encoding = call(encode, ids, depth, hot, cold, name=name or "one_hot")
    return set_static(encoding, kind, static_shape)


def tensor_or_value(operand: object, dtype: object = None) -> Tensor:
    """Return a tensor; convert other values eagerly, not to nodes of a graph."""
    return tensor(operand) if is_tensor(operand) else to_tensor(operand, dtype)


@named_in_graphs(1, "name")
def shape(input: object, out_type: object = torch.int32, name: str | None = None) -> Tensor:
    """Return the shape of a tensor as a tensor of dtype `out_type`."""
    kind, source = as_dtype(out_type), tensor(input)

    def measure(value: Tensor) -> Tensor:
        return torch.tensor(value.shape, dtype=kind, device=torch.get_default_device())

    if not isinstance(source, _graph.SymbolicTensor):
        return measure(source)
    rank = None if source.shape is UNKNOWN else (len(source.shape),)
    output = _graph.Output(kind, rank, ())
    symbol = _graph.operation(measure, [source], name or "Shape", kind="pure", outputs=output)
    # An operation of this type has a known value where the sizes are known.
    symbol.op.type = "Shape"
    return symbol


@named_in_graphs(1, "name")
def size(input: object, out_type: object = torch.int32, name: str | None = None) -> Tensor:
    """Return the number of elements as a tensor."""
    return call(lambda sizes: sizes.prod(dtype=as_dtype(out_type)), shape(input), name=name)


def rank(input: object, name: str | None = None) -> Tensor:
    """Return the number of dimensions as a tensor."""
    source: object = tensor(input)
    if source.shape is UNKNOWN:
        output = _graph.Output(torch.int32, (), ())
        arguments = ([source], name or "Rank")
        return _graph.operation(_rank_of, *arguments, kind="pure", outputs=output)
    return _graph.constant(len(source.shape), name=name or "Rank")


def _rank_of(operand: Tensor) -> Tensor:
    return torch.tensor(operand.dim(), dtype=torch.int32, device=torch.get_default_device())


def reshape(tensor: object, shape: object, name: str | None = None) -> Tensor:
    """Return the elements of a tensor in another shape; one size may be -1."""
    source, target = as_tensor(tensor), sizes_of(shape)

    def static_shape() -> list[int | None] | None:
        dims = known_sizes(target)
        return None if dims is None else [None if size == -1 else size for size in dims]

    reshaped = call(lambda x, size: x.reshape(sizes(size)), source, target, name=name or "Reshape")
    return set_static(reshaped, source.dtype, static_shape)


@named_in_graphs(2, "name")
def transpose(
    a: object, perm: Any = None, conjugate: bool = False, name: str | None = None
) -> Tensor:
    """Return a tensor with dimensions in the order `perm`, by default reversed.

    `conjugate` also conjugates the elements.
    """

    def turn(matrix: Tensor) -> Tensor:
        order = tuple(reversed([*builtins.range(matrix.dim())])) if perm is None else sizes(perm)
        return (matrix.conj() if conjugate else matrix).permute(order)

    return call(turn, tensor(a), name=name or "transpose")


def expand_dims(
    input: object, axis: object = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """Insert a dimension of size 1; `dim` is the old name of `axis`."""
    position = as_known_int(newer_axis(axis, dim, "dim"))
    return call(torch.unsqueeze, tensor(input), position, name=name or "ExpandDims")


def squeeze(
    input: object, axis: object = None, name: str | None = None, squeeze_dims: object = None
) -> Tensor:
    """Return the tensor without the dimensions in `axis`, by default all of size 1.

    `squeeze_dims` is the old name of `axis`. Raise InvalidArgumentError if a dimension in `axis`
    has a size other than 1.
    """
    axis = newer_axis(axis, squeeze_dims, "squeeze_dims")
    axes = () if axis is None else sizes(axis)
    source = tensor(input)

    def remaining_sizes(shape: Any) -> list[int | None]:
        """Return the sizes without the dropped axes."""
        rank = len(shape)
        if any(not -rank <= axis < rank or shape[axis] not in (1, None) for axis in axes):
            raise InvalidArgumentError(
                f"axis {list(axes)} must name dimensions of size 1; the shape is {tuple(shape)}."
            )
        dropped_axes = {dropped_axis % rank for dropped_axis in axes}
        return [size for position, size in enumerate(shape) if position not in dropped_axes]

    def drop(x: Any) -> Tensor:
        return x.reshape(remaining_sizes(x.shape)) if axes else x.squeeze()

    if source.shape is not UNKNOWN:
        remaining_sizes(source.shape)
    squeezed = call(drop, source, name=name or "Squeeze")
    return set_static(
        squeezed,
        source.dtype,
        lambda: remaining_sizes(source.shape) if axes and source.shape else None,
    )


def tile(input: object, multiples: object, name: str | None = None) -> Tensor:
    """Return the tensor repeated `multiples[i]` times along each dimension i."""
    source, repeats = tensor(input), sizes_of(multiples)

    def static_shape() -> list[int | None] | None:
        counts = known_sizes(repeats)
        if counts is None or source.shape is UNKNOWN:
            return None
        pairs = zip(source.shape, counts, strict=False)
        return [None if size is None or count is None else size * count for size, count in pairs]

    def repeat(x: Tensor, counts: Tensor) -> Tensor:
        if len(sizes(counts)) != x.dim():
            raise InvalidArgumentError(
                f"multiples must be a number for each dimension of {tuple(x.shape)}, not"
                f" {list(sizes(counts))}."
            )
        return x.repeat(sizes(counts))

    tiled = call(repeat, source, repeats, name=name or "Tile")
    return set_static(tiled, source.dtype, static_shape)


def broadcast_to(input: object, shape: object, name: str | None = None) -> Tensor:
    """Return the tensor repeated along dimensions of size 1, up to a shape."""
    source, target = tensor(input), sizes_of(shape)
    output = call(lambda x, size: x.expand(sizes(size)), source, target, name=name or "BroadcastTo")
    return set_static(output, source.dtype, lambda: known_sizes(target))


@named_in_graphs(3, "name")
def gather(
    params: object,
    indices: object,
    validate_indices: object = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Tensor:
    """Return the slices of a tensor at indices along an axis.

    For axis 0 of a variable the gradient is `IndexedSlices`.

    Args:
        indices: int32 or int64. In the result's shape, the shape of `indices` replaces the axis.
        validate_indices: Ignored: indices are always validated.
        axis: By default `batch_dims`.
        batch_dims: Number of leading dimensions that `params` and `indices` share. A negative
            number counts from the rank of `indices`.

    Raises:
        InvalidArgumentError: The leading dimensions differ. `axis` is a leading dimension, or not a
            dimension of `params`. On the CPU, an index is out of range.
    """
    gather_axis = batch_dims if axis is None else as_known_int(axis)
    if gather_axis == 0 and not batch_dims:
        return _graph.embedding_lookup(tensor(params), tensor(indices), name or "Gather")

    def pick(operand: Tensor, positions: Tensor) -> Tensor:
        lead = batch_dims + positions.dim() if batch_dims < 0 else batch_dims
        check_batch(operand, positions, lead)
        rank = operand.dim()
        if not -rank <= gather_axis < rank:
            raise InvalidArgumentError(
                f"axis must be in [{-rank}, {rank}) for params of rank {rank}, not {gather_axis}."
            )
        axis = gather_axis % rank
        if not batch_dims:
            return _pick_rows(operand, positions, axis)
        return _pick_in_batches(operand, positions, axis, lead)

    return call(pick, tensor(params), tensor(indices), name=name or "Gather")


def _pick_rows(operand: Tensor, positions: Tensor, axis: int) -> Tensor:
    rows = positions.reshape(-1)
    _check_range(rows, operand.shape[axis])
    picked = operand.index_select(axis, rows)
    return picked.reshape(*operand.shape[:axis], *positions.shape, *operand.shape[axis + 1 :])


def _pick_in_batches(operand: Tensor, positions: Tensor, axis: int, batch_dims: int) -> Tensor:
    """Return slices along `axis` of each batch, at the `positions` of this batch.

    The first `batch_dims` dimensions of both tensors number the batches.
    """
    if axis < batch_dims:
        raise InvalidArgumentError(f"axis must be at least batch_dims={batch_dims}, not {axis}.")
    lead, row_count = operand.shape[:batch_dims], operand.shape[axis]
    is_checked = _check_range(positions.reshape(-1), row_count)
    # One table of the rows of all batches: row i of batch k is row `k * row_count + i`.
    table = operand.movedim(axis, batch_dims).flatten(0, batch_dims)
    firsts = torch.arange(lead.numel(), dtype=torch.int64, device=positions.device) * row_count
    rows = positions + firsts.view(*lead, *[1] * (positions.dim() - batch_dims))
    if not is_checked:
        # `index_select` rejects the number of all rows; `rows` may be those of another batch.
        rows = torch.where((positions >= 0) & (positions < row_count), rows, len(table))
    picked = table.index_select(0, rows.reshape(-1)).unflatten(0, positions.shape)
    outer = [*builtins.range(batch_dims, axis)]
    return picked.movedim([dim + positions.dim() - batch_dims for dim in outer], outer).contiguous()


def _check_range(rows: Tensor, row_count: int) -> bool:
    """Return True after a check of row numbers on the CPU; return False on another device.

    Raise InvalidArgumentError if a checked row number is not in [0, row_count).
    """
    # On a GPU the check would wait for the device.
    if rows.device.type != "cpu":
        return False
    IndexedSlices(rows, rows).check_range(row_count)
    return True


def check_batch(operand: Tensor, positions: Tensor, batch_dims: int) -> None:
    """Raise InvalidArgumentError if two tensors differ in their first `batch_dims` sizes."""
    lead = operand.shape[:batch_dims]
    if not 0 <= batch_dims <= len(lead) or lead != positions.shape[:batch_dims]:
        raise InvalidArgumentError(
            f"params and indices must share {batch_dims} leading dimensions, not have shapes"
            f" {tuple(operand.shape)} and {tuple(positions.shape)}."
        )


# An argument of `reshape` has the name `tensor`.
as_tensor = tensor
