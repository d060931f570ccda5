"""Generator of Triton kernels that reduce rows, columns and variables, tile by tile.

A program computes the partial result of each measure for one tile, in the order of
`_engines/row_column_reductions.py`. A row of a tile is divided into parts. A thread has one element
of each part, and adds its elements up. Then threads exchange the sums of several rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg._engines.cuda.codegen import THREADS, Kernel
from thalweg._engines.cuda.codegen_measure import LaneReduction
from thalweg._engines.cuda.codegen_partial_reductions import MeasureBuilder, name_parts
from thalweg._engines.row_column_reductions import TILE_COLUMNS, TILE_ROWS

# A table row of a tensor: its vectors, rows and columns of its matrices, numbers of tiles down and
# across, and for each measure the address of the results of tiles.
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

# Rows, a power of two. Four rows need so many registers that few programs run at once; with one,
# threads wait for each other twice as often.
_ROWS_PER_PASS = 2


class _Tile:
    """Writer of the reductions of a tile.

    Args:
        parts, lanes: Number of parts of a row, and of elements of a part.
    """

    def __init__(self, reductions: Sequence[LaneReduction], parts: int, lanes: int) -> None:
        self.reductions, self.parts, self.lanes = reductions, parts, lanes

    def add_part(self, row: int, segment: int) -> list[str]:
        """Return lines that add one part of a row to the row and column results."""
        lines: list[str] = []
        for reduction in self.reductions:
            value, column = f"row{row}_{reduction.name}_{segment}", f"{reduction.name}_{segment}"
            lines.append(f"{value} = tl.where(is_there, {reduction.value}, {reduction.zero})")
            if reduction.has_columns:
                lines.append(f"{column} = {reduction.join(column, value)}")
        return lines

    def end_rows(self) -> list[str]:
        """Return lines that reduce the rows of one loop iteration, and store the row results."""
        lines: list[str] = []
        for reduction in self.reductions:
            if "row" not in reduction.targets:
                continue
            rows = [
                name_parts(f"row{row}_{reduction.name}", self.parts)
                for row in range(_ROWS_PER_PASS)
            ]
            for names in rows:
                lines += reduction.fold(names)
            block_name, joined_rows = f"rows_{reduction.name}", _join_blocks([x[0] for x in rows])
            shape = f"({_ROWS_PER_PASS * self.lanes},)"
            lines.append(f"{block_name} = tl.reshape({joined_rows}, {shape})")
            lines += reduction.fold_lanes(block_name, self.lanes, _ROWS_PER_PASS)
            offset = "(line + below) * across + side"
            lines += reduction.store("row", offset, block_name, "number + below < most")
        return lines

    def end(self) -> list[str]:
        """Return lines that store column and variable results, after the last row."""
        lines: list[str] = []
        for reduction in self.reductions:
            names = name_parts(reduction.name, self.parts)
            for segment, name in enumerate(names):
                offset = f"band * columns + start + {segment * self.lanes} + lane"
                mask = f"lane < count - {segment * self.lanes}"
                lines += reduction.store("column", offset, name, mask)
            if "variable" in reduction.targets:
                lines += reduction.fold(names)
                lines += reduction.fold_lanes(names[0], self.lanes)
                lines += reduction.store("variable", "tile + tl.arange(0, 1)", names[0])
        return lines


def _join_blocks(names: Sequence[str]) -> str:
    """Return an expression that joins blocks of lanes: a lane gets one number of each block."""
    if len(names) == 1:
        return names[0]
    return f"tl.join({_join_blocks(names[::2])}, {_join_blocks(names[1::2])})"


def _add_row(builder: MeasureBuilder, tile: _Tile, row: int) -> list[str]:
    """Return lines that load row `row` of a loop iteration, compute values, and add them up."""
    lines = [
        # A row beyond the last one has width 0, so that all of its lanes are masked.
        f"width = tl.where(number + {row} < most, count, 0)",
        f"offset = (line + {row}) * columns + start",
    ]
    for name in builder.of_rows:
        load_expression = f"tl.load(of_{name} + line + {row}, mask=number + {row} < most, other=0)"
        vector = builder.program.read_vector(load_expression)
        lines.append(f"{name} = tl.broadcast_to({vector}, ({tile.lanes},))")
    for k in range(tile.parts):
        lines += [
            *(f"p{x} = of_p{x} + offset + {k * tile.lanes}" for x in builder.read),
            f"left = width - {k * tile.lanes}",
            "is_there = lane < left",
            builder.call_element(k, "lane", "left"),
            *tile.add_part(row, k),
        ]
    return lines


def generate_lines(builder: MeasureBuilder, columns: int) -> Kernel:
    """Return the kernel that computes measures of rows and columns in one pass over the tensors.

    Args:
        columns: Columns of a tile, a power of two from `WARP` to `TILE_COLUMNS`; less than
            `TILE_COLUMNS` only if no matrix is wider.
    """
    lanes = min(columns, THREADS)
    segments = range(columns // lanes)
    tile = _Tile(builder.reductions, len(segments), lanes)
    begin = builder.point()
    for name in builder.of_columns:
        for k in segments:
            address = f"of_{name} + matrix * columns + start + {k * lanes}"
            load_expression = f"load({address}, lane, count - {k * lanes}, True)"
            begin.append(f"{name}_{k} = {builder.program.read_vector(load_expression)}")
    rows = [line for row in range(_ROWS_PER_PASS) for line in _add_row(builder, tile, row)]
    return builder.fill_kernel(
        _MEASURE,
        threads=lanes,
        tile_rows=TILE_ROWS,
        tile_columns=TILE_COLUMNS,
        lanes=lanes,
        at_once=_ROWS_PER_PASS,
        begin=[*begin, *builder.begin(len(segments), lanes)],
        each=[*rows, *tile.end_rows()],
        end=tile.end(),
    )
