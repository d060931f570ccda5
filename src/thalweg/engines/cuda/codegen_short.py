"""Write the source of a kernel that measures matrices of few rows and columns, side by side.

A thread has a matrix of its own, such as a kernel of a convolution, and nothing moves between
threads. All matrices of a launch have the same sides, which are numbers of its text.
"""

from __future__ import annotations

from collections.abc import Mapping

from thalweg.engines.codegen import indent_by
from thalweg.engines.codegen_measure import Sweep
from thalweg.engines.cuda.codegen import THREADS, Kernel, name_kernel
from thalweg.engines.cuda.codegen_measure import Program
from thalweg.formula import Formula
from thalweg.ground.passes import Measure

# Of a tensor the table has what it has for `codegen_lines`, with the number of matrices in place of
# that of tiles below one another.
_MEASURE = """
@triton.jit
def KERNEL_NAME(base, chunks, lines, scalar_row, scalars, ALIGNED: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 2 * program).to(tl.int64)
    own = lines + tensor * {width}
    matrices = tl.load(own + {sides} + 2)
    row = tl.load(scalar_row + tensor) * {n_scalars}
{scalars}
    matrix = tl.load(chunks + 2 * program + 1).to(tl.int64) * {threads} + tl.arange(0, {threads})
    is_there = matrix < matrices
    length = matrices * {size}
{each}
"""

_ZERO = {"sum": "0.0", "largest": "float('-inf')"}


class _Kept:
    """Writes what becomes of the values of a formula that are reduced alike.

    Args:
        program: In which arithmetic.
        value: The number of the formula.
        reduce: How values become one.
        rows, columns: Of each matrix.
    """

    def __init__(self, program: Program, value: int, reduce: str, rows: int, columns: int) -> None:
        self._program, self._value, self._reduce = program, value, reduce
        self._rows, self._columns = rows, columns
        # The numbers of the measures of each "row", "column" and "variable": two may be alike.
        self.targets: dict[str, list[int]] = {}

    def write(self) -> list[str]:
        """Join values, and store what that makes."""
        lines: list[str] = []
        if "row" in self.targets:
            for row in range(self._rows):
                lines += self._fold("folded", [self._name(row, k) for k in range(self._columns)])
                lines += self._store("row", f"matrix * {self._rows} + {row}", "folded0")
        if self.targets.keys().isdisjoint(("column", "variable")):
            return lines
        zero = f"tl.full(({THREADS},), {_ZERO[self._reduce]}, tl.float64)"
        for column in range(self._columns):
            lines.append(f"column{column} = {zero}")
            for row in range(self._rows):
                joined = self._join(f"column{column}", self._name(row, column))
                lines.append(f"column{column} = {joined}")
            place = f"matrix * {self._columns} + {column}"
            lines += self._store("column", place, f"column{column}")
        if "variable" in self.targets:
            lines += self._fold("folded", [f"column{k}" for k in range(self._columns)])
            lines += self._store("variable", "matrix", "folded0")
        return lines

    def _name(self, row: int, column: int) -> str:
        return f"v{self._value}_{row}_{column}"

    def _join(self, a: str, b: str) -> str:
        both = f"{a} + {b}" if self._reduce == "sum" else f"maximum({a}, {b})"
        return self._program.flush_value(both)

    def _fold(self, name: str, values: list[str]) -> list[str]:
        """The upper half of places joined to the lower half, until one is left.

        +0 in those beyond changes nothing but -0, which nothing stays.
        """
        lines = [f"{name}{k} = {value}" for k, value in enumerate(values)]
        count = len(values)
        while count > 1:
            half = 1 << (count - 1).bit_length() - 1
            for k in range(count - half):
                lines.append(f"{name}{k} = {self._join(f'{name}{k}', f'{name}{k + half}')}")
            count = half
        return lines

    def _store(self, over: str, place: str, value: str) -> list[str]:
        targets = self.targets.get(over, ())
        return [f"tl.store(target{k} + {place}, {value}, mask=is_there)" for k in targets]


def generate_short(
    measures: tuple[Measure, ...],
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    measured: int,
    compute: str,
    vectors: Mapping[str, str],
    flush: bool,
    from_copy: bool,
    sides: tuple[int, int],
) -> Kernel:
    """The kernel that takes measures in one sweep.

    Args:
        measures, stages, storage, measured, compute, vectors, flush, from_copy: As for
            `generate_lines` of `codegen_lines`.
        sides: Rows and columns of all matrices.
    """
    rows, columns = sides
    formulas = tuple(dict.fromkeys(each.function for each in measures))
    sweep = Sweep(formulas, stages, storage, measured, from_copy, vectors)
    program = Program(sweep, compute, flush)
    kept: dict[tuple[int, str], _Kept] = {}
    for number, each in enumerate(measures):
        key = formulas.index(each.function), each.reduce
        own = kept.setdefault(key, _Kept(program, *key, rows, columns))
        own.targets.setdefault(each.over, []).append(number)
    each_matrix = program.point_at_lines(len(measures))
    each_matrix += [f"p{stream} = of_p{stream}" for stream in sweep.read]
    names = sweep.vectors.values()
    for name in names:
        side, count = ("row", rows) if name.startswith("row") else ("column", columns)
        for k in range(count):
            stored = f"load_where(of_{name}, matrix * {count} + {k}, is_there, True)"
            each_matrix.append(f"{name}_{side}{k} = {program.read_vector(stored)}")
    for row in range(rows):
        for column in range(columns):
            found = ", ".join(f"v{k}_{row}_{column}" for k in range(len(formulas)))
            own = {x: f"{x}_row{row}" if x.startswith("row") else f"{x}_column{column}"
                   for x in names}  # fmt: skip
            given = ", ".join(own.get(x, x) for x in sweep.arguments)
            at = f"matrix * {rows * columns} + {row * columns + column}"
            each_matrix.append(f"{found} = element({given}, {at}, length, True)")
    each_matrix += [line for own in kept.values() for line in own.write()]
    text = _MEASURE.format(
        width=len(sweep.vectors) + 4 + len(measures),
        sides=len(sweep.vectors),
        n_scalars=len(sweep.scalars),
        threads=THREADS,
        size=rows * columns,
        scalars=indent_by(program.load_scalars(), 1),
        each=indent_by(each_matrix, 1),
    )
    text = program.write_header() + program.define_functions() + text
    own_vectors = tuple(sweep.vectors)
    return name_kernel(text, sweep.scalars, measures=len(measures), vectors=own_vectors)
