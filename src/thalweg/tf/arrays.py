"""Making tensors, and their shapes and parts."""

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
from thalweg._graph import known_size, known_sizes, sizes_of
from thalweg._graph.ops import creation_node
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices
from thalweg.tf import concat_split, matrix_products
from thalweg.tf.concat_split import *
from thalweg.tf.concat_split import place_of
from thalweg.tf.convert import call, is_tensor, named_in_graphs, pair, sizes, tensor, told
from thalweg.tf.matrix_products import *
from thalweg.variable import Variable, as_asked, as_dtype, dtype_name, to_tensor

__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    *concat_split.__all__,
    *matrix_products.__all__,
    "broadcast_to",
    "constant",
    "convert_to_tensor",
    "expand_dims",
    "eye",
    "fill",
    "gather",
    "identity",
    "linspace",
    "one_hot",
    "ones",
    "ones_like",
    "range",
    "rank",
    "reshape",
    "shape",
    "size",
    "squeeze",
    "tile",
    "transpose",
    "zeros",
    "zeros_like",
]


def constant(
    value: object, dtype: object = None, shape: object = None, name: str | None = "Const"
) -> Tensor:
    """Return a new tensor from a number, array or nested lists, optionally laid out in a shape.

    Raises:
        InvalidTypeError: The value is not numeric, or does not fit the shape.
    """
    if shape is not None and not _graph.executing_eagerly():
        room, count = math.prod(sizes(shape)), as_asked(value, dtype).numel()
        if count not in (1, room):
            raise InvalidTypeError(
                f"{count} values do not fit shape {sizes(shape)}, which holds {room}."
            )
    return _graph.constant(value, dtype, None if shape is None else sizes(shape), name)


@named_in_graphs(2, "name")
def convert_to_tensor(
    value: object, dtype: object = None, dtype_hint: object = None, name: str | None = None
) -> Tensor:
    """Return a tensor from anything that one can be made of; a tensor is returned as it is, and of
    a variable the present value.

    Raises:
        InvalidTypeError: It is a tensor of another dtype.
    """
    if dtype is not None and isinstance(value, np.ndarray | np.generic):
        return _graph.constant(value, dtype, name=name)
    found = tensor(value, dtype_hint if dtype is None else dtype, name)
    if dtype is not None and found.dtype not in (None, as_dtype(dtype)):
        kinds = f"{dtype_name(found.dtype)}, not {dtype_name(as_dtype(dtype))}"
        raise InvalidTypeError(f"The tensor that is to be converted is {kinds}. Cast it.")
    return found.read_value() if isinstance(found, Variable) else found


def identity(input: object, name: str | None = None) -> Tensor:
    """Return a new tensor with the values of another one."""
    return call(torch.Tensor.clone, tensor(input), name=name or "Identity")


def zeros(shape: object, dtype: object = torch.float32, name: str | None = "zeros") -> Any:
    """Return a tensor of zeros."""
    return _graph.zeros(shape, dtype, name)


def ones(shape: object, dtype: object = torch.float32, name: str | None = "ones") -> Any:
    """Return a tensor of ones."""
    return _graph.ones(shape, dtype, name)


def fill(dims: object, value: object, name: str | None = None) -> Tensor:
    """Return a tensor of one number."""
    filling = tensor(value)
    filled = call(lambda one, size: one.expand(sizes(size)), filling, sizes_of(dims), name="Fill")
    return told(filled, filling.dtype, lambda: known_sizes(dims))


def zeros_like(input: object, dtype: object = None, name: str | None = None) -> Tensor:
    """Zeros in the shape, and by default the dtype, of a tensor."""
    return _filled_like(torch.zeros_like, input, dtype, name or "zeros_like")


def ones_like(input: object, dtype: object = None, name: str | None = None) -> Tensor:
    """Ones in the shape, and by default the dtype, of a tensor."""
    return _filled_like(torch.ones_like, input, dtype, name or "ones_like")


def _filled_like(function: Any, input: object, dtype: Any, name: str) -> Tensor:
    given, kind = tensor(input), None if dtype is None else as_dtype(dtype)
    if isinstance(given, _graph.SymbolicTensor) and _graph.Shape(given.shape).is_fully_defined():
        kind = kind or given.dtype
        if kind is not None:  # the value need not be known
            empty = torch.empty((), dtype=kind, device=torch.get_default_device())
            empty = empty.expand(tuple(given.shape))
            return _graph.constant(function(empty), name=name)
    return call(lambda given: function(given.detach(), dtype=kind), given, name=name)


def eye(
    num_rows: object,
    num_columns: object = None,
    batch_shape: object = (),
    dtype: object = torch.float32,
    name: str | None = "eye",
) -> Tensor:
    """Ones on the diagonal, zeros elsewhere; a matrix for each place of `batch_shape`."""
    columns = num_rows if num_columns is None else num_columns

    def make(size: Any, kind: torch.dtype) -> Tensor:
        identity = torch.eye(*size[-2:], dtype=kind, device=torch.get_default_device())
        return identity.expand(size).contiguous()

    return creation_node(
        make, [*sizes_of(batch_shape or ()), num_rows, columns], dtype, name or "eye"
    )


def range(
    start: object, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str | None = "range"
) -> Tensor:
    """Numbers from `start`, or 0, up to but not including a limit; int32 or float32 by default.

    Raises:
        InvalidArgumentError: `delta` is 0, or does not lead to the limit.
    """
    name = name or "range"
    start, limit = (0, start) if limit is None else (start, limit)
    numbers = [tensor(number) for number in (start, limit, delta)]
    own = functools.reduce(torch.promote_types, (number.dtype for number in numbers))
    kind = own if dtype is None else as_dtype(dtype)

    def count(*given: Tensor) -> Tensor:
        first, end, step = (number.to(kind) for number in given)
        if step.item() == 0 or (end.item() - first.item()) * step.item() < 0:
            start, limit, delta = (number.item() for number in given)
            raise InvalidArgumentError(f"delta={delta} does not lead from {start} to {limit}.")
        device = torch.get_default_device()
        if not kind.is_floating_point:
            bounds = first.item(), end.item(), step.item()
            return torch.arange(*bounds, dtype=kind, device=device)
        many = math.ceil(((end - first) / step).item())  # rounded as in TensorFlow, in the dtype
        places = torch.arange(many, dtype=torch.float64, device=device)
        return (places * step.item() + first.item()).to(kind)

    def static_shape() -> list[int | None]:
        found = known_sizes(numbers) or [None]
        is_open = None in found or not found[-1]
        return [None if is_open else len(builtins.range(*found))]  # pyright: ignore

    return told(call(count, *numbers, name=name), kind, static_shape)


def linspace(start: object, stop: object, num: object, name: str | None = None) -> Tensor:
    """`num` numbers at equal distances, both ends included; float32 between integers."""
    first, last = pair(start, stop)
    kind = first.dtype if first.dtype.is_floating_point else torch.float32

    def spread(first: Tensor, last: Tensor, many: Tensor) -> Tensor:
        device = torch.get_default_device()
        return torch.linspace(first.item(), last.item(), int(many), dtype=kind, device=device)

    made = call(spread, first, last, num, name=name or "linspace")
    return told(made, kind, lambda: [known_size(num)])


def one_hot(
    indices: object,
    depth: object,
    on_value: object = None,
    off_value: object = None,
    axis: int | None = None,
    dtype: object = None,
    name: str | None = None,
) -> Tensor:
    """`on_value`, or 1, at each index along a new axis, by default the last; elsewhere
    `off_value`, or 0, also for an index that is out of range.

    The dtype is by default that of these values, or float32.
    """
    values = [None if each is None else tensor_or_value(each) for each in (on_value, off_value)]
    own = [each.dtype for each in values if each is not None]
    kind = as_dtype(dtype) if dtype is not None else own[0] if own else torch.float32
    on, off = (
        tensor_or_value(default if given is None else given, kind)
        for given, default in ((on_value, 1), (off_value, 0))
    )
    place = -1 if axis is None else axis

    def encode(given: Tensor, depth: Tensor, on: Tensor, off: Tensor) -> Tensor:
        places = torch.arange(int(depth), dtype=torch.int64, device=given.device)
        found = given.unsqueeze(-1) == places
        return torch.where(found, on.to(given.device), off.to(given.device)).movedim(-1, place)

    given = tensor(indices)

    def static_shape() -> Any:
        if given.shape is UNKNOWN:
            return None
        sizes = list(given.shape)
        sizes.insert(place if place >= 0 else len(sizes) + 1 + place, known_size(depth))  # pyright: ignore
        return sizes

    made = call(encode, given, depth, on, off, name=name or "one_hot")
    return told(made, kind, static_shape)


def tensor_or_value(given: object, dtype: object = None) -> Tensor:
    """Return a tensor, which is no node of a graph if it was none before."""
    return tensor(given) if is_tensor(given) else to_tensor(given, dtype)


@named_in_graphs(1, "name")
def shape(input: object, out_type: object = torch.int32, name: str | None = None) -> Tensor:
    """Return the sizes of a tensor as a tensor."""
    kind, given = as_dtype(out_type), tensor(input)

    def measure(value: Tensor) -> Tensor:
        return torch.tensor(value.shape, dtype=kind, device=torch.get_default_device())

    if not isinstance(given, _graph.SymbolicTensor):
        return measure(given)
    rank = None if given.shape is UNKNOWN else (len(given.shape),)
    known = _graph.Output(kind, rank, ())
    made = _graph.operation(measure, [given], name or "Shape", kind="pure", outputs=known)
    made.op.type = "Shape"  # whose value is known where the sizes are
    return made


@named_in_graphs(1, "name")
def size(input: object, out_type: object = torch.int32, name: str | None = None) -> Tensor:
    """Return the number of elements as a tensor."""
    return call(lambda sizes: sizes.prod(dtype=as_dtype(out_type)), shape(input), name=name)


def rank(input: object, name: str | None = None) -> Tensor:
    """Return the number of dimensions as a tensor."""
    given: object = tensor(input)
    if given.shape is UNKNOWN:
        output = _graph.Output(torch.int32, (), ())
        arguments = ([given], name or "Rank")
        return _graph.operation(_rank_of, *arguments, kind="pure", outputs=output)
    return _graph.constant(len(given.shape), name=name or "Rank")


def _rank_of(given: Tensor) -> Tensor:
    return torch.tensor(given.dim(), dtype=torch.int32, device=torch.get_default_device())


def reshape(tensor: object, shape: object, name: str | None = None) -> Tensor:
    """Return the elements of a tensor in another shape; one size may be -1."""
    given, wanted = as_tensor(tensor), sizes_of(shape)

    def static_shape() -> list[int | None] | None:
        found = known_sizes(wanted)
        return None if found is None else [None if size == -1 else size for size in found]

    made = call(lambda x, size: x.reshape(sizes(size)), given, wanted, name=name or "Reshape")
    return told(made, given.dtype, static_shape)


@named_in_graphs(2, "name")
def transpose(
    a: object, perm: Any = None, conjugate: bool = False, name: str | None = None
) -> Tensor:
    """The dimensions in another order, by default reversed."""

    def turn(given: Tensor) -> Tensor:
        order = tuple(reversed([*builtins.range(given.dim())])) if perm is None else sizes(perm)
        return (given.conj() if conjugate else given).permute(order)

    return call(turn, tensor(a), name=name or "transpose")


def expand_dims(
    input: object, axis: object = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """A new dimension of size 1; `dim` is the old name of `axis`."""
    place = place_of(dim if axis is None else axis)
    return call(torch.unsqueeze, tensor(input), place, name=name or "ExpandDims")


def squeeze(
    input: object, axis: object = None, name: str | None = None, squeeze_dims: object = None
) -> Tensor:
    """Return the tensor without its dimensions of size 1: all, or the named ones.

    `squeeze_dims` is the old name of `axis`.

    Raises:
        InvalidArgumentError: A dimension that is named has another size.
    """
    axis = squeeze_dims if axis is None else axis
    axes = () if axis is None else sizes(axis)
    given = tensor(input)

    def remaining_sizes(shape: Any) -> list[int | None]:
        """Return the sizes that stay."""
        rank = len(shape)
        if any(not -rank <= each < rank or shape[each] not in (1, None) for each in axes):
            raise InvalidArgumentError(
                f"axis {list(axes)} must name dimensions of size 1; the shape is {tuple(shape)}."
            )
        gone = {each % rank for each in axes}
        return [size for place, size in enumerate(shape) if place not in gone]

    def drop(x: Any) -> Tensor:
        return x.reshape(remaining_sizes(x.shape)) if axes else x.squeeze()

    if given.shape is not UNKNOWN:
        remaining_sizes(given.shape)
    made = call(drop, given, name=name or "Squeeze")
    return told(
        made, given.dtype, lambda: remaining_sizes(given.shape) if axes and given.shape else None
    )


def tile(input: object, multiples: object, name: str | None = None) -> Tensor:
    """Return the tensor repeated along each dimension, a number of times for each."""
    given, times = tensor(input), sizes_of(multiples)

    def static_shape() -> list[int | None] | None:
        found = known_sizes(times)
        if found is None or given.shape is UNKNOWN:
            return None
        pairs = zip(given.shape, found, strict=False)
        return [None if one is None or many is None else one * many for one, many in pairs]

    def repeat(x: Tensor, many: Tensor) -> Tensor:
        if len(sizes(many)) != x.dim():
            raise InvalidArgumentError(
                f"multiples must be a number for each dimension of {tuple(x.shape)}, not"
                f" {list(sizes(many))}."
            )
        return x.repeat(sizes(many))

    made = call(repeat, given, times, name=name or "Tile")
    return told(made, given.dtype, static_shape)


def broadcast_to(input: object, shape: object, name: str | None = None) -> Tensor:
    """Return the tensor repeated along dimensions of size 1, up to a shape."""
    given, wanted = tensor(input), sizes_of(shape)
    made = call(lambda x, size: x.expand(sizes(size)), given, wanted, name=name or "BroadcastTo")
    return told(made, given.dtype, lambda: known_sizes(wanted))


@named_in_graphs(3, "name")
def gather(
    params: object,
    indices: object,
    validate_indices: object = None,
    axis: int | None = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Tensor:
    """Gather slices along an axis; along the first axis of a variable the gradient is slices.

    Args:
        params: A tensor.
        indices: int32 or int64, of any shape, which stands in the result in place of the axis.
        validate_indices: Ignored: they always are.
        axis: By default `batch_dims`.
        batch_dims: How many first dimensions the two have in common.
        name: Optional.

    Raises:
        InvalidArgumentError: On the CPU, if an index is out of range.
    """
    along = batch_dims if axis is None else place_of(axis)
    if along == 0 and not batch_dims:
        return _graph.embedding_lookup(tensor(params), tensor(indices), name or "Gather")

    def pick(given: Tensor, places: Tensor) -> Tensor:
        if not batch_dims:
            return _pick_rows(given, places, along)
        lead, inner = given.shape[:batch_dims], along % given.dim() - batch_dims
        pairs = zip(*(x.flatten(0, batch_dims - 1) for x in (given, places)), strict=True)
        return torch.stack([_pick_rows(one, rows, inner) for one, rows in pairs]).unflatten(0, lead)

    return call(pick, tensor(params), tensor(indices), name=name or "Gather")


def _pick_rows(given: Tensor, places: Tensor, axis: int) -> Tensor:
    axis, rows = axis % given.dim(), places.reshape(-1)
    if rows.device.type == "cpu":  # elsewhere the check would wait for the device
        IndexedSlices(rows, rows).check_range(given.shape[axis])
    found = given.index_select(axis, rows)
    return found.reshape(*given.shape[:axis], *places.shape, *given.shape[axis + 1 :])


as_tensor = tensor  # an argument of `reshape` has this name
