"""Write what becomes of the values of elements that are measured by row, column and variable."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.engines.cuda.codegen_measure import Program
from thalweg.engines.lines import places_for
from thalweg.formula import Formula
from thalweg.ground.passes import Measure

_ZERO = {"sum": "0.0", "largest": "float('-inf')"}


class Kept:
    """The values of a formula that are reduced alike.

    Args:
        program: In which arithmetic.
        value: The number of the formula.
        reduce: How values become one.

    Attributes:
        value: The name of an element's value.
        name: What names of what is kept begin with.
        zero: What a sum, or a largest value, begins with.
        lanes_fold: The function that folds lanes.
        targets: The numbers of the measures of each "row", "column" and "variable": two may be
            alike.
    """

    def __init__(self, program: Program, value: int, reduce: str) -> None:
        self._program, self._reduce = program, reduce
        self.value, self.name, self.zero = f"v{value}", f"{reduce}{value}", _ZERO[reduce]
        self.lanes_fold = {"sum": "fold", "largest": "fold_largest"}[reduce]
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
        both = f"{a} + {b}" if self._reduce == "sum" else f"maximum({a}, {b})"
        return self._program.flush_value(both)

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

    def fold_lanes(self, name: str, lanes: int, each: int) -> list[str]:
        """The same of lanes, each of which has so many numbers."""
        lines: list[str] = []
        while lanes > 1:
            lanes //= 2
            folded = f"{self.lanes_fold}({name}, {lanes * each})"
            lines.append(f"{name} = {self._program.flush_value(folded)}")
        return lines

    def store(self, over: str, place: str, value: str, mask: str = "") -> list[str]:
        """Store the measures of a row, a column or a variable."""
        where = f", mask={mask}" if mask else ""
        targets = self.targets.get(over, ())
        return [f"tl.store(target{k} + {place}, {value}{where})" for k in targets]


def kept_of(
    measures: Sequence[Measure], formulas: Sequence[Formula], program: Program
) -> list[Kept]:
    """What is kept of these measures, by formula and by how values become one."""
    found: dict[tuple[int, str], Kept] = {}
    for number, each in enumerate(measures):
        key = formulas.index(each.function), each.reduce
        own = found.setdefault(key, Kept(program, *key))
        own.targets.setdefault(each.over, []).append(number)
    return list(found.values())
