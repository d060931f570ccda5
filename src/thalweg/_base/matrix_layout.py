"""`MatrixLayout`: the matrices that one parameter holds, as blocks of its last two dimensions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, cast

from thalweg._base.exports import exported_from
from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError

Blocks = int | tuple[int, ...]


class Pieces(NamedTuple):
    """Position of a block on an axis of a parameter: equally spaced pieces of consecutive indices.

    Attributes:
        first: The first index.
        size: The number of consecutive indices in each piece.
        repeats: The number of pieces, which divide the axis evenly.
    """

    first: int
    size: int
    repeats: int


class Block(NamedTuple):
    """Position of one of the matrices that a parameter holds.

    Attributes:
        rows, columns: The rows and columns of the stored parameter.
        shape: (rows, columns) of the matrix as rules receive it, after a transposition.
    """

    rows: Pieces
    columns: Pieces
    shape: tuple[int, int]


@exported_from("thalweg.optim")
@dataclass(frozen=True)
class MatrixLayout:
    """Matrices that a parameter holds. Each matrix is updated like a separate parameter.

    Sizes refer to the stored parameter: `rows` divide dimension -2, `columns` dimension -1. With
    more than `batch + 2` dimensions, all dimensions after the rows are joined to columns.

    Args:
        batch: The number of leading dimensions, such as experts, over which matrices are
            independent.
        rows: The number of equal blocks of rows, or the number of rows in each block, such as
            `(256, 64, 64)` for queries, keys and values.
        columns: The number of equal blocks of columns, or the number of columns in each block.
        interleaved: True if blocks alternate. Sizes in `rows` or `columns` are then sizes of
            pieces, which repeat until the dimension ends. Block i consists of all pieces i. A
            number of blocks means pieces of one row or column.
        transposed: True if matrices have a row for each input, as in `Conv1D` of transformers.
            Rules receive them with a row for each output.

    Raises:
        InvalidArgumentError: A value is invalid.

    Example:
        >>> MatrixLayout(batch=1, columns=2, interleaved=True, transposed=True)
        MatrixLayout('batch=1 columns=2 interleaved transposed')
    """

    batch: int = 0
    rows: Blocks = 1
    columns: Blocks = 1
    interleaved: bool = False
    transposed: bool = False

    def __post_init__(self) -> None:
        if type(self.batch) is not int or self.batch < 0:
            raise InvalidArgumentError(
                f"batch of a matrix layout must be a number of dimensions, not"
                f" {show_value(self.batch)}."
            )
        for axis in ("rows", "columns"):
            object.__setattr__(self, axis, _check_blocks(axis, getattr(self, axis)))
        for flag in ("interleaved", "transposed"):
            if type(getattr(self, flag)) is not bool:
                raise InvalidArgumentError(
                    f"{flag} of a matrix layout must be True or False, not"
                    f" {show_value(getattr(self, flag))}."
                )
        if self.interleaved and self.rows == 1 == self.columns:
            raise InvalidArgumentError("A matrix layout is interleaved and has one block.")

    def __str__(self) -> str:
        """Return the layout as a text that `parse` accepts."""
        clauses: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is True:
                clauses.append(field.name)
            elif value != field.default:
                sizes = cast("tuple[int, ...]", value) if isinstance(value, tuple) else (value,)
                clauses.append(f"{field.name}={'+'.join(map(str, sizes))}")
        return " ".join(clauses) or "rows=1"

    def __repr__(self) -> str:
        return f"MatrixLayout({str(self)!r})"

    @classmethod
    def parse(cls, text: str) -> MatrixLayout:
        """Return the layout that a text such as "batch=1 rows=256+64+64 transposed" describes.

        Raises:
            InvalidArgumentError: The text is not a layout.
        """
        arguments: dict[str, Any] = {}
        for clause in text.replace(",", " ").split():
            name, _, value = clause.partition("=")
            if name not in cls.__dataclass_fields__ or name in arguments:
                raise _make_layout_error(text)
            if name in ("interleaved", "transposed"):
                arguments[name] = True
                if value:
                    raise _make_layout_error(text)
            elif re.fullmatch(r"[0-9]+(\+[0-9]+)*", value):
                sizes = tuple(map(int, value.split("+")))
                arguments[name] = sizes if len(sizes) > 1 else int(value)
            else:
                raise _make_layout_error(text)
        if not arguments:
            raise _make_layout_error(text)
        return cls(**arguments)

    @property
    def smallest_shape(self) -> tuple[int, ...]:
        """A shape with two dimensions after the batch that the layout fits."""
        matrix_shape = (
            blocks if isinstance(blocks, int) else sum(blocks)
            for blocks in (self.rows, self.columns)
        )
        return (*(1,) * self.batch, *matrix_shape)

    def matrix_sizes(self, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return (number of matrices in the batch, rows, columns) for a parameter's shape.

        Raises:
            InvalidArgumentError: The shape has fewer than `batch + 2` dimensions.
        """
        if len(shape) < self.batch + 2:
            raise InvalidArgumentError(
                f"The matrix layout '{self}' needs {self.batch + 2} dimensions or more, not shape"
                f" {tuple(shape)}."
            )
        rows, *other_sizes = shape[self.batch :]
        return prod(shape[: self.batch]), rows, prod(other_sizes)

    def blocks(self, shape: Sequence[int]) -> tuple[Block, ...]:
        """Return the blocks of one matrix of the batch, row by row.

        Raises:
            InvalidArgumentError: The blocks do not add up to the sizes of the shape.
        """
        return _cut_blocks(self, *self.matrix_sizes(shape)[1:], tuple(shape))


def as_layout(option: Any, name: str = "layout") -> MatrixLayout | None:
    """Return an option as a `MatrixLayout`: parse a string, return a layout or None unchanged.

    Raises:
        InvalidArgumentError: The string is not a layout, or the option has another type; then the
            message contains `name`.
    """
    if option is None or isinstance(option, MatrixLayout):
        return option
    if isinstance(option, str):
        return MatrixLayout.parse(option)
    raise InvalidArgumentError(
        f"{name} must be an optim.MatrixLayout, its text such as 'rows=256+64+64', or None, not"
        f" {show_value(option)}."
    )


def layout_text(option: Any) -> str | None:
    """Return the text of a layout, as stored in parameter groups and files; None for None.

    Raises:
        InvalidArgumentError: The option is not a layout.
    """
    layout = as_layout(option)
    return None if layout is None else str(layout)


def _check_blocks(axis: str, blocks: Any) -> Blocks:
    """Return `blocks` if it is an int; return a list or tuple of ints as a tuple.

    Raise InvalidArgumentError for numbers below 1, fewer than two sizes, and other types.
    """
    is_sequence = isinstance(blocks, list | tuple)
    sizes = tuple(cast("Sequence[Any]", blocks)) if is_sequence else (blocks,)
    is_too_short = is_sequence and len(sizes) < 2
    if is_too_short or not all(type(size) is int and size > 0 for size in sizes):
        raise InvalidArgumentError(
            f"{axis} of a matrix layout must be a number of equal blocks or a tuple of two sizes or"
            f" more, not {show_value(blocks)}."  # pyright: ignore[reportUnknownArgumentType]
        )
    return sizes if is_sequence else blocks


def _make_layout_error(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{text!r} is not a matrix layout, such as 'batch=1 rows=256+64+64', 'columns=2 interleaved"
        " transposed' or 'rows=3'."
    )


@lru_cache(4096)
def _cut_blocks(
    layout: MatrixLayout, rows: int, columns: int, shape: tuple[int, ...]
) -> tuple[Block, ...]:
    """Return the blocks of a matrix of shape (rows, columns); `shape` is for messages."""
    blocks: list[Block] = []
    for row_pieces in _cut_axis(layout, "rows", rows, shape):
        for column_pieces in _cut_axis(layout, "columns", columns, shape):
            height = row_pieces.size * row_pieces.repeats
            width = column_pieces.size * column_pieces.repeats
            matrix_shape = (width, height) if layout.transposed else (height, width)
            blocks.append(Block(row_pieces, column_pieces, matrix_shape))
    return tuple(blocks)


def _cut_axis(layout: MatrixLayout, axis: str, size: int, shape: tuple[int, ...]) -> list[Pieces]:
    """Return the position of each block on an axis of length `size`.

    Raise InvalidArgumentError if the blocks do not add up to `size`; `shape` is for the message.
    """
    blocks: Blocks = getattr(layout, axis)
    is_interleaved = layout.interleaved and blocks != 1
    if isinstance(blocks, int):
        sizes = (1 if is_interleaved else size // blocks,) * blocks
    else:
        sizes = blocks
    period = sum(sizes)
    if size % (period or 1) if is_interleaved else size != period:
        verb = "repeat evenly in" if is_interleaved else "add up to"
        blocks_text = f"{blocks} blocks" if isinstance(blocks, int) else "+".join(map(str, blocks))
        raise InvalidArgumentError(
            f"The matrix layout '{layout}' does not fit shape {shape}: {blocks_text} of {axis} do"
            f" not {verb} {size}."
        )
    firsts = [sum(sizes[:index]) for index in range(len(sizes))]
    repeats = size // period if period else 1
    return [Pieces(first, piece, repeats) for first, piece in zip(firsts, sizes, strict=True)]


ONE_MATRIX = MatrixLayout()
