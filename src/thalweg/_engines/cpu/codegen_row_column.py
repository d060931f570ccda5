"""Source of the CPU kernel that reduces rows, columns and variables by tiles (matrix parts)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import Kernel, Measurement, fill, nest
from thalweg._engines.codegen_measure import Targets, share_reductions
from thalweg._engines.cpu.codegen import STORAGE, load_scalars, name_kernel, write_threads
from thalweg._engines.cpu.codegen_broadcast import SHORT, spread_name, spread_vectors
from thalweg._engines.cpu.codegen_measure import Elements
from thalweg._engines.cpu.codegen_reduction import ReductionText
from thalweg._engines.reduction_order import LANES
from thalweg._engines.row_column_reductions import TILE_COLUMNS, TILE_ROWS

# Long rows that are added at once, and tiles of a row that are reduced at once. Partial results of
# columns are then read and written once for all rows. Memory is read in its order, because caches
# fetch ahead within a row, but not into the next row, nor if short rows take turns. Rows are long
# if the nearest cache cannot hold the arrays with a number per column.
_ROWS_AT_ONCE, WIDE = 4, 4
_CACHE_BYTES = 28 << 10
_HALF = LANES // 2
_MAX_LANES = 16 * LANES  # lanes of columns in all: they are on the stack of a thread

# A row of the table has for a tensor: addresses of streams and vectors, rows and columns of its
# matrices, tiles per column and per row, and the address of the tile results of each measure.
_SETUP = """
slices, flush = work[1], work[2]
chunks, base = int64_pointer(work[4]), int64_pointer(work[5])
scalar_step, scalars = work[6], float64_pointer(work[7])
streams = {width}
{lanes}
"""
_SLICE = """
tensor, begin, end = chunks[3 * ticket], chunks[3 * ticket + 1], chunks[3 * ticket + 2]
rows, columns = base[tensor * streams + {sides}], base[tensor * streams + {sides} + 1]
down, across = base[tensor * streams + {sides} + 2], base[tensor * streams + {sides} + 3]
{targets}
row = tensor * scalar_step
{scalars}
tile = begin
{short_tiles}
{long_tiles}
"""
_SHORT_TILES = """
while tile < end and columns <= {short}:
    last = min(end, tile + {lane_count} // (min({tile_rows}, rows) * columns))
    matrix = tile // down
    first = (tile - matrix * down) * {tile_rows}
    line = matrix * rows + first
    start = line * columns
    offset, from_line = start, line
    count = last // down
    count = (count * rows + (last - count * down) * {tile_rows}) * columns - start
    {pointers}
    {spread}
    for i in range(count):
        {values}
    line, i = from_line, 0
    for own in range(tile, last):
        end_line = line + min({tile_rows}, rows - first)
        column = own * columns
        {cases}
        first += {tile_rows}
        if first >= rows:
            first = 0
    tile = last
"""
_LONG_TILES = """
tail, tail_half = columns - (across - 1) * {tile_columns}, {lane_count} // 2
while tail_half >= tail and tail_half > 1:
    tail_half >>= 1
while tile < end:
    band = tile // across
    own = tile - band * across
    wide = min(min({wide}, across - own), end - tile)
    left = own * {tile_columns}
    matrix = band // down
    first = (band - matrix * down) * {tile_rows}
    room = wide * {tile_columns}
    if own + wide == across:
        room += 2 * tail_half - {tile_columns}
    for lane in range(room):
        {zero}
    line = matrix * rows + first
    last = matrix * rows + min(first + {tile_rows}, rows)
    while line < last:
        several = {several} if columns > {long} and line + {several} <= last else 1
        for side in range(wide):
            shift = side * {tile_columns}
            start = left + shift
            count, half = {tile_columns}, {tile_columns} // 2
            if own + side + 1 == across:
                count, half = tail, tail_half
            column = matrix * columns + start
            {columns}
            if several > 1:
                {several_lines}
            else:
                {one_line}
            for below in range(several):
                place = (line + below) * across + own + side
                {keep_row}
        line += several
    {keep}
    tile += wide
"""
_SIZES = {"tile_rows": TILE_ROWS, "tile_columns": TILE_COLUMNS, "lane_count": LANES}


class _TileReduction(Targets, ReductionText):
    """Reduction of one formula in a tile.

    Args:
        value: The index of the formula.
        reduce: As for `ReductionText`.
    """

    def __init__(self, value: int, reduce: str) -> None:
        # Neither base calls `super().__init__`.
        Targets.__init__(self)
        ReductionText.__init__(self, reduce)
        self.value = value


def _reduce_short_tile(
    reduction: _TileReduction, name: int, columns: int
) -> tuple[list[str], list[str], list[str]]:
    """Return lines that reduce a tile of short rows, unrolled over the number of columns.

    Args:
        reduction: The reduction.
        name: The suffix of the names of arrays and sums.

    Returns:
        (lines before the loop over rows, lines for one row, lines after the loop).
    """
    values = [f"value{name}_{j}" for j in range(columns)]
    sums = [f"sum{name}_{j}" for j in range(columns if reduction.has_columns else 0)]
    zeros = [f"{total} = {reduction.zero}" for total in sums]
    row = [f"{value} = short_lanes{name}[i + {j}]" for j, value in enumerate(values)]
    targets, row_text = reduction.targets, reduction.fold(values)
    row += [f"target{k}[line] = {row_text}" for k in targets.get("row", ())]
    row += [f"{x} = {reduction.join(x, y)}" for x, y in zip(sums, values, strict=False)]
    columns_of = [(k, j) for k in targets.get("column", ()) for j in range(columns)]
    end = [f"target{k}[column + {j}] = {sums[j]}" for k, j in columns_of]
    end += [f"target{k}[own] = {reduction.fold(sums)}" for k in targets.get("variable", ())]
    return zeros, row, end


def _write_short_cases(reductions: Sequence[_TileReduction]) -> list[str]:
    """Return lines that reduce a tile: an `if` statement for each row length up to `SHORT`."""
    lines: list[str] = []
    for columns in range(1, SHORT + 1):
        parts = [_reduce_short_tile(x, name, columns) for name, x in enumerate(reductions)]
        zeros, row, end = (list(chain.from_iterable(part)) for part in zip(*parts, strict=True))
        loop = nest("while line < end_line:", [*row, "line += 1", f"i += {columns}"])
        lines += nest(f"if columns == {columns}:", [*zeros, *loop, *end])
    return lines


_FOLD_ROW = """
span = half
while span > 2:
    span >>= 2
    for lane in range(below * {half}, below * {half} + span):
        {quarter} = {quarters}
lane = below * {half}
if span > 1:
    {lanes}[lane] = {pair}
"""
_FOLD_TILES = """
for side in range(wide):
    shift = side * {lanes}
    span = tail_half if own + side + 1 == across else {half}
    while span > 0:
        for lane in range(span):
            {place} = {pair}
        span >>= 1
    {keep}
"""


class _LongTile:
    """Writer of lines that reduce tiles with long rows.

    Args:
        reduction: The reduction.
        name: The suffix of the names of arrays.
        tile_count: The number of adjacent tiles that are reduced at once.

    Attributes:
        has_row: True if a measure is over rows.
        lanes: Lines that reserve arrays for partial results of rows and columns.
        zero: [the statement that resets a partial result of columns], or [] if there is none.
    """

    def __init__(self, reduction: _TileReduction, name: int, tile_count: int) -> None:
        self._reduction, self.has_row = reduction, "row" in reduction.targets
        self._row, self._column = f"row_lanes{name}", f"column_lanes{name}"
        self.lanes = [f"{self._row} = lanes({_ROWS_AT_ONCE * _HALF})"] * self.has_row
        self.zero: list[str] = []
        if reduction.has_columns:
            self.lanes.append(f"{self._column} = lanes({tile_count * LANES})")
            self.zero.append(f"{self._column}[lane] = {reduction.zero}")

    def add(self, rows: int, upper: bool) -> list[str]:
        """Return lines that add element `i` of each row to the arrays of partial results.

        Args:
            rows: The number of rows that are added at once.
            upper: False if element `i` is in the left half of the tile: it begins a partial result
                of the row. True if it joins the partial result that element `i - half` has begun.
        """
        values, lines = [f"v{self._reduction.value}_{k}" for k in range(rows)], list[str]()
        if self._reduction.has_columns:
            total = cell = f"{self._column}[shift + i]"
            for value in values:
                total = self._reduction.join(total, value)
            lines.append(f"{cell} = {total}")
        for row, value in enumerate(values if self.has_row else ()):
            cell = f"{self._row}[i + {row * _HALF}{' - half' if upper else ''}]"
            lines.append(f"{cell} = {self._reduction.join(cell, value) if upper else value}")
        return lines

    @property
    def keep_row(self) -> list[str]:
        """Return lines that reduce and store a row of the tile; [] without measures over rows."""
        if not self.has_row:
            return []
        first, *other_quarters = (f"{self._row}[lane + {k} * span]" for k in range(4))
        return [
            *fill(
                _FOLD_ROW,
                half=_HALF,
                lanes=self._row,
                quarter=first,
                quarters=self._reduction.fold([first, *other_quarters]),
                pair=self._reduction.join(f"{self._row}[lane]", f"{self._row}[lane + 1]"),
            ),
            *(f"target{k}[place] = {self._row}[lane]" for k in self._reduction.targets["row"]),
        ]

    @property
    def keep(self) -> list[str]:
        """Return lines that store the results of columns, and the result of each whole tile."""
        targets, lines = self._reduction.targets, list[str]()
        if "column" in targets:
            place = f"[band * columns + left + lane] = {self._column}[lane]"
            stores = [f"target{k}{place}" for k in targets["column"]]
            lines += nest("for lane in range(min(room, columns - left)):", stores)
        if "variable" in targets:
            cell, partner = (f"{self._column}[shift + lane{suffix}]" for suffix in ("", " + span"))
            lines += fill(
                _FOLD_TILES,
                lanes=LANES,
                half=_HALF,
                place=cell,
                pair=self._reduction.join(cell, partner),
                keep=[
                    f"target{k}[tile + side] = {self._column}[shift]" for k in targets["variable"]
                ],
            )
        return lines


def _add_rows(
    sweep: Elements, tiles: Sequence[_LongTile], row_lines: Sequence[str], rows: int
) -> list[str]:
    """Return lines that reduce `rows` rows of a tile at once, from the row `line` on.

    Args:
        sweep: The writer of an element.
        tiles: The writers of the reductions.
        row_lines: Assignments for the row `line`: of its number in each vector over rows, and of
            pointers to its elements. They are repeated for each row, with a suffix of the names.
    """
    names = {line.split(" ")[0] for line in row_lines}
    lines, calls = list[str](), list[str]()
    for row in range(rows):
        lines.append(f"offset = (line + {row}) * columns + start")
        for line in row_lines:
            name, expression = line.split(" = ")
            lines.append(f"{name}_{row} = {expression.replace('[line]', f'[line + {row}]')}")
        results = ", ".join(f"v{index}_{row}" for index in range(len(sweep.measures)))
        arguments = [f"{name}_{row}" if name in names else name for name in sweep.arguments]
        calls.append(f"{results} = measured({', '.join(['i', *arguments])})")
    has_row = any(tile.has_row for tile in tiles)
    halves = (("half", False), ("half, count", True)) if has_row else (("count", False),)
    for limits, upper in halves:
        additions = chain.from_iterable(tile.add(rows, upper) for tile in tiles)
        lines += nest(f"for i in range({limits}):", [*calls, *additions])
    return lines


def _write_short_tiles(
    sweep: Elements, reductions: list[_TileReduction], addresses: Mapping[str, str], compute: str
) -> tuple[list[str], list[str]]:
    """Return (lines that reserve arrays, lines of the loop over tiles with short rows).

    Arguments as in `_write_long_tiles`.
    """
    lanes_of = {name: spread_name(name) for name in addresses}
    arguments = [lanes_of.get(name, name) for name in sweep.arguments]
    # Lanes of columns are passed as pointers: formulas index them.
    for index, name in enumerate(sweep.arguments):
        arguments[index] += "[i]" if name.startswith("row") else ""
    results = ", ".join(f"v{index}" for index in range(len(sweep.measures)))
    values = [f"{results} = measured({', '.join(['i', *arguments])})"]
    values += [f"short_lanes{k}[i] = v{x.value}" for k, x in enumerate(reductions)]
    names = [*(f"short_lanes{k}" for k in range(len(reductions))), *lanes_of.values()]
    pointer = STORAGE[compute].pointer
    pointers = {name: f"{pointer}({address})" for name, address in addresses.items()}
    lines = fill(
        _SHORT_TILES,
        pointers=sweep.point_at_leaf() or ["pass"],
        spread=spread_vectors(pointers, "count"),
        values=values,
        cases=_write_short_cases(reductions),
        short=SHORT,
        **_SIZES,
    )
    return [f"{name} = lanes({LANES})" for name in names], lines


def _write_long_tiles(
    sweep: Elements, reductions: list[_TileReduction], addresses: Mapping[str, str], compute: str
) -> tuple[list[str], list[str]]:
    """Return (lines that reserve arrays, lines of the loop over tiles with long rows).

    Args:
        sweep: The writer of an element.
        addresses: {local name of a vector: expression of its address}.
        compute: The type of vectors.
    """
    if TILE_COLUMNS != LANES:
        raise RuntimeError("a tile is as wide as there are lanes")
    pointer, size = STORAGE[compute].pointer, STORAGE[compute].size
    rows = [name for name in addresses if name.startswith("row")]
    columns = [name for name in addresses if name.startswith("column")]
    column_lanes = sum(reduction.has_columns for reduction in reductions)
    tiles_at_once = min(WIDE, _MAX_LANES // LANES // max(1, column_lanes) or 1)
    tiles = [_LongTile(reduction, name, tiles_at_once) for name, reduction in enumerate(reductions)]
    row_lines = [f"{x} = {pointer}({addresses[x]})[line]" for x in rows] + sweep.point_at_leaf()
    bytes_of_column = 8 * column_lanes + 4 * sum("row" in x.targets for x in reductions)
    bytes_of_column += sum(STORAGE[sweep.storage[stream]].size for stream in sweep.read)
    bytes_of_column += size * len(columns)
    lines = fill(
        _LONG_TILES,
        zero=[line for tile in tiles for line in tile.zero] or ["pass"],
        wide=tiles_at_once,
        several=_ROWS_AT_ONCE,
        long=_CACHE_BYTES // bytes_of_column,
        columns=[f"{x} = {pointer}({addresses[x]} + column * {size})" for x in columns],
        keep_row=[line for tile in tiles for line in tile.keep_row] or ["pass"],
        several_lines=_add_rows(sweep, tiles, row_lines, _ROWS_AT_ONCE),
        one_line=_add_rows(sweep, tiles, row_lines, 1),
        keep=[line for tile in tiles for line in tile.keep],
        **_SIZES,
    )
    return [line for tile in tiles for line in tile.lanes], lines


def generate_lines(measures: tuple[Measure, ...], measurement: Measurement) -> Kernel:
    """Return the kernel that computes measures over rows, columns and variables in one traversal.

    Args:
        measurement: The distinct formulas of the measures, and the memory that is read.
    """
    reductions, sweep = share_reductions(measures, _TileReduction), Elements(measurement)
    compute, storage = sweep.compute, sweep.storage
    size_column = len(storage) + len(sweep.vectors)
    names = enumerate(sweep.vectors.values(), len(storage))
    addresses = {name: f"base[tensor * streams + {column}]" for column, name in names}
    targets = [f"base[tensor * streams + {size_column + 4 + k}]" for k in range(len(measures))]
    targets = [f"target{k} = float64_pointer({target})" for k, target in enumerate(targets)]
    short_lanes, short_tiles = _write_short_tiles(sweep, reductions, addresses, compute)
    long_lanes, long_tiles = _write_long_tiles(sweep, reductions, addresses, compute)
    setup = fill(_SETUP, width=size_column + 4 + len(measures), lanes=[*long_lanes, *short_lanes])
    slice_lines = fill(
        _SLICE,
        sides=size_column,
        targets=targets,
        scalars=load_scalars(len(sweep.scalars)),
        short_tiles=short_tiles,
        long_tiles=long_tiles,
    )
    lines = [*sweep.define_measures(), *write_threads(setup, slice_lines)]
    definitions = "\n\n".join(sweep.define_functions()) + "\n"
    return name_kernel("l", definitions, lines, sweep.scalars, len(measures))
