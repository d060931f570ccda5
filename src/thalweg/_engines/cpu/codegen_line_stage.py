"""Source of kernels that run between two sweeps over rows and columns in a replayed step.

Such a kernel combines the tile results of a sweep, and computes the fused stages that follow. The
bits are those of `TileMeasures.combine` and of the arrays of `matrix_batches.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import FormulaWriter, Kernel, fill, nest
from thalweg._engines.cpu.codegen import HEADER, STORAGE, name_kernel
from thalweg._engines.cpu.codegen_measure import STAGE_LITERAL
from thalweg._engines.cpu.codegen_reduction import ReductionText
from thalweg._engines.formula_graph import Node
from thalweg._engines.formula_source import FUNCTION_PREFIX, LITERAL
from thalweg._engines.fused_stage import MEANS, SIZES, LineFormula, read_stage
from thalweg.formula import Rule, is_like_update

_KERNEL = """
def KERNEL_NAME(argument):
    work = int64_pointer(address_of(argument))
    pairs = int64_pointer(work[5])
    for k in range(work[4]):
        target = int64_pointer(pairs[2 * k + 1])
        target[0] = int64_pointer(pairs[2 * k])[0]
    for member in range(work[1]):
        place = int64_pointer(work[2] + {row_bytes} * member)
        matrices, rows, columns, down, across = place[0], place[1], place[2], place[3], place[4]
        scalars = float64_pointer(work[3] + {scalar_bytes} * member)
        {scalars}
        {lines}
"""
# The order of `join_pairs`, for `outer` groups of `count` tiles with `inner` results each.
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
_MEAN = """
step = 1
while step < {count}:
    for i in range(0, {count} - step, 2 * step):
        {values}[i] = {values}[i] + {values}[i + step]
    step += step
{name} = ({values}[0] + {literal}(0.0)) / {literal}({count})
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
    """Description of the kernel after a sweep: the key of the kernel.

    Attributes:
        rule: A rule of measures and fused stages.
        measures: The measures of the sweep, () before the first one.
        stages: The fused stages after the sweep.
        copied_slots: Slots of rows or columns that are copied for formulas of elements.
        slot_types: Storage types of the rule's `shaped_slots`.
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
        """Names of the words of a variable in the kernel's table.

        These are sizes; addresses of tile results, "tiles0", ...; and by the name of a measure,
        vector or slot the addresses of its results, of the copy that formulas of elements read,
        and of its memory.
        """
        measures = [x for x in (*self.rule.passes, *self.measures) if isinstance(x, Measure)]
        return [
            *SIZE_WORDS,
            *(f"tiles{number}" for number in range(len(self.measures))),
            *dict.fromkeys(f"result_{measure.makes}" for measure in measures),
            *(f"vector_{name}" for name in self.rule.vectors),
            *(f"slot_{slot.name}" for slot in self.rule.shaped_slots),
        ]


class LineStageKernel:
    """Writer of the kernel of a `LineStage`."""

    def __init__(self, line_stage: LineStage) -> None:
        self._stage, self._rule = line_stage, line_stage.rule
        self._words = {name: place for place, name in enumerate(line_stage.words)}
        slots = zip(self._rule.shaped_slots, line_stage.slot_types, strict=True)
        self._slot_types = {slot.name: kind for slot, kind in slots}
        formulas = (read_stage(self._rule, stage) for stage in line_stage.stages)
        names = dict.fromkeys(
            name for formula in formulas for name in formula.scalars if name not in SIZES
        )
        self._scalars = {name: f"s{k}" for k, name in enumerate(names)}

    def write(self) -> Kernel:
        """Return the source of the kernel with its name and the names of its scalars.

        The kernel copies slots for formulas of elements, combines the results of tiles for each
        measure, and then runs each fused stage for every matrix.
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
        """Return a line that points at a vector by the name of its word, from an offset on."""
        fmt = STORAGE[kind]
        return f"{name} = {fmt.pointer}(place[{self._words[name]}] + {offset} * {fmt.size})"

    def _load_slot(self, name: str) -> str:
        """Return the number i of a slot in the type of the update."""
        load = STORAGE[self._slot_types[name]].load
        return f"{self._stage.compute}({load.format(f'slot_{name}[i]')})"

    def _copy_slot(self, name: str) -> list[str]:
        """Return lines that copy a slot to the vector that formulas of elements read."""
        copy = f"vector_{name}[i] = {self._load_slot(name)}"
        return [
            self._point_at(self._slot_types[name], f"slot_{name}"),
            self._point_at(self._stage.compute, f"vector_{name}"),
            *nest(f"for i in each(matrices * {_COUNTS[self._rule.vectors[name]]}):", [copy]),
        ]

    def _combine(self, number: int, measure: Measure) -> list[str]:
        """Return lines that combine the tiles of a measure; vectors are copied for formulas."""
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
        """Return lines that compute a fused stage for one matrix."""
        formula = read_stage(self._rule, stage)
        sizes = "rows", "columns", "matrices * rows * columns"
        inputs = {**self._scalars, **dict(zip(SIZES, sizes, strict=True))}
        lines: list[str] = []
        for name in formula.graph.scalars:
            if name in self._rule.vectors:
                lines += self._point_at_line(name)
                is_slot = name in self._slot_types
                inputs[name] = self._load_slot(name) if is_slot else f"result_{name}[i]"
        stores = {"row": list[tuple[Node, str]](), "column": list[tuple[Node, str]]()}
        for name, result in zip(stage.makes, formula.graph.results, strict=True):
            stores[self._rule.vectors[name]] += [(result, store) for store in self._store(name)]
        types = LITERAL, "float64"
        if is_like_update(stage.function):
            types = STAGE_LITERAL, self._stage.compute
        return [*lines, *_StageLoops(formula, f"stage{number}", *types, inputs).write(stores)]

    def _point_at_line(self, name: str) -> list[str]:
        """Return lines that point at the numbers of a vector in the matrix `matrix`."""
        offset = f"matrix * {_COUNTS[self._rule.vectors[name]]}"
        if name in self._slot_types:
            return [self._point_at(self._slot_types[name], f"slot_{name}", offset)]
        vector = self._point_at(self._stage.compute, f"vector_{name}", offset)
        return [self._point_at("float64", f"result_{name}", offset), vector]

    def _store(self, name: str) -> list[str]:
        """Return templates of statements that store the number i of a result of a stage."""
        if name in self._slot_types:
            kind = self._slot_types[name]
            value = "{0}" if kind == "float64" else "float32({0})"
            return [f"slot_{name}[i] = {STORAGE[kind].save.format(value)}"]
        return [f"result_{name}[i] = {{0}}", f"vector_{name}[i] = {{0}}"]


class _StageLoops(FormulaWriter):
    """Writer of the loops of a fused stage; loops compute again what they share.

    Args:
        formula: The stage.
        prefix: The beginning of the names of intermediate values.
        literal: As for `FormulaWriter`.
        number: The type of the arithmetic.
        inputs: The text of each parameter, for row or column i.
    """

    def __init__(
        self, formula: LineFormula, prefix: str, literal: str, number: str, inputs: dict[str, str]
    ) -> None:
        super().__init__(literal)
        self._kinds, self._prefix, self._number = formula.kinds, prefix, number
        self._inputs = inputs
        self._names = {node: f"{prefix}_node{k}" for k, node in enumerate(formula.kinds)}
        # Texts of scalars and of numbers of the matrix that are computed.
        self._texts: dict[Node, str] = {}

    def write(self, stores: Mapping[str, Sequence[tuple[Node, str]]]) -> list[str]:
        """Return lines that compute the stage.

        Args:
            stores: For "row" and "column" pairs of a result and the template of its store.
        """
        scratch = f"{self._prefix}_scratch"
        lines = [f"{scratch} = {self._number}_pointer(work[6])"]
        for node in self._kinds:
            if node.op in MEANS:
                axis, (arg,), name = MEANS[node.op], node.inputs, self._names[node]
                lines += self._loop(axis, [(arg, scratch + "[i] = {0}")])
                fields = {"count": _COUNTS[axis], "values": scratch, "literal": self.literal}
                lines += fill(_MEAN, name=name, **fields)
                self._texts[node] = name
        for axis, pairs in stores.items():
            lines += self._loop(axis, pairs) if pairs else []
        return lines

    def _loop(self, axis: str, pairs: Sequence[tuple[Node, str]]) -> list[str]:
        """Return a loop over rows or columns that stores values, after what it needs of the matrix.

        Args:
            axis: "row" or "column".
            pairs: The nodes of these values, with the templates of their stores.
        """
        outer_lines, body, texts = list[str](), list[str](), dict[Node, str]()
        for node in self._order_nodes(node for node, _ in pairs):
            is_of_line = self._kinds[node] == axis
            if node.op == "scalar":
                text = f"{self.literal}({self._inputs[node.args[0]]})"
                if is_of_line:  # a store of this loop may overwrite the input
                    body.append(f"{self._names[node]} = {text}")
                    text = self._names[node]
            elif node.op == "const":
                text = self.write_number(node.args[0])
            else:
                operands = [texts.get(arg) or self._texts[arg] for arg in node.inputs]
                text = self._names[node]
                operation = f"{text} = {self.write_operation(node.op, operands)}"
                (body if is_of_line else outer_lines).append(operation)
            (texts if is_of_line else self._texts)[node] = text
        store_lines = [store.format(texts.get(node) or self._texts[node]) for node, store in pairs]
        return [*outer_lines, *nest(f"for i in each({_COUNTS[axis]}):", [*body, *store_lines])]

    def _order_nodes(self, roots: Iterable[Node]) -> list[Node]:
        """Return roots and nodes that they depend on, up to those in `_texts`, in order."""
        needed_nodes, stack = set[Node](), [*roots]
        while stack:
            node = stack.pop()
            if node not in needed_nodes and node not in self._texts:
                needed_nodes.add(node)
                stack += node.inputs
        return [node for node in self._kinds if node in needed_nodes]
