"""Transformations of iterators of elements."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from thalweg._core.nest import leaves_of, packed
from thalweg.errors import InvalidArgumentError, InvalidTypeError


def as_int(argument: str, value: Any) -> int:
    """Return an integer, or a tensor or array of one, as an int; `argument` is its name.

    Raise InvalidTypeError for another value, such as a float.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidTypeError(f"{argument} must be an integer, not {value!r}.") from None


def checked(argument: str, value: Any) -> int:
    """Return a size as an int; `argument` is its name for the error.

    Raise InvalidArgumentError if the size is below 1, and InvalidTypeError if it is no integer.
    """
    size = as_int(argument, value)
    if size < 1:
        raise InvalidArgumentError(f"{argument} must be greater than zero, not {size}.")
    return size


# Stacks each sequence of tensors, which has one tensor of each element, to a tensor.
Stack = Callable[[Iterator[Sequence[Any]]], Iterator[Any]]


def batches(
    elements: Iterator[object], size: int, drop_remainder: bool, stack: Stack | None = None
) -> Iterator[Any]:
    """Yield batches of `size` stacked elements."""
    while chunk := list(itertools.islice(elements, size)):
        if len(chunk) == size or not drop_remainder:
            columns = zip(*map(leaves_of, chunk), strict=True)
            yield packed(chunk[0], stack(columns) if stack else map(_stack_rows, columns))


def _stack_rows(rows: Sequence[Any]) -> object:
    shapes = sorted({tuple(row.shape) for row in rows})
    if len(shapes) > 1:
        raise InvalidArgumentError(f"batch takes tensors of one shape, not of shapes {shapes}.")
    return torch.stack(list(rows))


def padded(shapes: Sequence[Sequence[int | None] | None], values: Sequence[object]) -> Stack:
    """Return a function: `stack(columns)` yields the padded and stacked tensors of each column.

    A batch has a column for each tensor of an element.

    Args:
        shapes: For each column the sizes after padding; None means the largest size in a batch.
        values: For each column the padding value.
    """

    def stack(columns: Iterator[Sequence[object]]) -> Iterator[object]:
        return map(_pad_rows, columns, shapes, values)

    return stack


def _pad_rows(rows: Sequence[Any], shape: Sequence[int | None] | None, value: Any) -> object:
    ranks = sorted({row.dim() for row in rows})
    bounds = [None] * ranks[0] if shape is None else list(shape)
    if ranks != [len(bounds)]:
        raise InvalidArgumentError(
            f"padded_batch takes tensors of {len(bounds)} dimensions here, not of {ranks}."
        )
    largest = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
    sizes = [
        largest_size if size is None else size
        for largest_size, size in zip(largest, bounds, strict=True)
    ]
    if any(map(operator.gt, largest, sizes)):
        raise InvalidArgumentError(f"Tensors of up to {largest} cannot be padded to {sizes}.")
    batch = rows[0].new_full((len(rows), *sizes), value)
    for padded_row, row in zip(batch, rows, strict=True):
        padded_row[tuple(map(slice, row.shape))] = row
    return batch


def draw_below(limit: int, generator: torch.Generator | None = None) -> int:
    """Return a random integer from 0 to `limit - 1`.

    Args:
        limit: At least 1.
        generator: A generator of the CPU; None is torch's own.
    """
    value = torch.randint(limit, (), dtype=torch.int64, device="cpu", generator=generator)
    return int(value)


def shuffle_elements(
    elements: Iterator[object], size: int, generator: torch.Generator
) -> Iterator[Any]:
    """Yield elements in random order, drawn from a buffer of `size` elements."""
    buffer = list(itertools.islice(elements, size))
    while buffer:
        index = draw_below(len(buffer), generator)
        yield buffer[index]
        # No element is None: datasets convert theirs to tensors.
        next_element = next(elements, None)
        if next_element is None:
            buffer[index] = buffer[-1]
            buffer.pop()
        else:
            buffer[index] = next_element
