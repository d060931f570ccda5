"""Source of the CPU kernel that reduces rows, columns and variables by tiles (matrix parts)."""

from __future__ import annotations

from collections.abc import Mapping

from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import Kernel, Measurement, fill, nest
from thalweg._engines.codegen_measure import Targets, share_reductions
from thalweg._engines.cpu.codegen import STORAGE, load_scalars, name_kernel, write_threads
from thalweg._engines.cpu.codegen_broadcast import SHORT, spread_name, spread_vectors
from thalweg._engines.cpu.codegen_measure import Elements
from thalweg._engines.cpu.codegen_reduction import ReductionText
from thalweg._engines.reduction_order import LANES
from thalweg._engines.row_column_reductions import TILE_COLUMNS, TILE_ROWS

# How many rows are added up at once, where they are long, and over how many tiles of a row: columns
# are then read and written once for all of them. What pays is to read memory in its order: a cache
# fetches ahead in a row, but not from one to the next, nor where short ones take turns. Rows are
# long where the nearest cache does not hold what there is of all columns.
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


class _ShortTile:
    """Writer of lines that reduce a tile with short rows, unrolled over a number of columns.

    Args:
        reduction: The reduction.
        name: The suffix of the names of arrays and sums.
    """

    def __init__(self, reduction: _TileReduction, name: int) -> None:
        self._reduction, self.lanes, self._name = reduction, f"short_lanes{name}", name

    def begin(self, columns: int) -> list[str]:
        """Return lines that set the sums of columns to zero, before the rows of a tile."""
        zeros = range(columns if self._reduction.has_columns else 0)
        return [f"sum{self._name}_{j} = {self._reduction.zero}" for j in zeros]

    def add_row(self, columns: int) -> list[str]:
        """Return lines that store a row's reduction, and add the row's elements to the columns."""
        values = [f"value{self._name}_{j}" for j in range(columns)]
        lines = [f"{value} = {self.lanes}[i + {j}]" for j, value in enumerate(values)]
        row_text = self._reduction.fold(values)
        lines += [f"target{k}[line] = {row_text}" for k in self._reduction.targets.get("row", ())]
        if self._reduction.has_columns:
            sums = [f"sum{self._name}_{j}" for j in range(columns)]
            lines += [
                f"{sum_name} = {self._reduction.join(sum_name, value)}"
                for sum_name, value in zip(sums, values, strict=True)
            ]
        return lines

    def end(self, columns: int) -> list[str]:
        """Return lines that store the reductions of the columns and of the whole tile."""
        sums = [f"sum{self._name}_{j}" for j in range(columns)]
        return [
            f"target{k}[column + {j}] = {sum_name}"
            for k in self._reduction.targets.get("column", ())
            for j, sum_name in enumerate(sums)
        ] + [
            f"target{k}[own] = {self._reduction.fold(sums)}"
            for k in self._reduction.targets.get("variable", ())
        ]


def _write_short_cases(short_tiles: list[_ShortTile]) -> list[str]:
    """Return lines that reduce a tile: an `if` statement for each row length up to `SHORT`."""
    lines: list[str] = []
    for columns in range(1, SHORT + 1):
        row_lines = [line for tile in short_tiles for line in tile.add_row(columns)]
        tile_lines = [
            *(line for tile in short_tiles for line in tile.begin(columns)),
            *nest("while line < end_line:", [*row_lines, "line += 1", f"i += {columns}"]),
            *(line for tile in short_tiles for line in tile.end(columns)),
        ]
        lines += nest(f"if columns == {columns}:", tile_lines)
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
    """

    def __init__(self, reduction: _TileReduction, name: int, tile_count: int) -> None:
        self._reduction, self._tile_count, self._column = (
            reduction,
            tile_count,
            f"column_lanes{name}",
        )
        self.has_row = "row" in reduction.targets
        self._row = f"row_lanes{name}"

    @property
    def lanes(self) -> list[str]:
        """Return lines that reserve arrays for partial results of rows and columns."""
        return [
            *([f"{self._row} = lanes({_ROWS_AT_ONCE * _HALF})"] if self.has_row else []),
            *(
                [f"{self._column} = lanes({self._tile_count * LANES})"]
                if self._reduction.has_columns
                else []
            ),
        ]

    @property
    def zero(self) -> list[str]:
        """Return [the statement that resets a partial result of columns], or [] without any."""
        return (
            [f"{self._column}[lane] = {self._reduction.zero}"]
            if self._reduction.has_columns
            else []
        )

    def add(self, rows: int, upper: bool) -> list[str]:
        """Return lines that add element `i` of each row to the arrays of partial results.

        Args:
            rows: The number of rows that are added at once.
            upper: True if element `i` is in the right half of the tile. The lines then add the
                element to the row's partial result of element `i - half`.
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
            lines += nest(
                "for lane in range(min(room, columns - left)):",
                [
                    f"target{k}[band * columns + left + lane] = {self._column}[lane]"
                    for k in targets["column"]
                ],
            )
        if "variable" in targets:
            cell, partner = (f"{self._column}[shift + lane{suffix}]" for suffix in ("", " + span"))
            lines += fill(
                _FOLD_TILES,
                lanes=LANES,
                half=LANES // 2,
                place=cell,
                pair=self._reduction.join(cell, partner),
                keep=[
                    f"target{k}[tile + side] = {self._column}[shift]" for k in targets["variable"]
                ],
            )
        return lines


class _RowLoop:
    """Writer of a loop over the elements of several rows of a tile at once.

    Args:
        sweep: The writer of an element.
        tiles: The writers of the reductions.
        row_vector_lines: Lines that load the number of row `line` from each vector over rows.
    """

    def __init__(
        self, sweep: Elements, tiles: list[_LongTile], row_vector_lines: list[str]
    ) -> None:
        self._sweep, self._tiles = sweep, tiles
        self._row_lines = [*row_vector_lines, *sweep.point_at_leaf()]
        self._row_names = {line.split(" ")[0] for line in self._row_lines}

    def _name(self, name: str, row: int) -> str:
        return f"{name}_{row}" if name in self._row_names else name

    def add(self, rows: int) -> list[str]:
        """Return lines that reduce `rows` rows, from the row with the index `line` on."""
        lines: list[str] = []
        for row in range(rows):
            lines.append(f"offset = (line + {row}) * columns + start")
            for line in self._row_lines:
                name, expression = line.split(" = ")
                expression = expression.replace("[line]", f"[line + {row}]")
                lines.append(f"{self._name(name, row)} = {expression}")
        if not any(tile.has_row for tile in self._tiles):
            return [*lines, *self._loop("count", rows, upper=False)]
        halves = (("half", False), ("half, count", True))
        return lines + [
            line for limits, upper in halves for line in self._loop(limits, rows, upper)
        ]

    def _loop(self, limits: str, rows: int, upper: bool) -> list[str]:
        """Return a loop over elements `range(limits)` of rows; `upper` is as in `_LongTile.add`."""
        lines: list[str] = []
        for row in range(rows):
            results = ", ".join(f"v{index}_{row}" for index in range(len(self._sweep.measures)))
            arguments = [self._name(name, row) for name in self._sweep.arguments]
            lines.append(f"{results} = measured({', '.join(['i', *arguments])})")
        lines += [line for tile in self._tiles for line in tile.add(rows, upper)]
        return nest(f"for i in range({limits}):", lines)


def _write_short_tiles(
    sweep: Elements, reductions: list[_TileReduction], addresses: Mapping[str, str], compute: str
) -> tuple[list[str], list[str]]:
    """Return (lines that reserve arrays, lines of the loop over tiles with short rows).

    Arguments as in `_write_long_tiles`.
    """
    tiles = [_ShortTile(reduction, name) for name, reduction in enumerate(reductions)]
    lanes_of = {name: spread_name(name) for name in addresses}
    arguments = [lanes_of.get(name, name) for name in sweep.arguments]
    # Lanes of columns are passed as pointers: formulas index them.
    for index, name in enumerate(sweep.arguments):
        arguments[index] += "[i]" if name.startswith("row") else ""
    results = ", ".join(f"v{index}" for index in range(len(sweep.measures)))
    values = [f"{results} = measured({', '.join(['i', *arguments])})"]
    for tile, reduction in zip(tiles, reductions, strict=True):
        values.append(f"{tile.lanes}[i] = v{reduction.value}")
    names = [*(tile.lanes for tile in tiles), *lanes_of.values()]
    pointer = STORAGE[compute].pointer
    pointers = {name: f"{pointer}({address})" for name, address in addresses.items()}
    lines = fill(
        _SHORT_TILES,
        pointers=sweep.point_at_leaf() or ["pass"],
        spread=spread_vectors(pointers, "count"),
        values=values,
        cases=_write_short_cases(tiles),
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
    row_loop = _RowLoop(sweep, tiles, [f"{x} = {pointer}({addresses[x]})[line]" for x in rows])
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
        several_lines=row_loop.add(_ROWS_AT_ONCE),
        one_line=row_loop.add(1),
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
