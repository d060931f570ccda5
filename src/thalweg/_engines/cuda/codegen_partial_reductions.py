"""Layouts and parts of Triton kernels that reduce formulas over rows, columns and variables."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import Field, Measurement, fill
from thalweg._engines.codegen_measure import share_reductions
from thalweg._engines.cuda.codegen import WARP, Kernel, name_kernel
from thalweg._engines.cuda.codegen_measure import LaneReduction, Program
from thalweg._engines.row_column_reductions import TILE_COLUMNS, View, places_for

# Most rows and columns of small matrices, since their kernels unroll all elements.
SIDE = 8
_OF_MATRICES = 4  # numbers of a table row: two sides, and counts of tiles or matrices


class Layout(NamedTuple):
    """Shape of matrices that a reducing kernel is generated for.

    Attributes:
        sides: Rows and columns of small matrices; None for larger matrices, cut into tiles.
        columns: Columns of a tile; 0 for small matrices.
    """

    sides: tuple[int, int] | None
    columns: int = 0


def layout_of(view: View) -> Layout:
    """Return the layout for the matrices of a variable."""
    if max(view.rows, view.columns) <= SIDE:
        return Layout((view.rows, view.columns))
    return Layout(None, min(max(places_for(view.columns), WARP), TILE_COLUMNS))


def name_parts(name: str, count: int) -> list[str]:
    """Return the names of the parts of a row, each a tensor of the kernel."""
    return [f"{name}_{segment}" for segment in range(count)]


class MeasureBuilder:
    """Builder of kernels that compute measures of rows, columns and variables in one pass.

    Args:
        measurement: The distinct formulas of the measures, and the memory that formulas read.
        flush: True to treat denormals as zero.

    Attributes:
        program: Writer of the functions that a kernel calls.
        read: The indices of the streams that the kernel reads.
        of_rows, of_columns: The names of row vectors and of column vectors.
        reductions: The distinct pairs of formula and reduction.
        sides: The index of matrix sides in a table row, after the vectors.
        width: The length of a table row.
    """

    def __init__(
        self, measures: tuple[Measure, ...], measurement: Measurement, flush: bool
    ) -> None:
        self.program = program = Program(measurement, flush)
        self._measures = len(measures)
        self.read, names = program.read, list(program.vectors.values())
        self.of_rows = [name for name in names if name.startswith("row")]
        self.of_columns = [name for name in names if name.startswith("column")]
        self.reductions = share_reductions(measures, partial(LaneReduction, program))
        self.sides = len(names)
        self.width = self.sides + _OF_MATRICES + len(measures)

    def point(self) -> list[str]:
        """Return lines that load pointers: of vectors, of results, and of streams."""
        program, addresses = self.program, list[tuple[str, str, str]]()
        for k, name in enumerate(program.vectors.values()):
            addresses.append((f"of_{name}", f"own + {k}", program.compute))
        for k in range(self._measures):
            addresses.append((f"target{k}", f"own + {self.sides + _OF_MATRICES + k}", "float64"))
        for stream in self.read:
            address = f"base + tensor * {len(program.storage)} + {stream}"
            addresses.append((f"of_p{stream}", address, program.storage[stream]))
        return [
            f"{name} = pointer({address}, tl.{kind}, False)" for name, address, kind in addresses
        ]

    def call_element(self, column: int, offsets: str, length: str, suffix: str = "") -> str:
        """Return a line that calls `element`, which computes all formulas for some elements.

        Args:
            column: The number at the end of names of column vectors.
            offsets, length: Expressions: the elements' offsets, and the first invalid offset.
            suffix: The suffix of the names of results.
        """
        value_names = ", ".join(f"v{index}{suffix}" for index in range(len(self.program.measures)))
        names = self.program.arguments
        call_args = [f"{name}_{column}" if name in self.of_columns else name for name in names]
        return f"{value_names} = element({', '.join(call_args)}, {offsets}, {length}, True)"

    def begin(self, parts: int, lanes: int) -> list[str]:
        """Return lines that set column results to neutral elements, before the first row.

        Args:
            parts, lanes: Number of parts of a row, and of elements of a part.
        """
        return [
            reduction.begin(name, lanes)
            for reduction in self.reductions
            if reduction.has_columns
            for name in name_parts(reduction.name, parts)
        ]

    def fill_kernel(self, template: str, threads: int, **fields: Field) -> Kernel:
        """Return a kernel made of a template.

        Args:
            template: The text of the kernel function.
            fields: Fields of the template, in addition to the fields of all templates.
        """
        program = self.program
        lines = fill(
            template,
            width=self.width,
            sides=self.sides,
            n_scalars=len(program.scalars),
            scalars=program.load_scalars(),
            threads=threads,
            **fields,
        )
        attributes = {
            "measures": self._measures,
            "vectors": tuple(program.vectors),
            "threads": threads,
        }
        return name_kernel(program.define_functions(), lines, program.scalars, **attributes)
