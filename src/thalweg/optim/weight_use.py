"""Record of the products of a weight in a forward pass, which determine its matrix layout."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from torch import Tensor

from thalweg._base.matrix_layout import Blocks, MatrixLayout

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Indices = np.ndarray[Any, np.dtype[np.int64]]


class UndecidedError(Exception):
    """The uses of a weight do not define a matrix layout; the message says why."""


class UnusedError(UndecidedError):
    """The forward pass did not use a weight, or the use of its outputs could not be traced."""


class WeightUse:
    """Record of how a forward pass uses one weight.

    Outputs are the indices of rows, or of columns if the weight has a row for each input.

    Attributes:
        other_uses: Names of functions other than products that took the weight.
        is_lookup_table: True if rows were selected by indices.
        is_grouped: True if a convolution in groups used the weight.
        selects: True if the largest of the outputs were selected, as a router does.
        is_returned: True if the model returned outputs.
        joins_residual: True if outputs were added to activations of the same shape.
        output_count: The number of outputs, or 0 before the first product.
        first_label: The label of the first output.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.other_uses: list[str] = []
        self.is_lookup_table = self.is_elementwise = self.is_grouped = self.selects = False
        self.is_returned = self.joins_residual = False
        self.output_count = self.first_label = 0
        self._orientation: tuple[int, bool] | None = None
        self._conflict = ""
        self._factor_outputs: dict[bytes, Flags] = {}
        self._factor_inputs: dict[bytes, Flags] = {}
        self._consumed_sets: dict[bytes, Flags] = {}
        self._reduced_sets: dict[bytes, Flags] = {}
        self._joined_uses: list[WeightUse] = []

    def add_product(self, view: Tensor, roles: str) -> Indices:
        """Record a product with a view of the weight; return the output index of each element.

        The result is an integer array in the view's shape, with size 1 in dimensions of inputs.

        Args:
            roles: A letter for each dimension of the view: "o" (outputs), "i" (inputs, which are
                summed over) or "b" (a batch).
        """
        shape, ndim = self.shape, view.dim()
        # Offsets of elements in the memory of the weight, by dimension of the view.
        grids = [
            (np.arange(size) * stride).reshape([-1 if axis == dim else 1 for axis in range(ndim)])
            for dim, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True))
        ]
        zeros = np.zeros([1] * ndim, int)
        outputs, inputs = (
            sum((grid for grid, letter in zip(grids, roles, strict=True) if letter == role), zeros)
            for role in ("o", "i")
        )
        extent = int(outputs.max() + inputs.max()) + 1
        # The matrix has the fewest trailing dimensions that contain all offsets.
        batch = max(
            batch_dim
            for batch_dim in range(len(shape) - 1)
            if batch_dim == 0 or prod(shape[batch_dim:]) >= extent
        )
        row_size = prod(shape[batch + 1 :])
        matrix_size = shape[batch] * row_size
        transposed = self._orient(outputs, inputs, batch, row_size)
        self.output_count = row_size if transposed else shape[batch]
        input_count = shape[batch] if transposed else row_size
        starts = sum(
            (grid % matrix_size for grid, kind in zip(grids, roles, strict=True) if kind == "b"),
            np.full([1] * ndim, view.storage_offset() % matrix_size),
        )
        for start in np.unique(starts).tolist():
            factors = [(start + outputs, not transposed), (start + inputs, transposed)]
            output_flags, input_flags = (
                _make_flags(indices // row_size if is_row else indices % row_size, size)
                for (indices, is_row), size in zip(
                    factors, (self.output_count, input_count), strict=True
                )
            )
            self._add(self._factor_outputs, output_flags)
            self._add(self._factor_inputs, input_flags)
        outputs = starts + outputs
        return outputs % row_size if transposed else outputs // row_size

    def _orient(self, outputs: Indices, inputs: Indices, batch: int, row_size: int) -> bool:
        """Record whether outputs are rows or columns of the weight; return True for columns.

        If earlier products differ, also record a conflict; `layout` then raises.

        Args:
            outputs: Flat indices of the weight elements that multiply the first input.
            inputs: Flat indices of the weight elements of the first output.
            batch: The number of dimensions in front of the matrix.
            row_size: The number of elements of a matrix row.
        """
        transposed = False
        if (outputs % row_size).any() or inputs.max() >= row_size:
            transposed = not (inputs % row_size).any() and bool(outputs.max() < row_size)
            if not transposed:
                self._conflict = "outputs are neither its rows nor its columns"
        if self._orientation not in (None, (batch, transposed)):
            self._conflict = "products use it in different orientations"
        self._orientation = (batch, transposed)
        return transposed

    def consume(self, outputs: Indices) -> None:
        """Record that a function used these outputs together."""
        self._add(self._consumed_sets, _make_flags(outputs, self.output_count))

    def reduce(self, outputs: Indices) -> None:
        """Record that a function reduced these outputs."""
        self._add(self._reduced_sets, _make_flags(outputs, self.output_count))

    def join(self, other_use: WeightUse) -> None:
        """Record that the outputs were added to the outputs of the weight of `other_use`."""
        if all(use is not other_use for use in self._joined_uses):
            self._joined_uses.append(other_use)
        self.joins_residual = True

    @property
    def _all_consumed(self) -> list[Flags]:
        """Sets of outputs that functions used together, also of joined weights."""
        sets = dict(self._consumed_sets)
        for use in self._joined_uses:
            sets |= use._consumed_sets
        return list(sets.values())

    @property
    def is_output(self) -> bool:
        """True if the model returns the outputs, and no function takes them before."""
        return self.is_returned and not self._consumed_sets and not self.joins_residual

    @property
    def is_followed(self) -> bool:
        """True if the weight is used, and functions take all outputs, or the model returns them."""
        if self._orientation is None:
            return self.is_lookup_table or self.is_elementwise or self.is_grouped
        used = [*self._all_consumed, *self._reduced_sets.values()]
        return self.is_returned or bool(_unite(used, self.output_count).all())

    @staticmethod
    def _add(sets: dict[bytes, Flags], flags: Flags) -> None:
        """Add a set to `sets`, in place, unless present."""
        sets.setdefault(np.packbits(flags).tobytes(), flags)

    def layout(self) -> MatrixLayout:
        """Return the matrix layout of the weight, from the recorded products and uses of outputs.

        Raises:
            UnusedError: No product was recorded, or the use of some outputs is unknown.
            UndecidedError: The recorded uses define no layout of equal or adjacent blocks. For
                example, two products use the weight in different orientations. Or two groups of
                outputs that are used together overlap in part.
        """
        if self._orientation is None:
            raise UnusedError("the forward pass did not multiply with it")
        if self._conflict:
            raise UndecidedError(self._conflict)
        batch, transposed = self._orientation
        factors = _repeat_sets(list(self._factor_outputs.values()))
        consumed = self._all_consumed
        covered = _unite(consumed, self.output_count)
        consumed += [
            flags & ~covered for flags in self._reduced_sets.values() if (flags & ~covered).any()
        ]
        has_followed_outputs = self.is_returned or len(factors) > len(self._factor_outputs)
        if not has_followed_outputs and not _unite(consumed, self.output_count).all():
            raise UnusedError("the use of its outputs could not be followed")
        # One number for each pair of a set of factors and a set of consumed outputs.
        segments = _number_segments(factors) * (len(consumed) + 1)
        if consumed:
            segments += _number_segments(consumed)
        out_blocks, out_interleaved = _find_blocks(segments)
        in_blocks, in_interleaved = _find_blocks(
            _number_segments(_repeat_sets(list(self._factor_inputs.values())))
        )
        if 1 not in (out_blocks, in_blocks) and out_interleaved != in_interleaved:
            raise UndecidedError("only its rows or only its columns are interleaved")
        rows, columns = (in_blocks, out_blocks) if transposed else (out_blocks, in_blocks)
        interleaved = out_interleaved or in_interleaved
        return MatrixLayout(batch, rows, columns, interleaved, transposed)


def _unite(sets: Sequence[Flags], size: int) -> Flags:
    """Return the union of sets, as flags of `size` indices."""
    return np.logical_or.reduce([*sets, np.zeros(size, bool)])


def _make_flags(indices: Indices, size: int) -> Flags:
    """Return flags of `size` indices, True at `indices`."""
    flags = np.zeros(size, bool)
    flags[indices.reshape(-1)] = True
    return flags


def _repeat_sets(sets: list[Flags]) -> list[Flags]:
    """Return sets of rows or columns (flags per index) that together contain every index.

    Return `sets` unchanged if no index is missing. If all sets are ranges of one length, at
    multiples of this length, add the missing ranges, such as those of experts that no token
    reached. Raise UndecidedError for other sets with missing indices.
    """
    covered = np.logical_or.reduce(sets)
    if covered.all():
        return sets
    sizes = {int(flags.sum()) for flags in sets}
    size = sizes.pop()
    firsts = [int(np.argmax(flags)) for flags in sets]
    is_even = not sizes and not len(covered) % size and not any(first % size for first in firsts)
    if not is_even or any(
        not flag_set[set_start : set_start + size].all()
        for flag_set, set_start in zip(sets, firsts, strict=True)
    ):
        raise UndecidedError("products use only a part of it")
    missing = set(range(0, len(covered), size)) - set(firsts)
    return [
        *sets,
        *(_make_flags(np.arange(start, start + size), len(covered)) for start in sorted(missing)),
    ]


def _number_segments(sets: Sequence[Flags]) -> Indices:
    """Return an int64 array with a set's number for each index, or 0 for an index in no set.

    Sets are numbered from 1 by falling size. An index in several sets gets the number of the
    largest. Raise UndecidedError if two sets partly overlap.
    """
    segments = np.zeros(len(sets[0]), np.int64)
    for index, flags in enumerate(sorted(sets, key=lambda s: -int(s.sum())), 1):
        segments_inside = segments[flags]
        if not segments_inside.any():
            segments[flags] = index
        elif (segments_inside != segments_inside[0]).any():
            raise UndecidedError("its outputs are used in parts that overlap")
    return segments


def _find_blocks(segments: Indices) -> tuple[Blocks, bool]:
    """Divide indices into blocks, from a segment number per index.

    Return (blocks, are_interleaved). `blocks` is a number of equal blocks, or a tuple of their
    sizes. Raise UndecidedError if the segments do not repeat evenly.
    """
    # Run-length encoding; the unequal first element makes index 0 a start.
    starts = np.flatnonzero(np.diff(segments, prepend=segments[0] - 1))
    sizes = np.diff(starts, append=len(segments)).tolist()
    order = segments[starts].tolist()
    count = len(set(order))
    repeats, remainder = divmod(len(order), count)
    if remainder or order != order[:count] * repeats or sizes != sizes[:count] * repeats:
        raise UndecidedError("its outputs are divided into blocks that do not repeat evenly")
    pieces = sizes[:count]
    interleaved = repeats > 1
    is_equal = len(set(pieces)) == 1 and (not interleaved or pieces[0] == 1)
    return (count if is_equal else tuple(pieces)), interleaved
