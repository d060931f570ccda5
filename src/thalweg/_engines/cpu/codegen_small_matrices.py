"""Source of CPU kernels that update many small matrices at once, one in each lane of stack arrays.

A kernel copies a block of `LANES` matrices to stack arrays. Lane i of each array belongs to matrix
i, and loops over lanes are vectorized. Results have the bits of
`_engines/row_column_reductions.py`, and of a stage's Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from thalweg._base.fused_stage import FusedStage
from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import (
    Kernel,
    Measurement,
    TracedUpdate,
    Update,
    distinct_formulas,
    fill,
    nest,
)
from thalweg._engines.cpu.codegen import (
    HEADER,
    STORAGE,
    Element,
    load_scalars,
    name_kernel,
    read_table,
    write_threads,
)
from thalweg._engines.cpu.codegen_measure import STAGE_LITERAL, Elements
from thalweg._engines.cpu.codegen_stage import LINE, StageWriter
from thalweg._engines.cpu.codegen_transpose import (
    LANES,
    SIDE,
    load_into_lanes,
    reduce_values,
    store_from_lanes,
)
from thalweg._engines.formula_graph import Node
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.formula_source import LITERAL
from thalweg._engines.fused_stage import SIZES, read_stage
from thalweg.formula import Formula, Rule, is_like_update

_NAMES, _ASSIGNED = re.compile(r"\w+"), re.compile(r"(\w+(?:, \w+)*) = ")

_CHUNKS = """
for chunk in range(bounds[ticket], bounds[ticket + 1]):
    place = chunks[4 * chunk] * {width}
    row = scalar_row[chunks[4 * chunk]] * {n_scalars}
    begin = chunks[4 * chunk + 1]
    end = begin + chunks[4 * chunk + 3]
    {scalars}
    for first in range(begin, end, {lanes}):
        count = min({lanes}, end - first)
        {block}
"""

_ROUND_TRIP = {
    kind: STORAGE[kind].load.format(STORAGE[kind].save) for kind in ("float16", "bfloat16")
}

# The tree of `row_column_reductions.combine_tiles` within a block, whose length is a power of two.
_COMBINE = """
left = count
while left > 1:
    half = left >> 1
    for i in range(half):
        {total}[i] = {total}[2 * i] + {total}[2 * i + 1]
    if left & 1:
        {total}[half] = {total}[left - 1]
    left = (left + 1) >> 1
target = float64_pointer(base[place + {stream}])
target[first // {lanes} * {width}] = {total}[0]
"""


def stream_of_pass(rule: Rule, storage: Sequence[str], index: int) -> int:
    """Return the index of the column with the addresses of a pass's results in the kernel's table.

    The table has a row per variable. The first columns are of elementwise tensors. Columns of row
    and column slots follow, then the columns of passes.

    Args:
        storage: The storage type of each elementwise tensor.
        index: The index of the pass in the rule.
    """
    return len(storage) + len(rule.shaped_slots) + index


def names_of_blocks(rule: Rule) -> list[str]:
    """Return the names of the numbers that a kernel stores per block of matrices.

    They are the measures over variables, followed by `SIZES`.
    """
    measures = [
        entry for entry in rule.passes if isinstance(entry, Measure) and entry.over == "variable"
    ]
    return [*(measure.makes for measure in measures), *SIZES]


class Values(NamedTuple):
    """Names of kernel variables that hold a vector over the rows or columns of one matrix.

    Attributes:
        name: The beginning of the names; the index of a row or column follows.
        axis: "row" or "column".
    """

    name: str
    axis: str

    def at(self, line: int) -> str:
        """Return the text of the number of a row or column."""
        return f"{self.name}_{line}"


class _MeasureGroup(Elements):
    """Writer of a function that computes several measures of element i.

    Args:
        position: The index of the group, for the name of the function.
        measurement: The formulas, with the storage types of arrays of lanes.
        scalars: {scalar: its local name in the kernel}.
    """

    def __init__(self, position: int, measurement: Measurement, scalars: Mapping[str, str]) -> None:
        super().__init__(measurement)
        self._name = f"measured{position}"
        self.scalar = {name: scalars[name] for name in self.scalar}
        streams = [f"p{stream}" for stream in self.read]
        self.arguments = [*streams, *self.scalar.values(), *self.see_vectors().values()]

    def see_vectors(self) -> dict[str, str]:
        """Return the names of parameters for vectors, by the names of scalars."""
        return {name: f"seen_{name}" for name in self.vectors}

    def define(self) -> list[str]:
        """Return definitions that end with the function of the group."""
        return [*self.define_functions(), "\n".join(self.define_measures(self._name))]

    def call(self, vector_texts: Mapping[str, str]) -> str:
        """Return a call of the function for element i, given expressions for its vectors."""
        arguments = self.arguments[: len(self.arguments) - len(self.vectors)]
        arguments += [vector_texts[name] for name in self.vectors]
        return f"{self._name}({', '.join(['i', *arguments])})"


@dataclass(frozen=True)
class SmallMatrixSweep:
    """Description of a kernel over matrices of one shape: the passes that it runs.

    Attributes:
        rule: A rule of measures and fused stages.
        passes: The passes that the kernel runs, in order. Results of measures over variables are
            written, a number for each block of matrices.
        update: The update formula, or None. Slots of rows and columns are written only with an
            update.
        stages: As for `Update`.
        storage: Storage types of variable, gradient and slots of elements.
        lines: Storage types of slots of rows and columns.
        compute: "float32" or "float64".
        sides: Rows and columns.
        flush: True if the update, and measures after `stages`, treat denormals as zero.
    """

    rule: Rule
    passes: tuple[Measure | FusedStage, ...]
    update: Formula | None
    stages: tuple[Formula, ...]
    storage: tuple[str, ...]
    lines: tuple[str, ...]
    compute: str
    sides: tuple[int, int]
    flush: bool


class SmallMatrixKernel:
    """Writer of the kernel of a sweep."""

    def __init__(self, sweep: SmallMatrixSweep) -> None:
        self._rule, self._passes, self._stages = sweep.rule, sweep.passes, sweep.stages
        self._storage, self._lines, self._compute = sweep.storage, sweep.lines, sweep.compute
        self._sides, self._flush = sweep.sides, sweep.flush
        self._counts = {"row": sweep.sides[0], "column": sweep.sides[1]}
        self._array_type = "numbers" if sweep.compute == "float32" else "lanes"
        self._plain_storage = (sweep.compute,) * len(sweep.storage)
        self._update: TracedUpdate | None = None
        if sweep.update is not None:
            vectors = tuple(sweep.rule.vectors.items())
            update = Update(sweep.update, self._plain_storage, sweep.stages, vectors=vectors)
            self._update = TracedUpdate(update)
        self._place = {name: index for index, name in enumerate(self._list_scalars())}
        self._arrays: dict[str, str] = {}  # calls that reserve arrays, by name
        self._definitions = [
            HEADER.format(literal=LITERAL, compute="float64"),
            HEADER.format(literal=STAGE_LITERAL, compute=sweep.compute),
        ]
        self._read: set[int] = set()
        # Elements read vectors of rows and columns, but not the slots that stages have computed.
        self._vectors: dict[str, Values] = {}
        self._slot_values: dict[str, Values] = {}
        self._narrow_names: set[str] = set()  # names of vectors in the type of the update
        # Pairs: True if denormals are flushed, and lines for matrix `lane`.
        self._parts: list[tuple[bool, list[str]]] = []

    def write(self) -> Kernel:
        """Return the kernel: source, name and the names of the scalars. Call `write` once.

        The kernel runs the passes of the sweep in order, and the update, if any, last.
        """
        slots, totals = self._read_slots(), list[str]()
        for position, pass_group in enumerate(_group_passes(self._passes)):
            if isinstance(pass_group, FusedStage):
                self._run_stage(pass_group)
            else:
                totals += self._measure(position, pass_group)
        write_lines = list[str]()
        if self._update is not None:
            self._update_elements(self._update)
            self._read |= {*self._update.read_streams()}
            written_streams = {stream for _, stream in self._update.written_results()}
            write_lines += [
                line for stream in sorted(written_streams) for line in self._write_stream(stream)
            ]
            write_lines += self._write_slots()
        read_lines = [line for stream in sorted(self._read) for line in self._read_stream(stream)]
        matrix_lines, names = self._loop_matrices(), tuple(self._place)
        arrays = [f"{name} = {call}" for name, call in self._arrays.items()]
        cast_scalars = [f"t{k} = {STAGE_LITERAL}(s{k})" for k in range(len(names))]
        chunks = fill(
            _CHUNKS,
            width=stream_of_pass(self._rule, self._storage, len(self._rule.passes)),
            n_scalars=len(names),
            scalars=[*load_scalars(len(names)), *cast_scalars] or ["pass"],
            lanes=LANES,
            block=[*slots, *read_lines, *matrix_lines, *totals, *write_lines],
        )
        setup = [*read_table("float64", STAGE_LITERAL), *arrays]
        # Groups of measures define their stages and headers again.
        definitions = "\n\n".join(dict.fromkeys(self._definitions)) + "\n"
        # Some loops flush, and switch the processor's flag themselves; conversions must not.
        return name_kernel("s", definitions, write_threads(setup, chunks, flushes=False), names)

    def _add_part(self, lines: list[str], flush: bool = False) -> None:
        """Append lines for matrix `lane` to the body of the last loop over matrices.

        Begin a new loop if the last loop has another value of `flush`.

        Args:
            flush: True to treat denormals as zero. Ignored if the sweep keeps denormals.
        """
        flush = flush and self._flush
        if self._parts and self._parts[-1][0] == flush:
            self._parts[-1][1].extend(lines)
        else:
            self._parts.append((flush, lines))

    def _loop_matrices(self) -> list[str]:
        """Return the lines of all loops over a block of matrices, in order.

        A variable that a later loop reads is stored in a stack array, one number per matrix.
        """
        names, loops = [_find_names(lines) for _, lines in self._parts], list[str]()
        for position, (flush, lines) in enumerate(self._parts):
            read_names, assigned_names = names[position]
            earlier_names = {name for _, assigned in names[:position] for name in assigned}
            stored_names = [
                name
                for name in assigned_names
                if any(name in read for read, _ in names[position + 1 :])
            ]
            for name in stored_names:
                array_type = self._array_type if name in self._narrow_names else "lanes"
                self._reserve(f"kept_{name}", 1, array_type)
            loads = [f"{name} = kept_{name}[lane]" for name in read_names if name in earlier_names]
            stores = [f"kept_{name}[lane] = {name}" for name in stored_names]
            loop = nest("for lane in range(count):", [*loads, *lines, *stores])
            if flush:
                loop = ["found = begin_denormals(flush)", *loop, "end_denormals(found)"]
            loops += loop
        return loops

    def _list_scalars(self) -> dict[str, None]:
        """Return {name: None} for all scalars of formulas, without vectors and matrix sizes."""
        names: dict[str, None] = {}
        for rule_pass in self._passes:
            if isinstance(rule_pass, FusedStage):
                stage_scalars = read_stage(self._rule, rule_pass).scalars
                names |= dict.fromkeys(name for name in stage_scalars if name not in SIZES)
            else:
                measurement = self._make_measurement([rule_pass], self._rule.vectors)
                names |= dict.fromkeys(Elements(measurement).scalars)
        return names | dict.fromkeys(self._update.scalars if self._update is not None else ())

    def _make_measurement(
        self, measures: Sequence[Measure], kinds: Mapping[str, str]
    ) -> Measurement:
        """Return a `Measurement` of these measures; `kinds` is {vector: "row" or "column"}."""
        return Measurement(
            distinct_formulas(measures),
            self._plain_storage,
            self._compute,
            self._stages,
            vectors=tuple(kinds.items()),
        )

    def _reserve(self, name: str, count: int, array_type: str = "lanes") -> str:
        """Register a stack array of `count` numbers per matrix, and return its name."""
        self._arrays[name] = f"{array_type}({count * LANES})"
        return name

    # Memory

    def _read_slots(self) -> list[str]:
        """Return lines that copy row and column slots from memory to stack arrays.

        Append lines that load the slots from the arrays. Add the loaded names to `_vectors`.
        """
        lines: list[str] = []
        for index, slot in enumerate(self._rule.shaped_slots):
            axis = str(slot.per)
            count, fmt = self._counts[axis], STORAGE[self._lines[index]]
            name = self._reserve(f"slot_{slot.name}", count, self._array_type)
            stream = len(self._storage) + index
            lines.append(self._point_at(stream, self._lines[index], count))
            lines += load_into_lanes(f"x{stream}", name, (1, count), fmt.load, "")
            self._vectors[slot.name] = values = Values(f"own_{slot.name}", axis)
            self._add_part([f"{values.at(k)} = {name}[lane + {k * LANES}]" for k in range(count)])
        return lines

    def _write_slots(self) -> list[str]:
        """Append lines that store new slots on the stack; return lines that copy them to memory."""
        lines: list[str] = []
        for index, slot in enumerate(self._rule.shaped_slots):
            if slot.name in self._slot_values:
                count, fmt = self._counts[str(slot.per)], STORAGE[self._lines[index]]
                name = self._reserve(f"new_{slot.name}", count)
                slot_values = self._slot_values[slot.name]
                self._add_part(
                    [f"{name}[lane + {k * LANES}] = {slot_values.at(k)}" for k in range(count)]
                )
                target = f"x{len(self._storage) + index}"
                lines += store_from_lanes(name, target, (1, count), fmt.save, "")
        return lines

    def _read_stream(self, stream: int) -> list[str]:
        """Return lines that transpose a stream of elements onto the stack."""
        kind, count = self._storage[stream], prod(self._sides)
        name = self._reserve(f"p{stream}", count, self._array_type)
        load = f"{STAGE_LITERAL}({STORAGE[kind].load})"
        pointer, spare = self._point_at(stream, kind, count), self._reserve_spare()
        return [pointer, *load_into_lanes(f"x{stream}", name, self._sides, load, spare)]

    def _write_stream(self, stream: int) -> list[str]:
        """Return lines that transpose a stream of elements back into memory."""
        save, spare = STORAGE[self._storage[stream]].save, self._reserve_spare()
        return store_from_lanes(f"p{stream}", f"x{stream}", self._sides, save, spare)

    def _reserve_spare(self) -> str:
        size = prod(self._sides)
        return self._reserve("spare", size, self._array_type) if size > SIDE else ""

    def _point_at(self, stream: int, kind: str, count: int) -> str:
        fmt = STORAGE[kind]
        address = f"base[place + {stream}] + first * {count * fmt.size}"
        return f"x{stream} = {fmt.pointer}({address})"

    # Arithmetic

    def _narrow(self, names: Iterable[str]) -> dict[str, Values]:
        """Append lines to `_parts` that convert vectors to the update's type, and keep denormals.

        Return {vector: names of the converted numbers}.
        """
        # The results are stored before the next loop. Otherwise LLVM would compare the unconverted
        # numbers, which are all normal in float64, where flushing would have no effect.
        cast_values = {name: Values(f"seen_{name}", self._vectors[name].axis) for name in names}
        for name, values in cast_values.items():
            lines = range(self._counts[values.axis])
            self._narrow_names |= {values.at(k) for k in lines}
            self._add_part(
                [f"{values.at(k)} = {STAGE_LITERAL}({self._vectors[name].at(k)})" for k in lines]
            )
        return cast_values

    @staticmethod
    def _index_vectors(vectors: Mapping[str, Values], row: int, column: int) -> dict[str, str]:
        """Return the local name of each vector's number in a row and column."""
        indices = {"row": row, "column": column}
        return {name: values.at(indices[values.axis]) for name, values in vectors.items()}

    def _list_elements(self) -> Iterator[tuple[int, int, int]]:
        """Yield the index of each element, with its row and column."""
        for position in range(prod(self._sides)):
            yield position, *divmod(position, self._sides[1])

    def _measure(self, position: int, measures: list[Measure]) -> list[str]:
        """Append lines to `_parts` that compute a group of measures (reductions) for each matrix.

        Args:
            position: The index of the group, a part of names.
            measures: Independent measures.

        Returns:
            Lines that write the measures over variables. They run after the loops over matrices.
        """
        scalars = {name: f"s{index}" for name, index in self._place.items()}
        kinds = {name: values.axis for name, values in self._vectors.items()}
        measurement = self._make_measurement(measures, kinds)
        group = _MeasureGroup(position, measurement, scalars)
        self._definitions += group.define()
        self._read |= {*group.read}
        vectors = self._narrow(group.vectors)
        lines, totals = list[str](), list[str]()
        values = {formula: f"value{position}_{k}" for k, formula in enumerate(measurement.formulas)}
        for k, row, column in self._list_elements():
            targets = ", ".join(f"{name}_{k}" for name in values.values())
            call = group.call(self._index_vectors(vectors, row, column))
            lines += [f"i = lane + {k * LANES}", f"{targets} = {call}"]
        for measure in measures:
            line_texts = reduce_values(measure, values[measure.function], self._sides)
            if measure.over != "variable":
                line_values = Values(f"measured_{measure.makes}", measure.over)
                self._vectors[measure.makes] = line_values
                # The addition turns -0 into +0, as in `combine_tiles`.
                lines += [
                    f"{line_values.at(k)} = {text} + 0.0" for k, text in enumerate(line_texts)
                ]
                continue
            total = self._reserve(f"total_{measure.makes}", 1)
            lines.append(f"{total}[lane] = {line_texts[0]}")
            stream = stream_of_pass(self._rule, self._storage, self._rule.passes.index(measure))
            width = len(names_of_blocks(self._rule))
            totals += fill(_COMBINE, total=total, stream=stream, lanes=LANES, width=width)
        self._add_part(lines, flush=bool(self._stages))
        return totals

    def _run_stage(self, stage: FusedStage) -> None:
        """Append the lines of a fused stage to `_parts`. Record the variables with its results."""
        formula, prefix = read_stage(self._rule, stage), f"stage{self._passes.index(stage)}"
        letter, literal = ("t", STAGE_LITERAL) if is_like_update(stage.function) else ("s", LITERAL)
        inputs = {name: f"{letter}{place}" for name, place in self._place.items()}
        # `plan_sweeps` leaves stages that read the third size to other kernels.
        inputs |= {name: str(count) for name, count in zip(SIZES, self._sides, strict=False)}
        inputs |= {name: f"{x.name}_{LINE}" for name, x in self._vectors.items()}
        inputs |= {name: f"{x.name}_{LINE}" for name, x in self._slot_values.items()}
        kinds = {slot.name: self._lines[k] for k, slot in enumerate(self._rule.shaped_slots)}
        stores = {"row": list[tuple[Node, str]](), "column": list[tuple[Node, str]]()}
        new_values = {name: Values(f"{prefix}_new_{name}", self._rule.vectors[name])
                      for name in stage.makes}  # fmt: skip
        for (name, values), result in zip(new_values.items(), formula.graph.results, strict=True):
            # Later stages read a slot as it is stored, in at most the type of the arithmetic.
            kind = kinds.get(name, "")
            kind = kind if kind != "float64" else self._compute
            template = _ROUND_TRIP.get(kind, f"{kind}({{}})") if kind else "{}"
            store = f"{values.name}_{LINE} = {template.format('{0}')}"
            stores[values.axis].append((result, store))
        writer = StageWriter(formula, prefix, literal, inputs, self._counts)
        self._add_part(writer.write(stores))
        for name, values in new_values.items():
            (self._slot_values if name in kinds else self._vectors)[name] = values

    def _update_elements(self, update: TracedUpdate) -> None:
        """Append lines to `_parts` that update each element of a matrix."""
        element = Element(update, self._compute)
        update.scalar = {name: f"t{self._place[name]}" for name in update.scalar}
        self._definitions.append(use_update_type(element.define_functions()))
        vectors, lines = self._narrow(update.vectors), list[str]()
        for k, row, column in self._list_elements():
            element_lines = map(
                use_update_type, element.update_element(self._index_vectors(vectors, row, column))
            )
            lines += [f"i = lane + {k * LANES}", *element_lines]
        self._add_part(lines, flush=True)


def use_update_type(text: str) -> str:
    """Return the text of a formula with constants in the type of the update."""
    return re.sub(rf"\b{LITERAL}\b", STAGE_LITERAL, text)


def _group_passes(passes: Sequence[Measure | FusedStage]) -> list[FusedStage | list[Measure]]:
    """Return the passes in order; consecutive measures that do not read each other share a list."""
    groups: list[FusedStage | list[Measure]] = []
    for rule_pass in passes:
        last_group = groups[-1] if groups else None
        if isinstance(rule_pass, FusedStage):
            groups.append(rule_pass)
        elif isinstance(last_group, list) and not any(
            measure.makes in trace_formula(rule_pass.function).scalars for measure in last_group
        ):
            last_group.append(rule_pass)
        else:
            groups.append([rule_pass])
    return groups


def _find_names(lines: Sequence[str]) -> tuple[dict[str, None], dict[str, None]]:
    """Return the names that lines read before assignment, and the names that lines assign."""
    read_names, assigned_names = dict[str, None](), dict[str, None]()
    for line in lines:
        target = _ASSIGNED.match(line)
        line_names = _NAMES.findall(line[target.end() :] if target else line)
        read_names |= dict.fromkeys(name for name in line_names if name not in assigned_names)
        assigned_names |= dict.fromkeys(target[1].split(", ") if target else ())
    return read_names, assigned_names
