"""Generator of Triton kernels that reduce rows and columns of small matrices.

Each thread reduces one matrix, such as a 3x3 convolution kernel, and nothing moves between threads.
All matrices of a launch have equal sides, which are constants of the text.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg._engines.cuda.codegen import THREADS, Kernel
from thalweg._engines.cuda.codegen_partial_reductions import LaneReduction, MeasureBuilder, RowParts

# A table row is that of `codegen_row_column`, with the number of matrices in place of tiles down.
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


class _Matrix(RowParts):
    """Writer of the reductions of a matrix, row by row, so that few values are live at a time.

    Args:
        sides: Rows and columns of the matrix; a column is a part of `RowParts`.
    """

    def __init__(self, reductions: Sequence[LaneReduction], matrix_shape: tuple[int, int]) -> None:
        self._rows, self._columns = matrix_shape
        super().__init__(reductions, self._columns, THREADS)

    def add_row(self, row: int) -> list[str]:
        """Return lines that add a row to the column results, and reduce and store the row."""
        lines: list[str] = []
        for reduction in self.reductions:
            values = self.names(reduction.value)
            if reduction.has_columns:
                pairs = zip(self.names(reduction.name), values, strict=True)
                lines += [f"{column} = {reduction.join(column, value)}" for column, value in pairs]
            if "row" in reduction.targets:
                names = self.names(f"row_{reduction.name}")
                lines += [f"{name} = {x}" for name, x in zip(names, values, strict=True)]
                lines += reduction.fold(names)
                offset = f"matrix * {self._rows} + {row}"
                lines += reduction.store("row", offset, names[0], "is_there")
        return lines

    def end(self) -> list[str]:
        """Return lines that store column and variable results, after the last row."""
        lines: list[str] = []
        for reduction in self.reductions:
            names = self.names(reduction.name)
            for column, name in enumerate(names):
                offset = f"matrix * {self._columns} + {column}"
                lines += reduction.store("column", offset, name, "is_there")
            if "variable" in reduction.targets:
                lines += [
                    *reduction.fold(names),
                    *reduction.store("variable", "matrix", names[0], "is_there"),
                ]
        return lines


def generate_short(builder: MeasureBuilder, matrix_shape: tuple[int, int]) -> Kernel:
    """Return the kernel that computes measures of matrices of `matrix_shape` in one pass."""
    rows, columns = matrix_shape
    matrix = _Matrix(builder.reductions, matrix_shape)
    lines = builder.point()
    lines += [f"p{stream} = of_p{stream}" for stream in builder.read]

    def read(name: str, count: int, line: int) -> str:
        load_expression = f"load_where(of_{name}, matrix * {count} + {line}, is_there, True)"
        return builder.program.read_vector(load_expression)

    for name in builder.of_columns:
        lines += [f"{name}_{k} = {read(name, columns, k)}" for k in range(columns)]
    lines += matrix.begin()
    for row in range(rows):
        lines += [f"{name} = {read(name, rows, row)}" for name in builder.of_rows]
        for k in range(columns):
            offsets = f"matrix * {rows * columns} + {row * columns + k}"
            lines.append(builder.call_element(k, offsets, "length", f"_{k}"))
        lines += matrix.add_row(row)
    lines += matrix.end()
    return builder.fill_kernel(_MEASURE, THREADS, size=rows * columns, each=lines)
