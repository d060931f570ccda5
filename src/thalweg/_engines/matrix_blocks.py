"""Matrices (blocks) that a layout divides variables into, as batches of one shape.

Matrices are in the order (variable, index in the batch of the layout, block). All matrices of one
shape form one tensor. A stage runs once for each shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from torch import Tensor, stack

from thalweg._base.matrix_layout import ONE_MATRIX, Block, MatrixLayout, Pieces
from thalweg.formula import Slot


class SlotParts(NamedTuple):
    """Shape of a slot with a part for each matrix of a variable.

    Attributes:
        shape: The shape of the slot.
        part_shapes: The shape of the part of each block.
        sizes: The size of each part along the first dimension of the slot.
    """

    shape: tuple[int, ...]
    part_shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]


@lru_cache(4096)
def slot_parts(slot: Slot, shape: Sequence[int]) -> SlotParts:
    """Return the shape of a slot, and the shape of the slot's part for each matrix of a variable.

    The slot is a concatenation of the parts. Parts with unequal trailing dimensions are flattened.
    """
    layout = slot.layout or ONE_MATRIX
    batch = layout.matrix_sizes(shape)[0]
    part_shapes: tuple[tuple[int, ...], ...] = tuple(
        () if slot.shape is None else slot.shape(*block.shape) for block in layout.blocks(shape)
    )
    first = part_shapes[0]
    if batch == len(part_shapes) == 1:
        return SlotParts(first, part_shapes, first[:1] or (1,))
    if first and all(part[1:] == first[1:] and part for part in part_shapes):
        sizes, other_sizes = tuple(part[0] for part in part_shapes), first[1:]
    else:
        sizes, other_sizes = tuple(map(prod, part_shapes)), ()
    return SlotParts((batch * sum(sizes), *other_sizes), part_shapes, sizes)


class Division:
    """Division of tensors of a batch of variables into the matrices of a layout, and back.

    Attributes:
        groups: For each shape of blocks the indices of the layout's blocks.
    """

    def __init__(self, layout: MatrixLayout, shape: Sequence[int]) -> None:
        self._layout, self._shape = layout, tuple(shape)
        self._sizes = layout.matrix_sizes(shape)
        self._blocks = layout.blocks(shape)
        groups: dict[tuple[int, int], list[int]] = {}
        for index, block in enumerate(self._blocks):
            groups.setdefault(block.shape, []).append(index)
        self.groups = list(groups.values())

    def matrix_count(self, group: Sequence[int]) -> int:
        """Return the number of matrices of a variable for the blocks in `group`."""
        return self._sizes[0] * len(group)

    def take(self, values: Tensor, group: Sequence[int]) -> Tensor:
        """Return the matrices of some blocks as one row-major tensor (matrices, rows, columns).

        The result may be a view of `values`.

        Args:
            values: (variables, ...) with a number for each element.
            group: The indices of blocks of one shape.
        """
        variables = values.reshape(len(values), *self._sizes)
        blocks = [self._view_block(variables, self._blocks[index]) for index in group]
        rows, columns = self._blocks[group[0]].shape
        matrix_shape = (columns, rows) if self._layout.transposed else (rows, columns)
        matrices = [block.reshape(*block.shape[:2], *matrix_shape) for block in blocks]
        if self._layout.transposed:
            matrices = [matrix.mT for matrix in matrices]
        elif len(matrices) == 1:
            return matrices[0].reshape(-1, rows, columns)
        return stack(matrices, 2).reshape(-1, rows, columns)

    def put(self, values: Tensor, group: Sequence[int], matrices: Tensor) -> None:
        """Write the matrices of some blocks into `values`; the inverse of `take`."""
        variables = values.view(len(values), *self._sizes)
        rows, columns = self._blocks[group[0]].shape
        split = matrices.view(len(values), self._sizes[0], len(group), rows, columns)
        for position, index in enumerate(group):
            target = self._view_block(variables, self._blocks[index])
            block = split[:, :, position]
            target.copy_((block.mT if self._layout.transposed else block).reshape(target.shape))

    def take_slot(self, slot: Slot, values: Tensor, group: Sequence[int]) -> Tensor:
        """Return the parts of a slot for some blocks as a new tensor (matrices, *part shape).

        Args:
            values: The slot of each variable, (variables, *slot shape).
            group: The indices of blocks of one shape.
        """
        part_shape = slot_parts(slot, self._shape).part_shapes[group[0]]
        parts = self._split_slot(slot, values, group)
        # Parts may have no elements, such as the factor of a side that SOAP leaves as it is.
        split = [part.reshape(*part.shape[:2], *part_shape) for part in parts]
        return stack(split, 2).flatten(0, 2)

    def put_slot(self, slot: Slot, values: Tensor, group: Sequence[int], parts: Tensor) -> None:
        """Write the parts of a slot for some blocks into `values`; the inverse of `take_slot`."""
        split = parts.view(len(values), self._sizes[0], len(group), *parts.shape[1:])
        for position, target in enumerate(self._split_slot(slot, values, group)):
            target.copy_(split[:, :, position].reshape(target.shape))

    def _split_slot(self, slot: Slot, values: Tensor, group: Sequence[int]) -> list[Tensor]:
        """Return for each block of a group a view of its part, (variables, batch, size, ...)."""
        shape, _, sizes = slot_parts(slot, self._shape)
        split = values.view(len(values), self._sizes[0], sum(sizes), *shape[1:])
        return [split.narrow(2, sum(sizes[:index]), sizes[index]) for index in group]

    @staticmethod
    def _view_block(variables: Tensor, block: Block) -> Tensor:
        """Return a view of a block: (variables, batch, repeats, rows, repeats, columns)."""
        row_pieces = _cut(variables, 2, block.rows)
        return _cut(row_pieces, 4, block.columns)


def _cut(values: Tensor, dim: int, pieces: Pieces) -> Tensor:
    """Return a view with dimension `dim` cut into `pieces`: replaced by (repeats, size)."""
    period = values.shape[dim] // pieces.repeats
    sizes = (*values.shape[:dim], pieces.repeats, period, *values.shape[dim + 1 :])
    return values.view(sizes).narrow(dim + 1, pieces.first, pieces.size)


@lru_cache(4096)
def division_of(layout: MatrixLayout, shape: Sequence[int]) -> Division | None:
    """Return the division of variables of a shape; None for a layout of one whole matrix."""
    return None if layout == ONE_MATRIX else Division(layout, shape)
