"""Write the source of a measuring kernel: formulas summed leaf by leaf, or largest magnitudes."""

from __future__ import annotations

import ast
import re
from typing import cast

from thalweg.engines.cpu import store
from thalweg.engines.cpu.codegen import (
    HEADER,
    STORAGE,
    Kernel,
    indented,
    of_copies,
    stage_definition,
    versions,
)
from thalweg.engines.measuring import LANES
from thalweg.engines.transcribe import (
    FUNCTION_PREFIX,
    LITERAL,
    LOCAL_PREFIX,
    Transcript,
    counted,
    place,
    transcribe,
)
from thalweg.errors import RuleError
from thalweg.formula import Formula

_STAGE_LITERAL = "_stage_literal"  # formulas are float64, stages of the type of the update

# Rows of lanes that are added at once: each lane is then read and written once for all of them.
_ROWS = 8

_MEASURE = """
def measured({parameters}):
{element}


def {name}(argument):
    work = int64_pointer(address_of(argument))
    slices, flush = work[1], work[2]
    bounds, chunks, base = int64_pointer(work[3]), int64_pointer(work[4]), int64_pointer(work[5])
    scalar_step, scalars = work[6], float64_pointer(work[7])
    leaves, streams = float64_pointer(work[8]), work[9]
{lanes}
    found = begin_denormals(flush)
    ticket = take_ticket(work)
    while ticket < slices:
        for leaf in range(bounds[ticket], bounds[ticket + 1]):
            tensor, offset = chunks[4 * leaf], chunks[4 * leaf + 1]
            length = chunks[4 * leaf + 3]
{pointers}
            row = tensor * scalar_step
{scalars}
            width = {count}
            while width >= 2 * length:  # the lanes beyond are +0 and stay so
                width >>= 1
            for lane in range(width):
{zero}
            start = 0
            while start + {rows} * {count} <= length:
                for lane in range({count}):
{add_rows}
                start += {rows} * {count}
            while start < length:
                for lane in range(min({count}, length - start)):
{add_row}
                start += {count}
            while width > 1:
                width >>= 1
{fold}
{keep}
        ticket = take_ticket(work)
    end_denormals(found)
"""

_FOLD = ("for lane in range(width):", "    lanes{0}[lane] += lanes{0}[lane + width]")

# Magnitudes are compared as integers, which order them as numbers do and put NaN above infinity.
_PEAK = """
def {name}(argument):
    work = int64_pointer(address_of(argument))
    slices = work[1]
    bounds, chunks, base = int64_pointer(work[3]), int64_pointer(work[4]), int64_pointer(work[5])
    partial, streams, column = int64_pointer(work[8]), work[9], work[10]
    ticket = take_ticket(work)
    while ticket < slices:
        for chunk in range(bounds[ticket], bounds[ticket + 1]):
            values = {integer}_pointer(
                base[chunks[4 * chunk] * streams + column] + chunks[4 * chunk + 2] * {size}
            )
            peak = {integer}(0)
            for i in range(chunks[4 * chunk + 3]):
                value = {integer}(values[i] & {magnitude})
                peak = value if value > peak else peak
            partial[chunk] = peak
        ticket = take_ticket(work)
"""


def _for_stages(text: str) -> str:
    return re.sub(rf"\b{LITERAL}\b", _STAGE_LITERAL, text)


def used(transcript: Transcript) -> list[int]:
    """Which of its positional parameters a formula reads."""
    trees = (*transcript.body, *transcript.results)
    names = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return [k for k, name in enumerate(transcript.positional) if LOCAL_PREFIX + name in names]


def check_measure(formula: Formula, transcript: Transcript, streams: int) -> None:
    if len(transcript.results) == 1 and len(transcript.positional) <= streams:
        return
    raise RuleError(
        f"{place(formula)} takes {counted(len(transcript.positional), 'value')} and returns"
        f" {len(transcript.results)}; a measure of {counted(streams, 'tensor')} takes up to"
        f" {streams} (var, grad, *slots) and returns 1."
    )


class _Sweep:
    """The parts of a measuring kernel's text; arguments as those of `generate_measure`."""

    def __init__(
        self,
        formulas: tuple[Formula, ...],
        stages: tuple[Formula, ...],
        storage: tuple[str, ...],
        from_copy: bool,
    ) -> None:
        self._measures = [transcribe(formula) for formula in formulas]
        for formula, transcript in zip(formulas, self._measures, strict=True):
            check_measure(formula, transcript, len(storage) - from_copy)
        self._used = sorted({stream for each in self._measures for stream in used(each)})
        self._copy = len(storage) - 1 if from_copy and 0 in self._used else None
        self._stages = [transcribe(stage) for stage in stages] if 1 in self._used else []
        self._storage = storage
        every = (*self._stages, *self._measures)
        self.scalars = tuple(dict.fromkeys(name for each in every for name in each.scalars))
        self._scalar = {name: f"s{index}" for index, name in enumerate(self.scalars)}
        self._read = self._used if self._copy is None else [*self._used, self._copy]
        self.arguments = [*(f"p{stream}" for stream in self._read), *self._scalar.values()]

    def pointers(self) -> list[str]:
        """Point at what is read of a leaf."""
        lines: list[str] = []
        for stream in self._read:
            pointer, size, _, _ = STORAGE[self._storage[stream]]
            address = f"base[tensor * streams + {stream}] + offset * {size}"
            lines.append(f"p{stream} = {pointer}({address})")
        return lines

    def element(self) -> list[str]:
        """Return every measure of element i."""
        lines: list[str] = []
        for stream in self._used:
            load = STORAGE[self._storage[stream]][2]
            lines.append(f"e{stream} = {load.format(f'p{stream}[i]')}")
        if self._copy is not None:
            lines.append(f"e0 = resumed(e0, p{self._copy}[i], {self._storage[0]}(1))")
        for index, stage in enumerate(self._stages):
            given = [f"{_STAGE_LITERAL}({self._scalar[name]})" for name in stage.scalars]
            lines.append(f"e1 = {FUNCTION_PREFIX}stage{index}({', '.join(['e1', *given])})")
        lines += [f"w{stream} = float64(e{stream})" for stream in self._used]
        # Not as functions of their own: each costs as much time to compile as all the rest.
        for index, measure in enumerate(self._measures):
            values = {name: f"w{k}" for k, name in enumerate(measure.positional) if k in self._used}
            values |= {name: self._scalar[name] for name in measure.scalars}
            lines += [f"{LOCAL_PREFIX}{name} = {value}" for name, value in values.items()]
            *body, result = _function(measure, index).body
            lines += map(ast.unparse, body)
            value = cast(ast.expr, cast(ast.Return, result).value)
            lines.append(f"v{index} = {ast.unparse(value)}")
        return [*lines, f"return {self._listed('v')}"]

    def definitions(self, compute: str) -> list[str]:
        """The functions that `element` calls."""
        found = [HEADER.format(literal=LITERAL, compute="float64")]
        if self._stages:
            found.append(HEADER.format(literal=_STAGE_LITERAL, compute=compute))
        for index, stage in enumerate(self._stages):
            found += map(_for_stages, stage_definition(f"stage{index}", stage).values())
        for index, measure in enumerate(self._measures):
            found += list(stage_definition(f"measure{index}", measure).values())[:-1]
        if self._copy is not None:
            found += of_copies(self._storage[-1], self._storage[0]).values()
        return found

    def adding(self, rows: int) -> list[str]:
        """Add the elements of so many rows to one lane, row after row."""
        lines = self.each("sum{0} = lanes{0}[lane]")
        for row in range(rows):
            values = ", ".join([f"start + lane + {row * LANES}", *self.arguments])
            lines.append(f"{self._listed('v')} = measured({values})")
            lines += self.each("sum{0} += v{0}")
        return lines + self.each("lanes{0}[lane] = sum{0}")

    def each(self, *lines: str) -> list[str]:
        """Lines for every measure, with its number."""
        return [line.format(index) for index in range(len(self._measures)) for line in lines]

    def _listed(self, name: str) -> str:
        return ", ".join(self.each(name + "{0}"))


def _function(measure: Transcript, index: int) -> ast.FunctionDef:
    text = stage_definition(f"measure{index}", measure)[f"measure{index}"]
    return cast(ast.FunctionDef, ast.parse(text).body[0])


def generate_measure(
    formulas: tuple[Formula, ...],
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    compute: str,
    from_copy: bool = False,
) -> Kernel:
    """The kernel that sums formulas over each leaf, all of them in one sweep.

    Args:
        formulas: `(var, grad, *slots, *, scalars) -> number` each, evaluated in float64.
        stages: Formulas `(grad, *, scalars) -> grad` applied to the gradient first, as the update
            does it.
        storage: Storage types of variable, gradient, slots and copy (if any); what no formula reads
            is not read.
        compute: In what stages are evaluated, "float32" or "float64".
        from_copy: Whether the last of `storage` is a copy, at which an update may begin; see
            `generate` of `codegen`.

    Raises:
        RuleError: A formula takes more values than there are, or returns several.
    """
    sweep, count = _Sweep(formulas, stages, storage, from_copy), len(formulas)
    text = _MEASURE.format(
        name="KERNEL_NAME",
        parameters=", ".join(["i", *sweep.arguments]),
        element=indented(sweep.element(), 1),
        lanes=indented(sweep.each("lanes{0} = lanes()"), 1),
        pointers=indented(sweep.pointers() or ["pass"], 3),
        scalars=indented([f"s{k} = scalars[row + {k}]" for k in range(len(sweep.scalars))], 3),
        count=LANES,
        rows=_ROWS,
        zero=indented(sweep.each("lanes{0}[lane] = 0.0"), 4),
        add_rows=indented(sweep.adding(_ROWS), 5),
        add_row=indented(sweep.adding(1), 5),
        fold=indented(sweep.each(*_FOLD), 4),
        keep=indented(sweep.each(f"leaves[leaf * {count} + {{0}}] = lanes{{0}}[0]"), 3),
    )
    definitions = "\n\n".join(sweep.definitions(compute))
    return _named("m", definitions, text, sweep.scalars, count)


def generate_peak(size: int) -> Kernel:
    """The kernel that finds each chunk's largest magnitude, as the bits of a number."""
    header = HEADER.format(literal=LITERAL, compute="float64")
    magnitude = hex(2 ** (8 * size - 1) - 1)
    integer = {2: "uint16", 4: "int32", 8: "int64"}[size]
    text = _PEAK.format(name="KERNEL_NAME", integer=integer, size=size, magnitude=magnitude)
    return _named("p", header, text)


def _named(
    kind: str, definitions: str, text: str, scalars: tuple[str, ...] = (), measures: int = 0
) -> Kernel:
    name = f"{kind}_{store.digest(definitions, text, versions())}"
    return Kernel(name, definitions + text.replace("KERNEL_NAME", name), scalars, measures)
