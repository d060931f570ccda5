"""Making tensors, and their shapes, parts and products."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Sequence
from typing import Any

import torch

from thalweg import graph
from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import call, named_in_graphs, pair, sizes, stacked, tensor
from thalweg.variable import as_dtype, to_tensor

__all__ = [
    "broadcast_to",
    "concat",
    "constant",
    "convert_to_tensor",
    "einsum",
    "expand_dims",
    "eye",
    "fill",
    "gather",
    "identity",
    "linspace",
    "matmul",
    "one_hot",
    "ones",
    "ones_like",
    "range",
    "rank",
    "reshape",
    "shape",
    "size",
    "split",
    "squeeze",
    "stack",
    "tensordot",
    "tile",
    "transpose",
    "unstack",
    "zeros",
    "zeros_like",
]


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str = "Const") -> Any:
    """A new tensor from a number, array or nested lists, optionally laid out in a shape."""
    return graph.constant(value, dtype, None if shape is None else sizes(shape), name)


@named_in_graphs(2, "name")
def convert_to_tensor(
    value: Any, dtype: Any = None, dtype_hint: Any = None, name: str | None = None
) -> Any:
    """A tensor from anything that one can be made of; a tensor is returned as it is."""
    return tensor(value, dtype_hint if dtype is None else dtype)


def identity(input: Any, name: str | None = None) -> Any:
    """The same values in a new tensor."""
    return call(torch.Tensor.clone, tensor(input), name=name or "Identity")


def zeros(shape: Any, dtype: Any = torch.float32, name: str = "zeros") -> Any:
    """A tensor of zeros."""
    return graph.zeros(sizes(shape), dtype, name)


def ones(shape: Any, dtype: Any = torch.float32, name: str = "ones") -> Any:
    """A tensor of ones."""
    return graph.ones(sizes(shape), dtype, name)


def fill(dims: Any, value: Any, name: str | None = None) -> Any:
    """A tensor of one number."""
    return graph.constant(value, None, sizes(dims), name or "Fill")


def zeros_like(input: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Zeros in the shape, and by default the dtype, of a tensor."""
    return _like(torch.zeros_like, input, dtype, name or "zeros_like")


def ones_like(input: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Ones in the shape, and by default the dtype, of a tensor."""
    return _like(torch.ones_like, input, dtype, name or "ones_like")


def _like(function: Any, input: Any, dtype: Any, name: str) -> Any:
    kind = None if dtype is None else as_dtype(dtype)
    return call(lambda given: function(given.detach(), dtype=kind), tensor(input), name=name)


def eye(
    num_rows: int, num_columns: int | None = None, dtype: Any = torch.float32, name: str = "eye"
) -> Any:
    """Ones on the diagonal, zeros elsewhere."""
    columns = num_rows if num_columns is None else num_columns
    return graph.constant(torch.eye(num_rows, columns, dtype=as_dtype(dtype)), name=name)


def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str = "range"
) -> Any:
    """Numbers from `start`, or 0, up to but not including a limit; int32 or float32 by default."""
    start, limit = (0, start) if limit is None else (start, limit)
    numbers = [to_tensor(number) for number in (start, limit, delta)]
    own = functools.reduce(torch.promote_types, (number.dtype for number in numbers))
    kind = own if dtype is None else as_dtype(dtype)
    start, limit, delta = (number.item() for number in numbers)
    return graph.constant(torch.arange(start, limit, delta, dtype=kind), name=name)


def linspace(start: float, stop: float, num: int, name: str | None = None) -> Any:
    """`num` numbers at equal distances, both ends included."""
    return graph.constant(torch.linspace(start, stop, num), name=name or "linspace")


def one_hot(
    indices: Any,
    depth: int,
    on_value: Any = 1.0,
    off_value: Any = 0.0,
    axis: int = -1,
    dtype: Any = torch.float32,
    name: str | None = None,
) -> Any:
    """`on_value` at each index along a new axis, `off_value` elsewhere, also for an index that is
    out of range.
    """
    kind = as_dtype(dtype)

    def encode(given: Any) -> Any:
        places = torch.arange(depth, device=given.device)
        found = given.unsqueeze(-1) == places
        on, off = (torch.tensor(v, dtype=kind, device=given.device) for v in (on_value, off_value))
        return torch.where(found, on, off).movedim(-1, axis)

    return call(encode, tensor(indices), name=name or "one_hot")


@named_in_graphs(1, "name")
def shape(input: Any, out_type: Any = torch.int32, name: str | None = None) -> Any:
    """The sizes of a tensor as a tensor."""
    kind, given = as_dtype(out_type), tensor(input)

    def measure(value: Any) -> Any:
        return torch.tensor(value.shape, dtype=kind)

    if not isinstance(given, graph.SymbolicTensor):
        return measure(given)
    rank = None if given.shape is None else (len(given.shape),)
    known = graph.Output(kind, rank, ())
    return graph.operation(measure, [given], name or "Shape", kind="pure", outputs=known)


@named_in_graphs(1, "name")
def size(input: Any, out_type: Any = torch.int32, name: str | None = None) -> Any:
    """The number of elements as a tensor."""
    return call(lambda sizes: sizes.prod(dtype=as_dtype(out_type)), shape(input), name=name)


def rank(input: Any, name: str | None = None) -> Any:
    """The number of dimensions as a tensor."""
    return graph.constant(len(tensor(input).shape), name=name or "Rank")


def reshape(tensor: Any, shape: Any, name: str | None = None) -> Any:
    """The same elements in another shape; one size may be -1."""
    wanted = sizes(shape)
    return call(lambda given: given.reshape(wanted), as_tensor(tensor), name=name or "Reshape")


@named_in_graphs(2, "name")
def transpose(a: Any, perm: Any = None, conjugate: bool = False, name: str | None = None) -> Any:
    """The dimensions in another order, by default reversed."""

    def turn(given: Any) -> Any:
        order = tuple(reversed([*builtins.range(given.dim())])) if perm is None else sizes(perm)
        return (given.conj() if conjugate else given).permute(order)

    return call(turn, tensor(a), name=name or "transpose")


def expand_dims(input: Any, axis: int, name: str | None = None) -> Any:
    """A new dimension of size 1."""
    return call(torch.unsqueeze, tensor(input), int(axis), name=name or "ExpandDims")


def squeeze(input: Any, axis: Any = None, name: str | None = None) -> Any:
    """The tensor without its dimensions of size 1: all, or the named ones."""
    axes = None if axis is None else sizes(axis)
    function = torch.squeeze if axes is None else lambda given: given.squeeze(axes)
    return call(function, tensor(input), name=name or "Squeeze")


def concat(values: Any, axis: int, name: str | None = None) -> Any:
    """Tensors one after the other along an axis."""
    parts = [tensor(value) for value in values] if isinstance(values, list | tuple) else [values]
    return call(lambda *given: torch.cat(given, int(axis)), *parts, name=name or "concat")


def stack(values: Sequence[Any], axis: int = 0, name: str = "stack") -> Any:
    """Tensors of one shape along a new axis."""
    return stacked([tensor(value) for value in values], axis, name)


def unstack(value: Any, num: int | None = None, axis: int = 0, name: str = "unstack") -> list[Any]:
    """The tensors along an axis, in a list."""
    return list(call(lambda given: torch.unbind(given, axis), tensor(value), name=name))


def split(value: Any, num_or_size_splits: Any, axis: int = 0, name: str = "split") -> list[Any]:
    """A number of equal parts along an axis, or parts of the given sizes."""

    def cut(given: Any) -> Any:
        if isinstance(num_or_size_splits, int):
            if given.shape[axis] % num_or_size_splits:
                raise InvalidArgumentError(
                    f"{given.shape[axis]} elements along axis {axis} cannot be split into"
                    f" {num_or_size_splits} equal parts."
                )
            return torch.tensor_split(given, num_or_size_splits, axis)
        return torch.split(given, list(num_or_size_splits), axis)

    return list(call(cut, tensor(value), name=name))


def tile(input: Any, multiples: Any, name: str | None = None) -> Any:
    """The tensor repeated along each dimension, a number of times for each."""
    times = sizes(multiples)
    return call(lambda given: given.repeat(times), tensor(input), name=name or "Tile")


def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Any:
    """The tensor repeated along dimensions of size 1, up to a shape."""
    wanted = sizes(shape)
    return call(lambda given: given.expand(wanted), tensor(input), name=name or "BroadcastTo")


@named_in_graphs(3, "name")
def gather(
    params: Any, indices: Any, validate_indices: Any = None, axis: int = 0, name: str | None = None
) -> Any:
    """What indices name along an axis; along the first axis the gradient is slices."""
    if axis == 0:
        return graph.embedding_lookup(tensor(params), tensor(indices), name or "Gather")

    def pick(given: Any, places: Any) -> Any:
        found = given.index_select(axis, places.reshape(-1))
        return found.unflatten(axis, places.shape) if places.dim() != 1 else found

    return call(pick, tensor(params), tensor(indices), name=name or "Gather")


def matmul(
    a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None
) -> Any:
    """The matrix product, in batches if there are more dimensions."""

    def product(left: Any, right: Any) -> Any:
        return (left.mT if transpose_a else left) @ (right.mT if transpose_b else right)

    return call(product, *pair(a, b), name=name or "MatMul")


def tensordot(a: Any, b: Any, axes: Any, name: str | None = None) -> Any:
    """The sum of products over pairs of axes."""
    return call(lambda x, y: torch.tensordot(x, y, axes), *pair(a, b), name=name or "Tensordot")


def einsum(equation: str, *inputs: Any, name: str | None = None) -> Any:
    """Einstein's summation convention."""
    parts = [tensor(item) for item in inputs]
    return call(lambda *given: torch.einsum(equation, *given), *parts, name=name or "einsum")


as_tensor = tensor  # an argument of `reshape` has this name
