"""Parts of Triton kernels that reduce formulas over rows, columns and variables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import Field, Measurement, fill
from thalweg._engines.codegen_measure import Sweep, Targets, share_reductions
from thalweg._engines.cuda.codegen import Kernel, name_kernel
from thalweg._engines.cuda.codegen_measure import Program
from thalweg._engines.row_column_reductions import places_for

_OF_MATRICES = 4  # numbers of a table row: two sides, and counts of tiles or matrices
_ZERO = {"sum": "0.0", "largest": "float('-inf')"}


class LaneReduction(Targets):
    """Reduction of a formula, shared by all measures with equal formula and equal reduction.

    Args:
        reduce: The reduction, "sum" or "largest".

    Attributes:
        value: The name of an element's value.
        name: The prefix of names of partial results.
        zero: The neutral element of the reduction.
    """

    def __init__(self, program: Program, value: int, reduce: str) -> None:
        super().__init__()
        self._program, self._reduce = program, reduce
        self.value, self.name, self.zero = f"v{value}", f"{reduce}{value}", _ZERO[reduce]
        self._lanes_fold = {"sum": "fold", "largest": "fold_largest"}[reduce]

    def begin(self, name: str, lanes: int) -> str:
        """Return a line that sets all lanes to the neutral element."""
        return f"{name} = tl.full(({lanes},), {self.zero}, tl.float64)"

    def join(self, a: str, b: str) -> str:
        """Return the expression that reduces two values."""
        expression = f"{a} + {b}" if self._reduce == "sum" else f"maximum({a}, {b})"
        return self._program.flush_value(expression)

    def fold(self, names: Sequence[str]) -> list[str]:
        """Return lines that reduce the kernel's variables `names` into the first, by halves.

        If the number of names is no power of two, names without a partner are left unchanged.
        """
        lines: list[str] = []
        count = len(names)
        while count > 1:
            half = places_for(count) // 2
            lines += [
                f"{low} = {self.join(low, high)}"
                for low, high in zip(names, names[half:count], strict=False)
            ]
            count = half
        return lines

    def fold_lanes(self, name: str, lanes: int, values_per_lane: int) -> list[str]:
        """Return lines that reduce lanes, of `values_per_lane` numbers, to one lane."""
        return self._program.fold_lanes(name, lanes, values_per_lane, self._lanes_fold)

    def store(self, scope: str, offset: str, value: str, mask: str = "") -> list[str]:
        """Return lines that store a value for all measures of this reduction over `scope`.

        Args:
            scope: "row", "column" or "variable".
            offset, value: Expressions.
            mask: An expression; "" to store all values.
        """
        mask_argument = f", mask={mask}" if mask else ""
        targets = self.targets.get(scope, ())
        return [f"tl.store(target{k} + {offset}, {value}{mask_argument})" for k in targets]


class RowParts:
    """Writer of reductions of rows. A row is divided into parts, which are tensors of the kernel.

    Args:
        reductions: The reductions to write.
        segments: Number of parts of a row.
        lanes: Elements of a part.
    """

    def __init__(self, reductions: Sequence[LaneReduction], segments: int, lanes: int) -> None:
        self.reductions, self.parts, self.lanes = reductions, segments, lanes

    def begin(self) -> list[str]:
        """Return lines that set column results to neutral elements, before the first row."""
        return [
            reduction.begin(name, self.lanes)
            for reduction in self.reductions
            if reduction.has_columns
            for name in self.names(reduction.name)
        ]

    def names(self, name: str) -> list[str]:
        return [f"{name}_{segment}" for segment in range(self.parts)]


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
        self._sweep = sweep = Sweep(measurement)
        self.program = program = Program(sweep, flush)
        self._measures = len(measures)
        self.read, names = sweep.read, list(sweep.vectors.values())
        self.of_rows = [name for name in names if name.startswith("row")]
        self.of_columns = [name for name in names if name.startswith("column")]
        self.reductions = share_reductions(measures, partial(LaneReduction, program))
        self.sides = len(names)
        self.width = self.sides + _OF_MATRICES + len(measures)

    def point(self) -> list[str]:
        """Return lines that load pointers: of vectors, of results, and of streams."""
        sweep, addresses = self._sweep, list[tuple[str, str, str]]()
        for k, name in enumerate(sweep.vectors.values()):
            addresses.append((f"of_{name}", f"own + {k}", sweep.compute))
        for k in range(self._measures):
            addresses.append((f"target{k}", f"own + {self.sides + _OF_MATRICES + k}", "float64"))
        for stream in self.read:
            address = f"base + tensor * {len(sweep.storage)} + {stream}"
            addresses.append((f"of_p{stream}", address, sweep.storage[stream]))
        return [
            f"{name} = pointer({address}, tl.{kind}, False)" for name, address, kind in addresses
        ]

    def call_element(self, column: int, offsets: str, length: str, suffix: str = "") -> str:
        """Return a line that calls `element`, which computes all formulas for some elements.

        Args:
            column: The suffix of names of column vectors.
            offsets, length: Expressions of the elements' offsets, and of the end of valid offsets.
            suffix: The suffix of the names of results.
        """
        value_names = ", ".join(f"v{index}{suffix}" for index in range(len(self._sweep.measures)))
        names = self._sweep.arguments
        call_args = [f"{name}_{column}" if name in self.of_columns else name for name in names]
        return f"{value_names} = element({', '.join(call_args)}, {offsets}, {length}, True)"

    def fill_kernel(self, template: str, threads: int, **fields: Field) -> Kernel:
        """Return a kernel made of a template.

        Args:
            template: The text of the kernel function.
            fields: Fields of the template, in addition to the fields of all templates.
        """
        sweep = self._sweep
        lines = fill(
            template,
            width=self.width,
            sides=self.sides,
            n_scalars=len(sweep.scalars),
            scalars=self.program.load_scalars(),
            threads=threads,
            **fields,
        )
        attributes = {
            "measures": self._measures,
            "vectors": tuple(sweep.vectors),
            "threads": threads,
        }
        return name_kernel(self.program.define_functions(), lines, sweep.scalars, **attributes)
