"""Write the source of a kernel that measures rows, columns and variables, tile by tile.

A program makes what a tile has of each measure, in the order of `thalweg.engines.lines`.
"""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.engines.codegen import indent_by
from thalweg.engines.codegen_measure import Sweep
from thalweg.engines.cuda.codegen import Kernel, name_kernel
from thalweg.engines.cuda.codegen_measure import Program
from thalweg.engines.lines import TILE_COLUMNS, TILE_ROWS
from thalweg.formula import Formula
from thalweg.ground.passes import Measure

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
    lane = tl.arange(0, {tile_columns})
    is_there = lane < count
{begin}
    for number in range(0, tl.minimum(rows - first, {tile_rows})):
        line = matrix * rows + first + number
        offset = line * columns + start
{each}
{end}
"""

_THREADS = 256  # of a program, each with four of a tile's columns
_ZERO = {"sum": "0.0", "largest": "float('-inf')"}


class _Kept:
    """Writes what becomes of the values of a formula that are reduced alike.

    Args:
        program: In which arithmetic.
        value: The number of the formula.
        reduce: How values become one.
    """

    def __init__(self, program: Program, value: int, reduce: str) -> None:
        self._program, self._value, self._reduce = program, f"v{value}", reduce
        self._lanes = f"{reduce}{value}"
        # The numbers of the measures of each "row", "column" and "variable": two may be alike.
        self.targets: dict[str, list[int]] = {}

    @property
    def _has_lanes(self) -> bool:
        return not self.targets.keys().isdisjoint(("column", "variable"))

    def begin(self) -> list[str]:
        """Before the first row."""
        zero = f"tl.full(({TILE_COLUMNS},), {_ZERO[self._reduce]}, tl.float64)"
        return [f"{self._lanes} = {zero}"] if self._has_lanes else []

    def add_row(self) -> list[str]:
        """What is done with the values of a row."""
        value = f"found_{self._lanes}"
        lines = [f"{value} = tl.where(is_there, {self._value}, {_ZERO[self._reduce]})"]
        if self._has_lanes:
            both = f"{self._lanes} + {value}"
            if self._reduce == "largest":
                both = f"maximum({self._lanes}, {value})"
            lines.append(f"{self._lanes} = {self._program.flush_value(both)}")
        if "row" in self.targets:
            lines += self._fold(value)
            lines += self._store("row", "line * across + side", value)
        return lines

    def end(self) -> list[str]:
        """After the last row."""
        lines: list[str] = []
        for k in self.targets.get("column", ()):
            place = f"target{k} + band * columns + start + lane"
            lines.append(f"tl.store({place}, {self._lanes}, mask=is_there)")
        if "variable" in self.targets:
            lines += [*self._fold(self._lanes), *self._store("variable", "tile", self._lanes)]
        return lines

    def _fold(self, name: str) -> list[str]:
        """Fold lanes until one is left; those that are missing change nothing."""
        fold = {"sum": "fold", "largest": "fold_largest"}[self._reduce]
        lines: list[str] = []
        half = TILE_COLUMNS // 2
        while half:
            lines.append(f"{name} = {self._program.flush_value(f'{fold}({name}, {half})')}")
            half //= 2
        return lines

    def _store(self, over: str, place: str, value: str) -> list[str]:
        return [
            f"tl.store(target{k} + {place} + tl.arange(0, 1), {value})" for k in self.targets[over]
        ]


def generate_lines(
    measures: tuple[Measure, ...],
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    measured: int,
    compute: str,
    vectors: Mapping[str, str],
    flush: bool,
    from_copy: bool,
) -> Kernel:
    """The kernel that takes measures in one sweep.

    Args:
        measures: The measures.
        stages, storage, measured, from_copy: As for `generate_measure`.
        compute: The type of vectors and stages, "float32" or "float64".
        vectors: What formulas are given of a "row" or a "column", by name.
        flush: Whether denormals are treated as zero.
    """
    formulas = tuple(dict.fromkeys(each.function for each in measures))
    sweep = Sweep(formulas, stages, storage, measured, from_copy, vectors)
    program = Program(sweep, compute, flush)
    kept: dict[tuple[int, str], _Kept] = {}
    for number, each in enumerate(measures):
        key = formulas.index(each.function), each.reduce
        own = kept.setdefault(key, _Kept(program, *key))
        own.targets.setdefault(each.over, []).append(number)
    names, sides = list(sweep.vectors.values()), len(sweep.vectors)
    found = ", ".join(f"v{index}" for index in range(len(formulas)))
    given = ", ".join([*sweep.arguments, "lane", "count", "True"])
    begin = [f"of_{x} = pointer(own + {k}, tl.{compute}, False)" for k, x in enumerate(names)]
    begin += [
        f"target{k} = pointer(own + {sides + 4 + k}, tl.float64, False)"
        for k in range(len(measures))
    ]
    for stream in sweep.read:
        place = f"base + tensor * {len(storage)} + {stream}"
        begin.append(f"of_p{stream} = pointer({place}, tl.{storage[stream]}, False)")
    for name in names:
        if name.startswith("column"):
            stored = f"load_where(of_{name}, matrix * columns + start + lane, is_there, True)"
            begin.append(f"{name} = {program.read_vector(stored)}")
    each_row = [f"p{stream} = of_p{stream} + offset" for stream in sweep.read]
    each_row += [
        f"{name} = tl.broadcast_to({program.read_vector(f'tl.load(of_{name} + line)')}, lane.shape)"
        for name in names
        if name.startswith("row")
    ]
    each_row.append(f"{found} = element({given})")
    text = _MEASURE.format(
        width=sides + 4 + len(measures),
        sides=sides,
        n_scalars=len(sweep.scalars),
        tile_rows=TILE_ROWS,
        tile_columns=TILE_COLUMNS,
        scalars=indent_by(program.load_scalars(), 1),
        begin=indent_by([*begin, *(x for own in kept.values() for x in own.begin())], 1),
        each=indent_by([*each_row, *(x for own in kept.values() for x in own.add_row())], 2),
        end=indent_by([x for own in kept.values() for x in own.end()], 1),
    )
    text = program.write_header() + program.define_functions() + text
    own = tuple(sweep.vectors)
    return name_kernel(text, sweep.scalars, measures=len(measures), vectors=own, threads=_THREADS)
