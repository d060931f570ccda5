"""Write the source of a kernel that measures rows, columns and variables, tile by tile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from thalweg.engines.codegen import Kernel, indent_by
from thalweg.engines.cpu.codegen import STORAGE, name_kernel
from thalweg.engines.cpu.codegen_measure import Elements
from thalweg.engines.cpu.codegen_vectors import SHORT, spread_name, spread_vectors
from thalweg.engines.lines import TILE_COLUMNS, TILE_ROWS
from thalweg.engines.measuring import LANES
from thalweg.engines.transcribe import FUNCTION_PREFIX
from thalweg.formula import Formula
from thalweg.ground.passes import Measure

# Of a tensor the table has its streams, its vectors, rows and columns of its matrices, how many
# tiles lie below one another and side by side, and where what tiles have of each measure goes.
_MEASURE = """
def measured({parameters}):
{element}


def KERNEL_NAME(argument):
    work = int64_pointer(address_of(argument))
    slices, flush = work[1], work[2]
    chunks, base = int64_pointer(work[4]), int64_pointer(work[5])
    scalar_step, scalars = work[6], float64_pointer(work[7])
    streams = {width}
{lanes}
    found = begin_denormals(flush)
    ticket = take_ticket(work)
    while ticket < slices:
        tensor, begin, end = chunks[3 * ticket], chunks[3 * ticket + 1], chunks[3 * ticket + 2]
        rows, columns = base[tensor * streams + {sides}], base[tensor * streams + {sides} + 1]
        down, across = base[tensor * streams + {sides} + 2], base[tensor * streams + {sides} + 3]
{targets}
        row = tensor * scalar_step
{scalars}
        tile = begin
        while tile < end and columns <= {short}:
            last = min(end, tile + {lane_count} // (min({tile_rows}, rows) * columns))
            matrix = tile // down
            first = (tile - matrix * down) * {tile_rows}
            line = matrix * rows + first
            start = line * columns
            offset, from_line = start, line
            count = last // down
            count = (count * rows + (last - count * down) * {tile_rows}) * columns - start
{pointers_short}
{spread}
            for i in range(count):
{values_short}
            line, i = from_line, 0
            for own in range(tile, last):
                end_line = line + min({tile_rows}, rows - first)
                column = own * columns
{cases}
                first += {tile_rows}
                if first >= rows:
                    first = 0
            tile = last
        for tile in range(tile, end):
            band = tile // across
            start = (tile - band * across) * {tile_columns}
            matrix = band // down
            first = (band - matrix * down) * {tile_rows}
            count = min({tile_columns}, columns - start)
            places = {lane_count}
            while places >= 2 * count:
                places >>= 1
            column = matrix * columns + start
            for lane in range(places):
{zero}
{columns}
            last = matrix * rows + min(first + {tile_rows}, rows)
            for line in range(matrix * rows + first, last):
                offset = line * columns + start
{pointers}
                for i in range(count):
{values}
{keep_row}
{keep}
        ticket = take_ticket(work)
    end_denormals(found)
"""


class _Kept(NamedTuple):
    """What is kept of one formula in the course of a tile.

    Attributes:
        value: The number of its value.
        reduce: How values become one.
        targets: The numbers of the measures of each "row", "column" and "variable", where there
            are some: two may be alike.
    """

    value: int
    reduce: str
    targets: dict[str, list[int]]

    @property
    def zero(self) -> str:
        """What lanes begin with."""
        return "0.0" if self.reduce == "sum" else "-1e999"

    def join(self, name: str, other: str) -> str:
        """Have a lane hold both."""
        if self.reduce == "sum":
            return f"{name} += {other}"
        return f"{name} = {FUNCTION_PREFIX}maximum({name}, {other})"

    def fold(self, name: str) -> list[str]:
        """Fold lanes until the first one holds all."""
        return [
            "span = places",
            "while span > 1:",
            "    span >>= 1",
            "    for lane in range(span):",
            f"        {self.join(f'{name}[lane]', f'{name}[lane + span]')}",
        ]


def _share_formulas(measures: tuple[Measure, ...]) -> tuple[tuple[Formula, ...], list[_Kept]]:
    """The formulas, each once, and what is kept of each."""
    formulas = tuple(dict.fromkeys(each.function for each in measures))
    kept: dict[tuple[int, str], _Kept] = {}
    for number, each in enumerate(measures):
        index = formulas.index(each.function)
        own = kept.setdefault((index, each.reduce), _Kept(index, each.reduce, {}))
        own.targets.setdefault(each.over, []).append(number)
    return formulas, [*kept.values()]


class _Short:
    """The parts that have to do with it in tiles of short rows, of which each case has its text.

    Args:
        kept: What is kept.
        name: Names its lanes.
    """

    def __init__(self, kept: _Kept, name: int) -> None:
        self._kept, self.lanes, self._name = kept, f"short_lanes{name}", name
        self._has_columns = not kept.targets.keys().isdisjoint(("column", "variable"))

    def _join(self, one: str, other: str) -> str:
        if self._kept.reduce == "sum":
            return f"({one} + {other})"
        return f"{FUNCTION_PREFIX}maximum({one}, {other})"

    def _fold(self, values: list[str]) -> str:
        """Values in the least power of two of places, folded to one that is not -0."""
        values = values + [self._kept.zero] * ((1 << (len(values) - 1).bit_length()) - len(values))
        while len(values) > 1:
            half = len(values) // 2
            values = list(map(self._join, values[:half], values[half:]))
        return values[0]

    def begin(self, columns: int) -> list[str]:
        """Before the rows of a tile."""
        zeros = range(columns if self._has_columns else 0)
        return [f"sum{self._name}_{j} = {self._kept.zero}" for j in zeros]

    def add_row(self, columns: int) -> list[str]:
        """What becomes of a row."""
        values = [f"value{self._name}_{j}" for j in range(columns)]
        lines = [f"{value} = {self.lanes}[i + {j}]" for j, value in enumerate(values)]
        whole = self._fold(values)
        lines += [f"target{k}[line] = {whole}" for k in self._kept.targets.get("row", ())]
        if self._has_columns:
            sums = [f"sum{self._name}_{j}" for j in range(columns)]
            lines += [
                f"{one} = {self._join(one, value)}" for one, value in zip(sums, values, strict=True)
            ]
        return lines

    def end(self, columns: int) -> list[str]:
        """After the rows of a tile."""
        sums = [f"sum{self._name}_{j}" for j in range(columns)]
        return [
            f"target{k}[column + {j}] = {each}"
            for k in self._kept.targets.get("column", ())
            for j, each in enumerate(sums)
        ] + [f"target{k}[own] = {self._fold(sums)}" for k in self._kept.targets.get("variable", ())]


def _short_cases(kept: list[_Short]) -> list[str]:
    """Add up the tile `own`, whose rows have one of a few lengths."""
    lines: list[str] = []
    for columns in range(1, SHORT + 1):
        lines += [
            f"if columns == {columns}:",
            *(f"    {line}" for each in kept for line in each.begin(columns)),
            "    while line < end_line:",
            *(f"        {line}" for each in kept for line in each.add_row(columns)),
            "        line += 1",
            f"        i += {columns}",
            *(f"    {line}" for each in kept for line in each.end(columns)),
        ]
    return lines


class _Tile:
    """The parts of the text that have to do with one of what is kept.

    Args:
        kept: What is kept.
        name: Names its lanes.
    """

    def __init__(self, kept: _Kept, name: int) -> None:
        self._kept, self._row, self._column = kept, f"row_lanes{name}", f"column_lanes{name}"
        self._has_row = "row" in kept.targets
        self._has_columns = not kept.targets.keys().isdisjoint(("column", "variable"))

    @property
    def lanes(self) -> list[str]:
        return [
            *([f"{self._row} = lanes({LANES})"] if self._has_row else []),
            *([f"{self._column} = lanes({LANES})"] if self._has_columns else []),
        ]

    @property
    def zero(self) -> list[str]:
        return [f"{each.split(' ')[0]}[lane] = {self._kept.zero}" for each in self.lanes]

    @property
    def values(self) -> list[str]:
        value = f"v{self._kept.value}"
        return [
            *([f"{self._row}[i] = {value}"] if self._has_row else []),
            *([self._kept.join(f"{self._column}[i]", value)] if self._has_columns else []),
        ]

    @property
    def keep_row(self) -> list[str]:
        if not self._has_row:
            return []
        place = "line * across + tile - band * across"
        keep = [f"target{k}[{place}] = {self._row}[0]" for k in self._kept.targets["row"]]
        return [*self._kept.fold(self._row), *keep]

    @property
    def keep(self) -> list[str]:
        targets, lines = self._kept.targets, list[str]()
        if "column" in targets:
            lines.append("for lane in range(count):")
            lines += [
                f"    target{k}[band * columns + start + lane] = {self._column}[lane]"
                for k in targets["column"]
            ]
        if "variable" in targets:
            lines += self._kept.fold(self._column)
            lines += [f"target{k}[tile] = {self._column}[0]" for k in targets["variable"]]
        return lines


def generate_lines(
    measures: tuple[Measure, ...],
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    compute: str,
    vectors: Mapping[str, str],
    from_copy: bool,
) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel that takes measures in one sweep.

    Args:
        measures: The measures.
        stages, storage, from_copy: As for `Sweep`.
        compute: The type of vectors and stages, "float32" or "float64".
        vectors: What formulas are given of a "row" or a "column", by name.

    Returns:
        The kernel, and the names of the vectors that it reads, in the order of the table.
    """
    if TILE_COLUMNS != LANES:
        raise RuntimeError("a tile is as wide as there are lanes")
    formulas, kept = _share_formulas(measures)
    readable = len(storage) - from_copy
    sweep = Elements(formulas, stages, storage, readable, from_copy, vectors)
    tiles = [_Tile(each, name) for name, each in enumerate(kept)]
    sides = len(storage) + len(sweep.vectors)
    kind = STORAGE[compute]
    of_rows = [
        f"{name} = {kind.pointer}(base[tensor * streams + {len(storage) + k}])[line]"
        for k, name in enumerate(sweep.vectors.values())
        if name.startswith("row")
    ]
    of_columns = [
        f"{name} = {kind.pointer}(base[tensor * streams + {len(storage) + k}]"
        f" + column * {kind.size})"
        for k, name in enumerate(sweep.vectors.values())
        if name.startswith("column")
    ]
    short = [_Short(each, name) for name, each in enumerate(kept)]
    spread = {
        name: f"{kind.pointer}(base[tensor * streams + {len(storage) + k}])"
        for k, name in enumerate(sweep.vectors.values())
    }
    lanes_of = {name: spread_name(name) for name in spread}
    given = [f"{lanes_of[x]}[i]" if x.startswith("row") else lanes_of.get(x, x)
             for x in sweep.arguments]  # fmt: skip
    results = ", ".join(f"v{index}" for index in range(len(formulas)))
    text = _MEASURE.format(
        parameters=", ".join(["i", *sweep.arguments]),
        element=indent_by(sweep.measure_element(), 1),
        width=sides + 4 + len(measures),
        lanes=indent_by(
            [
                *(line for each in tiles for line in each.lanes),
                *(f"{each.lanes} = lanes({LANES})" for each in short),
                *(f"{each} = lanes({LANES})" for each in lanes_of.values()),
            ],
            1,
        ),
        short=SHORT,
        pointers_short=indent_by(sweep.point_at_leaf() or ["pass"], 3),
        spread=indent_by(spread_vectors(spread, "count"), 3),
        values_short=indent_by(
            [
                f"{results} = measured({', '.join(['i', *given])})",
                *(f"{each.lanes}[i] = v{own.value}" for each, own in zip(short, kept, strict=True)),
            ],
            4,
        ),
        cases=indent_by(_short_cases(short), 4),
        sides=sides,
        targets=indent_by(
            [
                f"target{k} = float64_pointer(base[tensor * streams + {sides + 4 + k}])"
                for k in range(len(measures))
            ],
            2,
        ),
        scalars=indent_by([f"s{k} = scalars[row + {k}]" for k in range(len(sweep.scalars))], 2),
        tile_rows=TILE_ROWS,
        tile_columns=TILE_COLUMNS,
        lane_count=LANES,
        zero=indent_by([line for each in tiles for line in each.zero], 4),
        columns=indent_by(of_columns, 3),
        pointers=indent_by([*of_rows, *sweep.point_at_leaf()], 4),
        values=indent_by(
            [
                f"{results} = measured({', '.join(['i', *sweep.arguments])})",
                *(line for each in tiles for line in each.values),
            ],
            5,
        ),
        keep_row=indent_by([line for each in tiles for line in each.keep_row], 4),
        keep=indent_by([line for each in tiles for line in each.keep], 3),
    )
    definitions = "\n\n".join(sweep.define_functions(compute))
    kernel = name_kernel("l", definitions, text, sweep.scalars, len(measures))
    return kernel, tuple(sweep.vectors)
