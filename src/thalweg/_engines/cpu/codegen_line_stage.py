"""Source of kernels that run between two sweeps (traversals of variables) in a replayed step.

A sweep reduces rows and columns of matrices by tiles (parts of a matrix). A kernel combines the
results of the tiles, and computes the following fused stages. Results equal those of `TileMeasures`
and `matrix_batches.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import Kernel, fill, nest
from thalweg._engines.cpu.codegen import HEADER, STORAGE, name_kernel
from thalweg._engines.cpu.codegen_measure import STAGE_LITERAL
from thalweg._engines.cpu.codegen_reduction import ReductionText
from thalweg._engines.cpu.codegen_stage import LINE, StageWriter
from thalweg._engines.formula_graph import Node
from thalweg._engines.formula_source import FUNCTION_PREFIX, LITERAL
from thalweg._engines.fused_stage import SIZES, read_stage
from thalweg.formula import Rule, is_like_update

_KERNEL = """
def KERNEL_NAME(argument):
    work = int64_pointer(address_of(argument))
    for member in range(work[1]):
        place = int64_pointer(work[2] + {row_bytes} * member)
        matrices, rows, columns, down, across = place[0], place[1], place[2], place[3], place[4]
        scalars = float64_pointer(work[3] + {scalar_bytes} * member)
        {scalars}
        {lines}
"""
# The order of `join_pairs`, for `outer` groups of `count` tiles with `inner` results each. The
# kernel does not set the processor's flag, so that `kept` flushes denormal results itself. The
# addition of 0.0 turns -0 into +0, as in `combine_tiles`.
_COMBINE = """
def kept(number):
    return {number}

def combine_{reduce}(partial, result, outer, count, inner):
    step = 1
    while step < count:
        for line in range(outer):
            for tile in range(0, count - step, 2 * step):
                lower = (line * count + tile) * inner
                upper = lower + step * inner
                for i in each(inner):
                    partial[lower + i] = kept({pair})
        step += step
    for line in range(outer):
        for i in each(inner):
            result[line * inner + i] = kept(partial[line * count * inner + i] + 0.0)
"""
# For each axis of a measure: the arguments of `combine`, and the number of its results.
_COMBINED = {
    "row": ("matrices * rows", "across", "1", "matrices * rows"),
    "column": ("matrices", "down", "columns", "matrices * columns"),
    "variable": ("1", "matrices * down * across", "1", "1"),
}
_COUNTS = {"row": "rows", "column": "columns"}
SIZE_WORDS = ("matrices", "rows", "columns", "down", "across")


@dataclass(frozen=True)
class LineStage:
    """Description of a kernel that runs after a sweep.

    Attributes:
        rule: A rule of measures and fused stages.
        measures: The measures of the sweep, () before the first sweep.
        stages: The fused stages after the sweep.
        copied_slots: Slots of rows or columns that are copied for formulas of elements.
        slot_types: Storage types of the rule's `line_slots`.
        compute: "float32" or "float64".
        flush: True if results of the sweep treat denormals as zero.
    """

    rule: Rule
    measures: tuple[Measure, ...]
    stages: tuple[FusedStage, ...]
    copied_slots: tuple[str, ...]
    slot_types: tuple[str, ...]
    compute: str
    flush: bool

    @property
    def words(self) -> list[str]:
        """Names of the integers that the kernel's table has for each variable, in order.

        The first are sizes, `SIZE_WORDS`. The others are addresses: "tiles0", ... of tile results;
        "result_..." of measures; "vector_..." of vectors for elementwise formulas; "slot_..." of
        slots.
        """
        measures = [x for x in (*self.rule.passes, *self.measures) if isinstance(x, Measure)]
        return [
            *SIZE_WORDS,
            *(f"tiles{number}" for number in range(len(self.measures))),
            *dict.fromkeys(f"result_{measure.makes}" for measure in measures),
            *(f"vector_{name}" for name in self.rule.vectors),
            *(f"slot_{slot.name}" for slot in self.rule.line_slots),
        ]


class LineStageKernel:
    """Writer of the kernel of a `LineStage`."""

    def __init__(self, line_stage: LineStage) -> None:
        self._stage, self._rule = line_stage, line_stage.rule
        self._words = {name: place for place, name in enumerate(line_stage.words)}
        slots = zip(self._rule.line_slots, line_stage.slot_types, strict=True)
        self._slot_types = {slot.name: kind for slot, kind in slots}
        formulas = (read_stage(self._rule, stage) for stage in line_stage.stages)
        names = dict.fromkeys(
            name for formula in formulas for name in formula.scalars if name not in SIZES
        )
        self._scalars = {name: f"s{k}" for k, name in enumerate(names)}

    def write(self) -> Kernel:
        """Return the kernel: source, name and the names of the scalars.

        The kernel copies each slot of `copied_slots` to a vector. It combines the results of tiles
        for each measure. Then it runs each fused stage for every matrix.
        """
        lines = [line for name in self._stage.copied_slots for line in self._copy_slot(name)]
        for number, measure in enumerate(self._stage.measures):
            lines += self._combine(number, measure)
        for number, stage in enumerate(self._stage.stages):
            lines += nest("for matrix in range(matrices):", self._run_stage(number, stage))
        kernel_lines = fill(
            _KERNEL,
            row_bytes=8 * len(self._words),
            scalar_bytes=8 * len(self._scalars),
            scalars=[f"{text} = scalars[{k}]" for k, text in enumerate(self._scalars.values())],
            lines=lines,
        )
        definitions = [
            HEADER.format(literal=LITERAL, compute="float64"),
            HEADER.format(literal=STAGE_LITERAL, compute=self._stage.compute),
            *("\n".join(self._define_combine(x)) for x in ("sum", "largest")),
        ]
        return name_kernel("t", "\n\n".join(definitions) + "\n", kernel_lines, (*self._scalars,))

    def _define_combine(self, reduce: str) -> list[str]:
        tiny = f"0.0 if {FUNCTION_PREFIX}absolute(number) < 2.2250738585072014e-308 else number"
        pair_text = ReductionText(reduce).join("partial[lower + i]", "partial[upper + i]")
        number_text = tiny if self._stage.flush else "number"
        return fill(_COMBINE, number=number_text, reduce=reduce, pair=pair_text)

    def _point_at(self, kind: str, name: str, offset: str = "0") -> str:
        """Return a line that sets the pointer `name` to element `offset` of the named vector."""
        fmt = STORAGE[kind]
        return f"{name} = {fmt.pointer}(place[{self._words[name]}] + {offset} * {fmt.size})"

    def _load_slot(self, name: str, line: str = "i") -> str:
        """Return the number of a slot at an index in the type of the update."""
        load = STORAGE[self._slot_types[name]].load
        return f"{self._stage.compute}({load.format(f'slot_{name}[{line}]')})"

    def _copy_slot(self, name: str) -> list[str]:
        """Return lines that copy a slot to the vector that formulas of elements read."""
        copy = f"vector_{name}[i] = {self._load_slot(name)}"
        return [
            self._point_at(self._slot_types[name], f"slot_{name}"),
            self._point_at(self._stage.compute, f"vector_{name}"),
            *nest(f"for i in each(matrices * {_COUNTS[self._rule.vectors[name]]}):", [copy]),
        ]

    def _combine(self, number: int, measure: Measure) -> list[str]:
        """Return lines that combine the tile results of the measure with the index `number`.

        If formulas read the measure as a vector, the lines also copy the result to the vector.
        """
        *arguments, count = _COMBINED[measure.over]
        result = f"result_{measure.makes}"
        lines = [
            self._point_at("float64", f"tiles{number}"),
            self._point_at("float64", result),
            f"combine_{measure.reduce}(tiles{number}, {result}, {', '.join(arguments)})",
        ]
        if measure.makes in self._rule.vectors:
            vector = f"vector_{measure.makes}"
            lines.append(self._point_at(self._stage.compute, vector))
            lines += nest(f"for i in each({count}):", [f"{vector}[i] = {result}[i]"])
        return lines

    def _run_stage(self, number: int, stage: FusedStage) -> list[str]:
        """Return lines that compute a stage, a function of row and column vectors, per matrix."""
        formula = read_stage(self._rule, stage)
        sizes = "rows", "columns", "matrices * rows * columns"
        inputs = {**self._scalars, **dict(zip(SIZES, sizes, strict=True))}
        lines: list[str] = []
        for name in formula.graph.scalars:
            if name in self._rule.vectors:
                lines += self._point_at_line(name)
                is_slot = name in self._slot_types
                inputs[name] = self._load_slot(name, LINE) if is_slot else f"result_{name}[{LINE}]"
        stores = {"row": list[tuple[Node, str]](), "column": list[tuple[Node, str]]()}
        for name, result in zip(stage.makes, formula.graph.results, strict=True):
            stores[self._rule.vectors[name]] += [(result, store) for store in self._store(name)]
        is_narrow = is_like_update(stage.function)
        literal = STAGE_LITERAL if is_narrow else LITERAL
        scratch = f"{self._stage.compute if is_narrow else 'float64'}_pointer(work[4])"
        writer = StageWriter(formula, f"stage{number}", literal, inputs, _COUNTS, scratch)
        return [*lines, *writer.write(stores)]

    def _point_at_line(self, name: str) -> list[str]:
        """Return lines that point at the numbers of a vector in the matrix `matrix`."""
        offset = f"matrix * {_COUNTS[self._rule.vectors[name]]}"
        if name in self._slot_types:
            return [self._point_at(self._slot_types[name], f"slot_{name}", offset)]
        vector = self._point_at(self._stage.compute, f"vector_{name}", offset)
        return [self._point_at("float64", f"result_{name}", offset), vector]

    def _store(self, name: str) -> list[str]:
        """Return templates of statements that store number `LINE` of a stage's result."""
        if name in self._slot_types:
            kind = self._slot_types[name]
            value = "{0}" if kind == "float64" else "float32({0})"
            return [f"slot_{name}[{LINE}] = {STORAGE[kind].save.format(value)}"]
        return [f"result_{name}[{LINE}] = {{0}}", f"vector_{name}[{LINE}] = {{0}}"]
