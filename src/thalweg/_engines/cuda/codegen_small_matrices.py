"""Generator of Triton kernels that reduce rows and columns of small matrices.

Each thread reduces one matrix, such as a 3x3 convolution kernel, and nothing moves between threads.
All matrices of a launch have equal sides, which are constants of the text.
"""

from __future__ import annotations

from thalweg._engines.cuda.codegen import THREADS, Kernel
from thalweg._engines.cuda.codegen_measure import LaneReduction
from thalweg._engines.cuda.codegen_partial_reductions import MeasureBuilder, name_parts

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


def _add_row(reduction: LaneReduction, row: int, matrix_shape: tuple[int, int]) -> list[str]:
    """Return lines that add a row to the column results, and reduce and store the row."""
    lines: list[str] = []
    rows, columns = matrix_shape
    values = name_parts(reduction.value, columns)
    if reduction.has_columns:
        pairs = zip(name_parts(reduction.name, columns), values, strict=True)
        lines += [f"{column} = {reduction.join(column, value)}" for column, value in pairs]
    if "row" in reduction.targets:
        names = name_parts(f"row_{reduction.name}", columns)
        lines += [f"{name} = {x}" for name, x in zip(names, values, strict=True)]
        lines += reduction.fold(names)
        lines += reduction.store("row", f"matrix * {rows} + {row}", names[0], "is_there")
    return lines


def _store_columns(reduction: LaneReduction, columns: int) -> list[str]:
    """Return lines that store column and variable results, after the last row."""
    lines: list[str] = []
    names = name_parts(reduction.name, columns)
    for column, name in enumerate(names):
        lines += reduction.store("column", f"matrix * {columns} + {column}", name, "is_there")
    if "variable" in reduction.targets:
        lines += reduction.fold(names)
        lines += reduction.store("variable", "matrix", names[0], "is_there")
    return lines


def generate_short(builder: MeasureBuilder, matrix_shape: tuple[int, int]) -> Kernel:
    """Return the kernel that computes measures of matrices of `matrix_shape` in one pass."""
    rows, columns = matrix_shape
    lines = builder.point()
    lines += [f"p{stream} = of_p{stream}" for stream in builder.read]

    def read(name: str, count: int, line: int) -> str:
        load_expression = f"load_where(of_{name}, matrix * {count} + {line}, is_there, True)"
        return builder.program.read_vector(load_expression)

    for name in builder.of_columns:
        lines += [f"{name}_{k} = {read(name, columns, k)}" for k in range(columns)]
    lines += builder.begin(columns, THREADS)
    for row in range(rows):
        lines += [f"{name} = {read(name, rows, row)}" for name in builder.of_rows]
        for k in range(columns):
            offsets = f"matrix * {rows * columns} + {row * columns + k}"
            lines.append(builder.call_element(k, offsets, "length", f"_{k}"))
        # Row by row, so that few values are live at a time.
        for reduction in builder.reductions:
            lines += _add_row(reduction, row, matrix_shape)
    for reduction in builder.reductions:
        lines += _store_columns(reduction, columns)
    return builder.fill_kernel(_MEASURE, THREADS, size=rows * columns, each=lines)
