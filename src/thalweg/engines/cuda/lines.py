"""Rows and columns of variables on a GPU: where they lie, and their measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg.engines.arrays import Array, numbered
from thalweg.engines.cuda.launch import Compiled
from thalweg.engines.cuda.mirror import send_constant
from thalweg.engines.lines import View, combine_tiles, view_of
from thalweg.ground.lazily import lazy
from thalweg.ground.passes import Measure

_TILED = {"row": 3, "column": 2, "variable": 1}  # the dimension that tells tiles apart


class _Room(NamedTuple):
    """What a kernel of measures is given, and where it leaves what tiles have.

    Attributes:
        table: Of each variable its vectors, sides, tiles, and where measures go.
        blocks: For the variables of each shape one block for each measure.
    """

    table: Tensor
    blocks: list[list[Tensor]]


class Lines:
    """Rows and columns of a set of variables with elements; made once, used in each step.

    Args:
        shapes: Of the variables.
        vectors: What formulas are given of rows and columns of each, by name.
        device: Where they are.
    """

    def __init__(
        self,
        shapes: Sequence[torch.Size],
        vectors: Sequence[Mapping[str, Tensor]],
        device: torch.device,
    ) -> None:
        self._views, self._vectors, self._device = list(map(view_of, shapes)), vectors, device
        self._tables: dict[tuple[str, ...], Tensor] = {}
        self._rooms: dict[Compiled, _Room] = {}
        self._alike: dict[View, list[int]] = {}
        for index, view in enumerate(self._views):
            self._alike.setdefault(view, []).append(index)

    @lazy
    def _tiles(self) -> Tensor:
        """Variable and number of each tile."""
        counts = [view.matrices * view.down * view.across for view in self._views]
        tiles = np.stack(numbered(np.array(counts, np.int64)), axis=1)
        return send_constant(tiles, np.int32, self._device)

    def _places_of(self, names: tuple[str, ...]) -> Array:
        """Where vectors begin, and the sides of matrices: (variables, names + 2)."""
        places = [
            [*(own[name].data_ptr() for name in names), view.rows, view.columns]
            for own, view in zip(self._vectors, self._views, strict=True)
        ]
        return np.array(places, np.int64)

    def table_of(self, names: tuple[str, ...]) -> Tensor:
        """The same on the device."""
        if names not in self._tables:  # vectors stay where they are
            self._tables[names] = send_constant(self._places_of(names), np.int64, self._device)
        return self._tables[names]

    def _room_for(self, kernel: Compiled, measures: Sequence[Measure]) -> _Room:
        blocks = [
            [self._block(each, view, len(members)) for each in measures]
            for view, members in self._alike.items()
        ]
        targets = np.empty((len(self._views), len(measures)), np.int64)
        for own, members in zip(blocks, self._alike.values(), strict=True):
            for number, block in enumerate(own):
                steps = np.arange(len(members)) * (block.stride(0) * block.element_size())
                targets[members, number] = block.data_ptr() + steps
        tiles = np.array([(view.down, view.across) for view in self._views], np.int64)
        table = np.hstack([self._places_of(kernel.vectors), tiles, targets])
        return _Room(send_constant(table, np.int64, self._device), blocks)

    def _block(self, each: Measure, view: View, count: int) -> Tensor:
        """Memory for what tiles of so many variables have of a measure."""
        shapes = {
            "row": (count, view.matrices, view.rows, view.across),
            "column": (count, view.matrices, view.down, view.columns),
            "variable": (count, view.matrices * view.down * view.across, 1, 1),
        }
        return torch.empty(shapes[each.over], dtype=torch.float64, device=self._device)

    def measure(
        self,
        kernel: Compiled,
        measures: Sequence[Measure],
        base: Tensor,
        scalar_row: Tensor,
        scalars: Tensor,
    ) -> list[list[Tensor]]:
        """Of each variable its measures; nobody waits for the device.

        Args:
            kernel: From `launch.lines_kernel`.
            measures: The measures.
            base: (variables, streams) addresses.
            scalar_row, scalars: Which row of scalars each variable reads, and the rows.
        """
        room = self._rooms.get(kernel)
        if room is None:
            room = self._rooms[kernel] = self._room_for(kernel, measures)
        arguments = (base, self._tiles, room.table, scalar_row, scalars)
        kernel.bind_to((len(self._tiles), 1), arguments, False).run()
        found: list[list[Tensor]] = [[] for _ in self._views]
        for own, members in zip(room.blocks, self._alike.values(), strict=True):
            for each, block in zip(measures, own, strict=True):
                whole = combine_tiles(block, _TILED[each.over], each.reduce)
                for member, value in zip(members, whole.unbind(0), strict=True):
                    found[member].append(value)
        return found
