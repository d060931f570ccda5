"""Write what becomes of the values of elements that are measured by row, column and variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import indent_by
from thalweg._engines.codegen_measure import Sweep
from thalweg._engines.cuda.codegen import Kernel, name_kernel
from thalweg._engines.cuda.codegen_measure import Program
from thalweg._engines.row_column_reductions import places_for
from thalweg.formula import Formula

_OF_MATRICES = 4  # numbers of a tensor's record: sides, and how many tiles or matrices
_ZERO = {"sum": "0.0", "largest": "float('-inf')"}


class ReducedFormula:
    """The values of a formula that are reduced alike.

    Args:
        program: In which arithmetic.
        value: The number of the formula.
        reduce: How values become one.

    Attributes:
        value: The name of an element's value.
        name: What names of what is kept begin with.
        zero: What a sum, or a largest value, begins with.
        targets: The numbers of the measures of each "row", "column" and "variable": two may be
            alike.
    """

    def __init__(self, program: Program, value: int, reduce: str) -> None:
        self._program, self._reduce = program, reduce
        self.value, self.name, self.zero = f"v{value}", f"{reduce}{value}", _ZERO[reduce]
        self._lanes_fold = {"sum": "fold", "largest": "fold_largest"}[reduce]
        self.targets: dict[str, list[int]] = {}

    @property
    def has_columns(self) -> bool:
        """Whether columns are reduced: a variable is made of these."""
        return not self.targets.keys().isdisjoint(("column", "variable"))

    def begin(self, name: str, lanes: int) -> str:
        """Begin a sum of each lane, or its largest value."""
        return f"{name} = tl.full(({lanes},), {self.zero}, tl.float64)"

    def join(self, a: str, b: str) -> str:
        """What two values become."""
        expression = f"{a} + {b}" if self._reduce == "sum" else f"maximum({a}, {b})"
        return self._program.flush_value(expression)

    def fold(self, names: Sequence[str]) -> list[str]:
        """Have the first one hold what all hold: the upper half is joined to the lower half.

        What is missing to a power of two would be +0, which could only turn -0 into +0; and no
        result is -0.
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

    def fold_lanes(self, name: str, lanes: int, numbers_per_lane: int) -> list[str]:
        """The same of lanes, each of which has so many numbers."""
        return self._program.fold_lanes(name, lanes, numbers_per_lane, self._lanes_fold)

    def store(self, scope: str, offset: str, value: str, mask: str = "") -> list[str]:
        """Store the measures of a row, a column or a variable."""
        mask_argument = f", mask={mask}" if mask else ""
        targets = self.targets.get(scope, ())
        return [f"tl.store(target{k} + {offset}, {value}{mask_argument})" for k in targets]


class MeasureBuilder:
    """Measures of rows, columns and variables in one sweep, whatever the layout of matrices.

    Args:
        measures: The measures.
        stages, storage, measured, from_copy: As for `generate_measure`.
        compute: The type of vectors and stages, "float32" or "float64".
        vectors: What formulas are given of a "row" or a "column", by name.
        flush: Whether denormals are treated as zero.

    Attributes:
        program: Writes the functions that a kernel calls.
        read: Which streams it reads.
        of_rows, of_columns: The names of vectors.
        reduced_formulas: What becomes of values, by formula and by how they become one.
        sides: The place in a tensor's record of the sides of its matrices, after its vectors.
        width: How many numbers that record has.
    """

    def __init__(
        self,
        measures: tuple[Measure, ...],
        stages: tuple[Formula, ...],
        storage: tuple[str, ...],
        n_readable: int,
        compute: str,
        vectors: Mapping[str, str],
        flush: bool,
        from_copy: bool,
    ) -> None:
        formulas = tuple(dict.fromkeys(measure.function for measure in measures))
        self._sweep = sweep = Sweep(formulas, stages, storage, n_readable, from_copy, vectors)
        self.program = program = Program(sweep, compute, flush)
        self._compute, self._measures, self._values = compute, len(measures), len(formulas)
        self.read, names = sweep.read, list(sweep.vectors.values())
        self.of_rows = [name for name in names if name.startswith("row")]
        self.of_columns = [name for name in names if name.startswith("column")]
        reduced_formulas: dict[tuple[int, str], ReducedFormula] = {}
        for number, measure in enumerate(measures):
            key = formulas.index(measure.function), measure.reduce
            reduced_formula = reduced_formulas.setdefault(key, ReducedFormula(program, *key))
            reduced_formula.targets.setdefault(measure.over, []).append(number)
        self.reduced_formulas = list(reduced_formulas.values())
        self.sides = len(names)
        self.width = self.sides + _OF_MATRICES + len(measures)

    def point(self) -> list[str]:
        """Point at rows and columns, at what is made, and at what is read."""
        sweep, places = self._sweep, list[tuple[str, str, str]]()
        for k, name in enumerate(sweep.vectors.values()):
            places.append((f"of_{name}", f"own + {k}", self._compute))
        for k in range(self._measures):
            places.append((f"target{k}", f"own + {self.sides + _OF_MATRICES + k}", "float64"))
        for stream in self.read:
            place = f"base + tensor * {len(sweep.storage)} + {stream}"
            places.append((f"of_p{stream}", place, sweep.storage[stream]))
        return [f"{name} = pointer({place}, tl.{kind}, False)" for name, place, kind in places]

    def take(self, column: int, offsets: str, length: str, suffix: str = "") -> str:
        """Take the values of some elements, which see the vectors of this column.

        Args:
            column: With its number, names of vectors of columns end.
            offsets, length: Of elements, as for the function of `Program`.
            suffix: What names of values end with.
        """
        value_names = ", ".join(f"v{index}{suffix}" for index in range(self._values))
        names = self._sweep.arguments
        call_args = [f"{name}_{column}" if name in self.of_columns else name for name in names]
        return f"{value_names} = element({', '.join(call_args)}, {offsets}, {length}, True)"

    def kernel_of(self, text: str, threads: int, **fields: object) -> Kernel:
        """The kernel of a template, given what it asks for beside what all have."""
        sweep = self._sweep
        text = text.format(
            width=self.width,
            sides=self.sides,
            n_scalars=len(sweep.scalars),
            scalars=indent_by(self.program.load_scalars(), 1),
            threads=threads,
            **fields,
        )
        text = self.program.write_header() + self.program.define_functions() + text
        attributes = {
            "measures": self._measures,
            "vectors": tuple(sweep.vectors),
            "threads": threads,
        }
        return name_kernel(text, sweep.scalars, **attributes)
