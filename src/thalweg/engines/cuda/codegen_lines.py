"""Write the source of a kernel that measures rows, columns and variables, tile by tile.

A program makes what a tile has of each measure, in the order of `thalweg.engines.lines`. A row of
a tile lies in parts, one beside the other: a thread has the same place of each, and adds them up on
its own. What is left of several rows moves between threads together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    most = tl.minimum(rows - first, {tile_rows})
    below = tl.arange(0, {at_once})
{begin}
    for number in range(0, most, {at_once}):
        line = matrix * rows + first + number
{each}
{end}
"""

_THREADS = 128  # of a program, at most
_AT_ONCE = 2  # rows
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
        self._name = f"{reduce}{value}"
        # The numbers of the measures of each "row", "column" and "variable": two may be alike.
        self.targets: dict[str, list[int]] = {}

    @property
    def _has_columns(self) -> bool:
        return not self.targets.keys().isdisjoint(("column", "variable"))

    def begin(self, parts: int, lanes: int) -> list[str]:
        """Before the first row."""
        zero = f"tl.full(({lanes},), {_ZERO[self._reduce]}, tl.float64)"
        return [f"{self._name}_{k} = {zero}" for k in range(parts) if self._has_columns]

    def add_values(self, row: int, part: int) -> list[str]:
        """What is done with the values of a part of a row."""
        value = f"row{row}_{self._name}_{part}"
        lines = [f"{value} = tl.where(is_there, {self._value}, {_ZERO[self._reduce]})"]
        if self._has_columns:
            name = f"{self._name}_{part}"
            lines.append(f"{name} = {self._join(name, value)}")
        return lines

    def end_rows(self, parts: int, lanes: int) -> list[str]:
        """After the last part of the last of so many rows."""
        if "row" not in self.targets:
            return []
        lines: list[str] = []
        for row in range(_AT_ONCE):
            lines += self._fold_parts(f"row{row}_{self._name}", parts)
        names = [f"row{row}_{self._name}_0" for row in range(_AT_ONCE)]
        several = f"rows_{self._name}"
        lines.append(f"{several} = tl.reshape({_joined(names)}, ({_AT_ONCE * lanes},))")
        lines += self._fold_lanes(several, lanes, _AT_ONCE)
        place = "(line + below) * across + side"
        return lines + [
            f"tl.store(target{k} + {place}, {several}, mask=number + below < most)"
            for k in self.targets["row"]
        ]

    def end(self, parts: int, lanes: int) -> list[str]:
        """After the last row."""
        lines = [
            f"tl.store(target{k} + band * columns + start + {part * lanes} + lane,"
            f" {self._name}_{part}, mask=lane < count - {part * lanes})"
            for k in self.targets.get("column", ())
            for part in range(parts)
        ]
        if "variable" in self.targets:
            lines += self._fold_parts(self._name, parts)
            lines += self._fold_lanes(f"{self._name}_0", lanes, 1)
            place = "tile + tl.arange(0, 1)"
            lines += [
                f"tl.store(target{k} + {place}, {self._name}_0)" for k in self.targets["variable"]
            ]
        return lines

    def _join(self, a: str, b: str) -> str:
        both = f"{a} + {b}" if self._reduce == "sum" else f"maximum({a}, {b})"
        return self._program.flush_value(both)

    def _fold_parts(self, name: str, parts: int) -> list[str]:
        """The upper half of the parts joined to the lower half, until one is left."""
        lines: list[str] = []
        while parts > 1:
            parts //= 2
            lines += [
                f"{name}_{k} = {self._join(f'{name}_{k}', f'{name}_{k + parts}')}"
                for k in range(parts)
            ]
        return lines

    def _fold_lanes(self, name: str, lanes: int, each: int) -> list[str]:
        """The same of lanes, each of which has so many numbers."""
        fold = {"sum": "fold", "largest": "fold_largest"}[self._reduce]
        lines: list[str] = []
        while lanes > 1:
            lanes //= 2
            folded = f"{fold}({name}, {lanes * each})"
            lines.append(f"{name} = {self._program.flush_value(folded)}")
        return lines


def _joined(names: Sequence[str]) -> str:
    """Blocks of lanes as one, in which a lane has a number of each, in this order."""
    if len(names) == 1:
        return names[0]
    return f"tl.join({_joined(names[::2])}, {_joined(names[1::2])})"


def generate_lines(
    measures: tuple[Measure, ...],
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    measured: int,
    compute: str,
    vectors: Mapping[str, str],
    flush: bool,
    from_copy: bool,
    columns: int = TILE_COLUMNS,
) -> Kernel:
    """The kernel that takes measures in one sweep.

    Args:
        measures: The measures.
        stages, storage, measured, from_copy: As for `generate_measure`.
        compute: The type of vectors and stages, "float32" or "float64".
        vectors: What formulas are given of a "row" or a "column", by name.
        flush: Whether denormals are treated as zero.
        columns: How many a tile has room for, `WARP` or a larger power of two.
    """
    formulas = tuple(dict.fromkeys(each.function for each in measures))
    sweep = Sweep(formulas, stages, storage, measured, from_copy, vectors)
    program = Program(sweep, compute, flush)
    lanes = min(columns, _THREADS)
    parts = range(columns // lanes)
    kept: dict[tuple[int, str], _Kept] = {}
    for number, each in enumerate(measures):
        key = formulas.index(each.function), each.reduce
        own = kept.setdefault(key, _Kept(program, *key))
        own.targets.setdefault(each.over, []).append(number)
    names, sides = list(sweep.vectors.values()), len(sweep.vectors)
    of_rows = [name for name in names if name.startswith("row")]
    of_columns = [name for name in names if name.startswith("column")]
    begin = [f"lane = tl.arange(0, {lanes})", *program.point_at_lines(len(measures))]
    for name in of_columns:
        for k in parts:
            place = f"of_{name} + matrix * columns + start + {k * lanes}"
            stored = f"load({place}, lane, count - {k * lanes}, True)"
            begin.append(f"{name}_{k} = {program.read_vector(stored)}")
    found = ", ".join(f"v{index}" for index in range(len(formulas)))
    each_rows: list[str] = []
    for row in range(_AT_ONCE):
        each_rows += [
            # Rows that are missing have no places.
            f"width = tl.where(number + {row} < most, count, 0)",
            f"offset = (line + {row}) * columns + start",
        ]
        for name in of_rows:
            stored = f"tl.load(of_{name} + line + {row}, mask=number + {row} < most, other=0)"
            value = program.read_vector(stored)
            each_rows.append(f"{name} = tl.broadcast_to({value}, ({lanes},))")
        for k in parts:
            given = [each if each not in of_columns else f"{each}_{k}" for each in sweep.arguments]
            each_rows += [
                *(f"p{x} = of_p{x} + offset + {k * lanes}" for x in sweep.read),
                f"left = width - {k * lanes}",
                "is_there = lane < left",
                f"{found} = element({', '.join(given)}, lane, left, True)",
            ]
            each_rows += [x for own in kept.values() for x in own.add_values(row, k)]
    size = len(parts), lanes
    text = _MEASURE.format(
        width=sides + 4 + len(measures),
        sides=sides,
        n_scalars=len(sweep.scalars),
        tile_rows=TILE_ROWS,
        tile_columns=TILE_COLUMNS,
        at_once=_AT_ONCE,
        scalars=indent_by(program.load_scalars(), 1),
        begin=indent_by([*begin, *(x for own in kept.values() for x in own.begin(*size))], 1),
        each=indent_by([*each_rows, *(x for own in kept.values() for x in own.end_rows(*size))], 2),
        end=indent_by([x for own in kept.values() for x in own.end(*size)], 1),
    )
    text = program.write_header() + program.define_functions() + text
    own = tuple(sweep.vectors)
    return name_kernel(text, sweep.scalars, measures=len(measures), vectors=own, threads=lanes)
