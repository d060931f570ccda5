"""Concatenation and splitting of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.nest import leaves_of
from thalweg._graph import known_size, known_sizes, sizes_of
from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import (
    call,
    check_same_dtype,
    is_tensor,
    sizes,
    stacked,
    tensor,
    tensors_alike,
)

__all__ = ["concat", "split", "stack", "unstack"]


def concat(values: object, axis: object, name: str | None = None) -> Tensor:
    """Concatenate tensors along an axis; arrays take the dtype of the tensors.

    Raise InvalidArgumentError if there are no values, or the ranks differ, and InvalidTypeError if
    tensors differ in dtype.
    """
    check_same_dtype("concat", values)
    pieces = tensors_alike(values if isinstance(values, list | tuple) else [values])
    if not pieces:
        raise InvalidArgumentError("values of concat must be a list of at least one tensor.")
    dim = as_known_int(axis)

    def join(*tensors: Tensor) -> Tensor:
        # torch would skip vectors without elements.
        if len({piece.dim() for piece in tensors}) > 1:
            shapes = ", ".join(str(tuple(piece.shape)) for piece in tensors)
            raise InvalidArgumentError(f"concat takes tensors of one rank, not of shapes {shapes}.")
        return torch.cat(tensors, dim)

    return call(join, *pieces, name=name or "concat")


def stack(values: Sequence[object], axis: int = 0, name: str | None = "stack") -> Tensor:
    """Stack tensors of one shape along a new axis; arrays take the dtype of the tensors.

    Without tensors, return a float32 vector of no elements, and raise InvalidArgumentError if the
    axis is not 0. Raise InvalidTypeError if tensors differ in dtype.
    """
    name = name or "stack"
    check_same_dtype("stack", values)
    pieces = tensors_alike(values)
    if not pieces and axis:
        raise InvalidArgumentError(f"stack along axis {axis} needs at least one tensor.")
    return stacked(pieces, axis, name) if pieces else tensor([], name=name)


def unstack(
    value: object, num: int | None = None, axis: int = 0, name: str | None = "unstack"
) -> list[Tensor]:
    """Return a list of slices, one for each index along an axis, without this axis.

    Args:
        num: Number of slices; only needed if the size of the axis is unknown.

    Raises:
        InvalidArgumentError: The size is unknown, or is not `num`.
    """
    source: Any = tensor(value)
    size, piece_shape = _size_along(source.shape, axis)
    count = num if size is None else size
    if count is None:
        raise InvalidArgumentError(
            f"unstack needs num: the size of '{source.name}' along axis {axis} is not known."
        )

    def check(actual: int) -> None:
        if num not in (None, actual):
            raise InvalidArgumentError(f"num is {num}, but there are {actual} along axis {axis}.")

    def cut(x: Tensor, _: None) -> list[Tensor]:
        check(x.shape[axis])
        return list(torch.unbind(x, axis))

    check(count)
    return _add_split(cut, source, None, [piece_shape] * count, name or "unstack")


def split(
    value: object,
    num_or_size_splits: object,
    axis: object = 0,
    num: int | None = None,
    name: str | None = "split",
) -> list[Tensor]:
    """Return a list of parts of a tensor along an axis.

    Args:
        num_or_size_splits: Number of equal parts, or a list of sizes. A size of -1 stands for the
            remaining elements.
        num: Number of parts, if a tensor of sizes has an unknown shape.

    Raises:
        InvalidArgumentError: The axis cannot be divided into parts of these sizes.
    """
    source, dim = tensor(value), as_known_int(axis)
    size, _ = _size_along(source.shape, dim)
    if not _are_sizes(num_or_size_splits):
        num_pieces = as_known_int(num_or_size_splits)
        piece_sizes: Any = [size if size is None else size // max(num_pieces, 1)] * num_pieces
    else:
        num_pieces, num_or_size_splits = None, sizes_of(num_or_size_splits)
        piece_sizes = known_sizes(num_or_size_splits) or [None] * (num or 0)
        piece_sizes = [None if size == -1 else size for size in piece_sizes]

    def cut(x: Tensor, lengths: Tensor) -> Any:
        return torch.split(x, _resolve_sizes(x.shape[dim], num_pieces, lengths, dim), dim)

    # Raise for invalid sizes at once.
    if size is not None:
        dims = known_sizes(num_or_size_splits)
        if dims and None not in dims:
            piece_sizes = _resolve_sizes(size, num_pieces, dims, dim)
    shapes = [_replace_size(source.shape, dim, piece_size) for piece_size in piece_sizes]
    return _add_split(cut, source, num_or_size_splits, shapes, name or "split")


def _are_sizes(sizes_or_count: object) -> bool:
    """Return True if the argument is a list of sizes, not a number of parts."""
    if isinstance(sizes_or_count, Sequence | np.ndarray):
        return np.ndim(sizes_or_count) > 0  # pyright: ignore[reportArgumentType]
    return is_tensor(sizes_or_count) and tensor(sizes_or_count).shape != ()


def _resolve_sizes(total: int, num_pieces: int | None, lengths: object, axis: int) -> list[int]:
    """Return the sizes of parts: `num_pieces` equal sizes, or `lengths` if `num_pieces` is None.

    One of `lengths` may be -1 for the remaining size. Raise InvalidArgumentError if the sizes do
    not add up to `total`.
    """
    if num_pieces is not None:
        if num_pieces < 1 or total % num_pieces:
            raise InvalidArgumentError(
                f"{total} elements along axis {axis} cannot be split into {num_pieces} equal parts."
            )
        return [total // num_pieces] * num_pieces
    piece_sizes = list(sizes(lengths))
    if piece_sizes.count(-1) == 1:
        piece_sizes[piece_sizes.index(-1)] = total - sum(piece_sizes) - 1
    if sum(piece_sizes) != total or min(piece_sizes, default=0) < 0:
        raise InvalidArgumentError(
            f"Parts of sizes {list(sizes(lengths))} are not the {total} elements along axis {axis}."
        )
    return piece_sizes


def _add_split(
    function: Callable[..., Any],
    operand: Tensor,
    split_sizes: Any,
    shapes: Sequence[Any],
    name: str,
) -> list[Tensor]:
    """Return `function(operand, split_sizes)` as a list; in a graph, a list of symbolic tensors.

    `shapes` are the static shapes of the symbolic tensors. If `shapes` is empty, their number is
    unknown: raise InvalidArgumentError.
    """
    symbols = [x for x in leaves_of((operand, split_sizes)) if isinstance(x, _graph.SymbolicTensor)]
    if not symbols:
        return list(function(operand, split_sizes))
    if not shapes:
        raise InvalidArgumentError(f"{name} needs num: the number of parts is not known.")
    flows = tuple(x for x in symbols if x is operand and x.is_differentiable())
    outputs = [_graph.Output(operand.dtype, shape, flows) for shape in shapes]
    return _graph.operation(function, [operand, split_sizes], name, kind="pure", outputs=outputs)


def _size_along(shape: Any, axis: int) -> tuple[int | None, Any]:
    """Return (size along an axis, list of all further sizes); (None, None) if unknown."""
    if shape is UNKNOWN:
        return None, None
    if not -len(shape) <= axis < len(shape):
        raise InvalidArgumentError(f"axis {axis} is none of a tensor of shape {tuple(shape)}.")
    other_sizes = list(shape)
    return other_sizes.pop(axis), other_sizes


def _replace_size(shape: Any, axis: int, size: int | None) -> Any:
    """Return a copy of a shape with `size` along an axis; None for an unknown shape."""
    if shape is UNKNOWN:
        return None
    new_shape = list(shape)
    new_shape[axis] = size
    return new_shape


def as_known_int(axis: object) -> int:
    """Return an axis or other number as an int; a tensor must have a known value."""
    dim = axis if isinstance(axis, int) else known_size(axis)
    if dim is None:
        raise InvalidArgumentError(
            f"The axis must be known when the graph is built, not {show_value(axis)}."
        )
    return dim
