"""Tensors joined along an axis, and cut apart."""

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
from thalweg.tf.convert import call, is_tensor, sizes, stacked, tensor, tensors_alike

__all__ = ["concat", "split", "stack", "unstack"]


def concat(values: object, axis: object, name: str | None = None) -> Tensor:
    """Return tensors one after the other along an axis; arrays take the dtype of the tensors."""
    parts = tensors_alike(values if isinstance(values, list | tuple) else [values])
    place = place_of(axis)
    return call(lambda *given: torch.cat(given, place), *parts, name=name or "concat")


def stack(values: Sequence[object], axis: int = 0, name: str | None = "stack") -> Tensor:
    """Return tensors of one shape along a new axis; arrays take the dtype of the tensors."""
    name = name or "stack"
    return stacked(tensors_alike(values), axis, name)


def unstack(
    value: object, num: int | None = None, axis: int = 0, name: str | None = "unstack"
) -> list[Tensor]:
    """Return the tensors along an axis, in a list; `num` says how many, where that is not known.

    Raises:
        InvalidArgumentError: Their number is not known, or is not `num`.
    """
    name = name or "unstack"
    given: Any = tensor(value)
    size, rest = _size_along(given.shape, axis)
    count = num if size is None else size
    if count is None:
        raise InvalidArgumentError(
            f"unstack needs num: the size of '{given.name}' along axis {axis} is not known."
        )

    def check(found: int) -> None:
        if num not in (None, found):
            raise InvalidArgumentError(f"num is {num}, but there are {found} along axis {axis}.")

    def cut(x: Tensor, _: None) -> list[Tensor]:
        check(x.shape[axis])
        return list(torch.unbind(x, axis))

    check(count)
    return _split_parts(cut, given, None, [rest] * count, name)


def split(
    value: object,
    num_or_size_splits: object,
    axis: object = 0,
    num: int | None = None,
    name: str | None = "split",
) -> list[Tensor]:
    """Return a number of equal parts along an axis, or parts of the given sizes.

    Args:
        value: The tensor.
        num_or_size_splits: A number, or a list of sizes; one of these may be -1 for all the rest.
        axis: The axis.
        num: How many sizes there are, where that is not known.
        name: Optional.

    Raises:
        InvalidArgumentError: The parts are not equal, or do not make up the whole.
    """
    name = name or "split"
    given, place = tensor(value), place_of(axis)
    size, _ = _size_along(given.shape, place)
    if not _are_sizes(num_or_size_splits):
        many = place_of(num_or_size_splits)
        wanted: Any = [size if size is None else size // max(many, 1)] * many
    else:
        many, num_or_size_splits = None, sizes_of(num_or_size_splits)
        wanted = known_sizes(num_or_size_splits) or [None] * (num or 0)
        wanted = [None if each == -1 else each for each in wanted]

    def cut(x: Tensor, asked: Tensor) -> Any:
        return torch.split(x, _sizes_of_parts(x.shape[place], many, asked, place), place)

    if size is not None:  # what does not fit is refused at once
        known = known_sizes(num_or_size_splits)
        if known and None not in known:
            wanted = _sizes_of_parts(size, many, known, place)
    shapes = [_replace_size(given.shape, place, each) for each in wanted]
    return _split_parts(cut, given, num_or_size_splits, shapes, name)


def _are_sizes(given: object) -> bool:
    """Return whether it is a list, not a number."""
    if isinstance(given, Sequence | np.ndarray):
        return np.ndim(given) > 0  # pyright: ignore[reportArgumentType]
    return is_tensor(given) and tensor(given).shape != ()


def _sizes_of_parts(whole: int, many: int | None, asked: object, axis: int) -> list[int]:
    """The sizes of the parts of `whole` elements, of which there are `many` equal ones or the ones
    that are asked for.
    """
    if many is not None:
        if many < 1 or whole % many:
            raise InvalidArgumentError(
                f"{whole} elements along axis {axis} cannot be split into {many} equal parts."
            )
        return [whole // many] * many
    found = list(sizes(asked))
    if found.count(-1) == 1:
        found[found.index(-1)] = whole - sum(found) - 1
    if sum(found) != whole or min(found, default=0) < 0:
        raise InvalidArgumentError(
            f"Parts of sizes {list(sizes(asked))} are not the {whole} elements along axis {axis}."
        )
    return found


def _split_parts(
    function: Callable[..., Any], given: Tensor, how: Any, shapes: Sequence[Any], name: str
) -> list[Tensor]:
    """`function(given, how)`; in a graph an operation with an output of each of these shapes."""
    symbols = [x for x in leaves_of((given, how)) if isinstance(x, _graph.SymbolicTensor)]
    if not symbols:
        return list(function(given, how))
    if not shapes:
        raise InvalidArgumentError(f"{name} needs num: the number of parts is not known.")
    flows = tuple(x for x in symbols if x is given and x.is_differentiable())
    outputs = [_graph.Output(given.dtype, shape, flows) for shape in shapes]
    return _graph.operation(function, [given, how], name, kind="pure", outputs=outputs)


def _size_along(shape: Any, axis: int) -> tuple[int | None, Any]:
    """The size along an axis and the shape without it, as far as they are known."""
    if shape is UNKNOWN:
        return None, None
    if not -len(shape) <= axis < len(shape):
        raise InvalidArgumentError(f"axis {axis} is none of a tensor of shape {tuple(shape)}.")
    rest = list(shape)
    return rest.pop(axis), rest


def _replace_size(shape: Any, axis: int, size: int | None) -> Any:
    """A shape with another size along an axis."""
    if shape is UNKNOWN:
        return None
    found = list(shape)
    found[axis] = size
    return found


def place_of(axis: object) -> int:
    """Return an axis, or another number, which may be a tensor whose value is known."""
    place = axis if isinstance(axis, int) else known_size(axis)
    if place is None:
        raise InvalidArgumentError(
            f"The axis must be known when the graph is built, not {show_value(axis)}."
        )
    return place
