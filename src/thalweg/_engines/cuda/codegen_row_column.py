"""Write the source of a kernel that measures rows, columns and variables, tile by tile.

A program makes what a tile has of each measure, in the order of
`_engines/row_column_reductions.py`. A row of a tile
lies in parts, one beside the other: a thread has the same place of each, and adds them up on
its own. What is left of several rows moves between threads together.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg._engines.codegen import indent_by
from thalweg._engines.cuda.codegen import THREADS, Kernel
from thalweg._engines.cuda.codegen_partial_reductions import MeasureBuilder, ReducedFormula
from thalweg._engines.row_column_reductions import TILE_COLUMNS, TILE_ROWS

# Of a tensor the table has its vectors, rows and columns of its matrices, how many tiles lie below
# one another and side by side, and where what tiles have of each measure goes.
_MEASURE = """
@triton.jit
def KERNEL_NAME(base, chunks, lines, scalar_row, scalars, ALIGNED: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 2 * program).to(tl.int64)
    tile = tl.load(chunks + 2 * program + 1).to(tl.int64)
    own = lines + tensor * {width}
    rows, columns = tl.load(own + {sides}), tl.load(own + {sides} + 1)
    down, across = tl.load(own + {sides} + 2), tl.load(own + {sides} + 3)
    row = tl.load(scalar_row + tensor) * {n_scalars}
{scalars}
    band = tile // across
    side = tile - band * across
    start = side * {tile_columns}
    matrix = band // down
    first = (band - matrix * down) * {tile_rows}
    count = tl.minimum(columns - start, {tile_columns})
    most = tl.minimum(rows - first, {tile_rows})
    lane = tl.arange(0, {lanes})
    below = tl.arange(0, {at_once})
{begin}
    for number in range(0, most, {at_once}):
        line = matrix * rows + first + number
{each}
{end}
"""

# Rows, a power of two. With four, loads of so many elements come first that there are registers for
# few programs at a time; with one, threads wait for each other twice as often.
_ROWS_PER_PASS = 2


class _Tile:
    """Writes what is done to a tile.

    Args:
        kept: What is kept of each row and column.
        parts: How many parts a row has.
        lanes: Places of a part.
    """

    def __init__(self, reduced_formulas: Sequence[ReducedFormula], parts: int, lanes: int) -> None:
        self._reduced_formulas, self._parts, self._lanes = reduced_formulas, parts, lanes

    def begin(self) -> list[str]:
        """Before the first row."""
        return [
            reduced_formula.begin(name, self._lanes)
            for reduced_formula in self._reduced_formulas
            if reduced_formula.has_columns
            for name in self._names(reduced_formula.name)
        ]

    def add_part(self, row: int, part: int) -> list[str]:
        """What is done with the values of a part of a row."""
        lines: list[str] = []
        for reduced_formula in self._reduced_formulas:
            value, column = (
                f"row{row}_{reduced_formula.name}_{part}",
                f"{reduced_formula.name}_{part}",
            )
            lines.append(
                f"{value} = tl.where(is_there, {reduced_formula.value}, {reduced_formula.zero})"
            )
            if reduced_formula.has_columns:
                lines.append(f"{column} = {reduced_formula.join(column, value)}")
        return lines

    def end_rows(self) -> list[str]:
        """After the last part of the last of so many rows."""
        lines: list[str] = []
        for reduced_formula in self._reduced_formulas:
            if "row" not in reduced_formula.targets:
                continue
            rows = [
                self._names(f"row{row}_{reduced_formula.name}") for row in range(_ROWS_PER_PASS)
            ]
            for names in rows:
                lines += reduced_formula.fold(names)
            block_name, joined_rows = (
                f"rows_{reduced_formula.name}",
                _joined([names[0] for names in rows]),
            )
            lines.append(
                f"{block_name} = tl.reshape({joined_rows}, ({_ROWS_PER_PASS * self._lanes},))"
            )
            lines += reduced_formula.fold_lanes(block_name, self._lanes, _ROWS_PER_PASS)
            offset = "(line + below) * across + side"
            lines += reduced_formula.store("row", offset, block_name, "number + below < most")
        return lines

    def end(self) -> list[str]:
        """After the last row."""
        lines: list[str] = []
        for reduced_formula in self._reduced_formulas:
            names = self._names(reduced_formula.name)
            for part, name in enumerate(names):
                offset = f"band * columns + start + {part * self._lanes} + lane"
                mask = f"lane < count - {part * self._lanes}"
                lines += reduced_formula.store("column", offset, name, mask)
            if "variable" in reduced_formula.targets:
                lines += [
                    *reduced_formula.fold(names),
                    *reduced_formula.fold_lanes(names[0], self._lanes, 1),
                ]
                lines += reduced_formula.store("variable", "tile + tl.arange(0, 1)", names[0])
        return lines

    def _names(self, name: str) -> list[str]:
        return [f"{name}_{part}" for part in range(self._parts)]


def _joined(names: Sequence[str]) -> str:
    """Blocks of lanes as one, in which a lane has a number of each, in this order."""
    if len(names) == 1:
        return names[0]
    return f"tl.join({_joined(names[::2])}, {_joined(names[1::2])})"


def generate_lines(builder: MeasureBuilder, columns: int) -> Kernel:
    """The kernel that takes measures in one sweep.

    Args:
        builder: The measures.
        columns: How many a tile has room for, a power of two: `TILE_COLUMNS`, or fewer, from a warp
            on, where no matrix has more.
    """
    lanes = min(columns, THREADS)
    parts = range(columns // lanes)
    tile = _Tile(builder.reduced_formulas, len(parts), lanes)
    begin = builder.point()
    for name in builder.of_columns:
        for k in parts:
            place = f"of_{name} + matrix * columns + start + {k * lanes}"
            load_expression = f"load({place}, lane, count - {k * lanes}, True)"
            begin.append(f"{name}_{k} = {builder.program.read_vector(load_expression)}")
    each_rows: list[str] = []
    for row in range(_ROWS_PER_PASS):
        each_rows += [
            # Rows that are missing have no places.
            f"width = tl.where(number + {row} < most, count, 0)",
            f"offset = (line + {row}) * columns + start",
        ]
        for name in builder.of_rows:
            load_expression = (
                f"tl.load(of_{name} + line + {row}, mask=number + {row} < most, other=0)"
            )
            value = builder.program.read_vector(load_expression)
            each_rows.append(f"{name} = tl.broadcast_to({value}, ({lanes},))")
        for k in parts:
            each_rows += [
                *(f"p{x} = of_p{x} + offset + {k * lanes}" for x in builder.read),
                f"left = width - {k * lanes}",
                "is_there = lane < left",
                builder.take(k, "lane", "left"),
                *tile.add_part(row, k),
            ]
    return builder.kernel_of(
        _MEASURE,
        threads=lanes,
        tile_rows=TILE_ROWS,
        tile_columns=TILE_COLUMNS,
        lanes=lanes,
        at_once=_ROWS_PER_PASS,
        begin=indent_by([*begin, *tile.begin()], 1),
        each=indent_by([*each_rows, *tile.end_rows()], 2),
        end=indent_by(tile.end(), 1),
    )
