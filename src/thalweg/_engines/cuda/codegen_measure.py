"""Generator of Triton kernels that reduce leaves (65,536 elements): sums, or largest magnitudes.

A program computes one leaf, in the order of `thalweg._engines.reduction_order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thalweg._engines.codegen import Measurement, fill
from thalweg._engines.codegen_measure import Sweep, Targets
from thalweg._engines.cuda.codegen import (
    BLOCKWISE,
    Kernel,
    Writer,
    define_element,
    load_scalars,
    name_kernel,
    write_header,
)
from thalweg._engines.formula_graph import FormulaGraph
from thalweg._engines.formula_source import FUNCTION_PREFIX, LOCAL_PREFIX
from thalweg._engines.reduction_order import LANES, LEAF
from thalweg._engines.row_column_reductions import places_for

if TYPE_CHECKING:
    from thalweg._engines.codecs.codec import Codec

# The literal function of stages, which have the dtype of the update; formulas are float64.
_STAGE_LITERAL = "_stage_literal"

# The lanes of a program are in parts: adding two parts moves nothing between threads, and the
# remaining tree is over the lanes of one part.
_PARTS = 2
_ZERO = {"sum": "0.0", "largest": "float('-inf')"}
_PART = LANES // _PARTS

# The length of a leaf is an argument: Triton would unroll a loop of constant length, and it would
# need more registers than a thread has.
_MEASURE = """
@triton.jit
def KERNEL_NAME(base, chunks, sizes, scalar_row, scalars, leaves, whole, ALIGNED: tl.constexpr):
    leaf = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 2 * leaf).to(tl.int64)
    offset = tl.load(chunks + 2 * leaf + 1).to(tl.int64) * {leaf}
    length = tl.load(sizes + tensor) - offset
    row = tl.load(scalar_row + tensor) * {n_scalars}
    {scalars}
    {pointers}
    {begin}
    if length >= {leaf}:
        for start in range(0, whole, {lanes}):
            {whole}
    else:
        for begin in range(0, length, {lanes}):
            {rest}
    {fold}
    {keep}
"""

# Decodes elements of a slot; p0, p1, ... point at the first record of the leaf.
_DECODE = """
record{stream} = (at >> {shift}) * {record}
scale{stream} = load_where(word_pointer(p{stream}), record{stream} // 4, at < length, MASKED)
scale{stream} = {scale}
stored{stream} = load_where(
    p{stream}, record{stream} + {header} + (at & {within}), at < length, MASKED
)
decoded{stream} = {decode}(stored{stream}.to(tl.float32), scale{stream})
"""

_PEAK = """
@triton.jit
def KERNEL_NAME(base, chunks, sizes, found, scalars, streams, ALIGNED: tl.constexpr):
    leaf = tl.program_id(0).to(tl.int64)
    tensor = tl.load(chunks + 2 * leaf).to(tl.int64)
    offset = tl.load(chunks + 2 * leaf + 1).to(tl.int64) * {leaf}
    length = tl.load(sizes + tensor) - offset
    values = pointer(base + tensor * streams + 1, tl.{integer}, ALIGNED) + offset
    peak = tl.zeros(({lanes},), tl.int64)
    for start in range(0, tl.minimum(length, {leaf}), {lanes}):
        at = start + tl.arange(0, {lanes})
        bits = load(values, at, length, True).to(tl.int64) & {magnitude}
        peak = tl.maximum(peak, bits)
    tl.store(found + leaf, tl.max(peak, axis=0))
"""

FAN = 1 << 10  # leaves that a program adds up
_OF_THREAD = 8  # neighbouring leaves that a thread adds before numbers move between threads

# A missing leaf is -0, which changes no number that it is added to.
_COMBINE = """
@triton.jit
def KERNEL_NAME(first, sizes, leaves, above, measures, ALIGNED: tl.constexpr):
    node, measure = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    count, begin = tl.load(sizes + node), tl.load(first + node)
    at = tl.arange(0, {threads}) * {of_thread}
    {read}
    {fold}
    total = tl.where(count > 0, total0, tl.full((), 0, tl.float64))
    tl.store(above + node * measures + measure + tl.arange(0, 1), total)
"""

_MAGNITUDES = {
    "float64": ("int64", 2**63 - 1),
    "float32": ("int32", 2**31 - 1),
    "float16": ("int16", 2**15 - 1),
    "bfloat16": ("int16", 2**15 - 1),
}


class Program(Sweep):
    """Writer of the parts of a reduction kernel.

    Args:
        measurement: The formulas, and the memory that they read.
        flush: True to treat denormals as zero.
    """

    def __init__(self, measurement: Measurement, flush: bool) -> None:
        super().__init__(measurement)
        self._double = Writer("float64", flush)
        self._single = Writer(self.compute, flush, literal=_STAGE_LITERAL)

    def define_functions(self) -> str:
        """Return the text before the kernel function: imports, transforms, decoders, `element`."""
        imports = BLOCKWISE if self.codecs else ""
        literal = "literal32" if self._single.compute == "float32" else "literal64"
        module = "thalweg._engines.cuda.device_functions"
        imports += f"from {module} import {literal}\n{_STAGE_LITERAL} = {literal}\n"
        header = f"{write_header('float64')}{imports}\n\n"
        stages = enumerate(self.stages)
        functions = [self._single.define_function(f"stage{k}", stage) for k, stage in stages]
        functions += self.define_decoders(self._single)
        parameters = ", ".join([*self.arguments, "at", "length", "MASKED: tl.constexpr"])
        element = define_element(parameters, self._measure_element())
        return header + "\n\n\n".join([*functions, element]) + "\n"

    def _measure_element(self) -> list[str]:
        """Return the body of `element`: loads, transforms of the gradient, then formulas."""
        lines = [line for stream in self.used for line in self._read_stream(stream)]
        for index, stage in enumerate(self.stages):
            scalar_args = [
                f"{self.scalar[name]}.to(tl.{self._single.compute})" for name in stage.scalars
            ]
            lines.append(f"e1 = {FUNCTION_PREFIX}stage{index}({', '.join(['e1', *scalar_args])})")
        if self.stages:
            lines.append("e1 = e1.to(tl.float64)")
        for index, measure in enumerate(self.measures):
            lines += self._write_measure(measure, index)
        names = ", ".join(f"m{index}" for index in range(len(self.measures)))
        return [*lines, f"return {names}"]

    def _read_stream(self, stream: int) -> list[str]:
        """Return lines that load stream k as the variable ek, in float64.

        If there are stages, a gradient is loaded in the dtype of the stages.
        """
        if codec := self.codecs.get(stream):
            return self._decode(stream, codec)
        writer = self._single if stream == 1 and self.stages else self._double
        value = writer.read_value(f"load(p{stream}, at, length, MASKED)", self.storage[stream])
        lines = [f"e{stream} = {value}"]
        if self.copy is not None and stream == 0:
            lines += self._double.resume_at_copy("e0", self.storage, "at", "length", "MASKED")
        return lines

    def _decode(self, stream: int, codec: Codec) -> list[str]:
        """Return lines that load and decode stream k as the variable ek, in float64."""
        lines = fill(
            _DECODE,
            stream=stream,
            within=codec.block - 1,
            scale=self._single.flush_value(f"scale{stream}.to(tl.float32, bitcast=True)"),
            **self.codec_fields(codec),
        )
        value = self._double.read_value(f"decoded{stream}", "float32")
        return [*lines, f"e{stream} = {value}"]

    def _write_measure(self, formula_graph: FormulaGraph, index: int) -> list[str]:
        """Return lines that compute formula `index` in float64; missing elements become 0."""
        is_like_update = self.are_like_update[index]
        writer = self._single if is_like_update else self._double
        cast = f".to(tl.{writer.compute})" if is_like_update else ""
        lines, (result,) = writer.write_formula(formula_graph, f"node{index}_")
        scalar = {**self.scalar, **self.vectors}
        return [
            *(f"{LOCAL_PREFIX}{k} = e{k}{cast}" for k in formula_graph.streams),
            *(f"{LOCAL_PREFIX}{name} = {scalar[name]}{cast}" for name in formula_graph.scalars),
            *lines,
            f"m{index} = {result}.to(tl.float64)",
            # Where elements are missing +0 is added; a formula of zeros need not be zero.
            f"m{index} = tl.where(at < length, m{index}, tl.full((), 0, tl.float64))",
        ]

    def read_vector(self, load_expression: str) -> str:
        """Return the expression of a loaded element of a row or column vector in float64."""
        return self._double.read_value(load_expression, self._single.compute)

    def flush_value(self, value: str) -> str:
        """Return the expression of a float64 number, with denormals flushed if chosen."""
        return self._double.flush_value(value)

    def load_scalars(self) -> list[str]:
        return load_scalars(self._double, len(self.scalars), "scalars + row + ")

    def point_at_leaf(self) -> list[str]:
        """Return lines that point at the first element of the leaf in each stream."""
        lines: list[str] = []
        for stream in self.read:
            address = f"base + tensor * {len(self.storage)} + {stream}"
            if codec := self.codecs.get(stream):
                template = "p{stream} = records({place}, tl.{kind}) + offset // {block} * {record}"
                fields = self.codec_fields(codec)
                lines.append(template.format(stream=stream, place=address, **fields))
                continue
            kind = f"tl.{self.storage[stream]}"
            lines.append(f"p{stream} = pointer({address}, {kind}, ALIGNED) + offset")
        return lines

    def begin_sums(self) -> list[str]:
        """Return lines that set the sums of all lanes to zero."""
        names = [name for k in range(len(self.measures)) for name in _name_parts(k)]
        return [f"{name} = tl.zeros(({_PART},), tl.float64)" for name in names]

    def add_elements(self, start: str, masked: bool) -> list[str]:
        """Return lines that add the next elements of the leaf, one to each lane (running sum).

        Args:
            start: An expression for the index of the first added element in the leaf.
            masked: True to leave out elements from `length` on.
        """
        values = ", ".join(f"value{index}" for index in range(len(self.measures)))
        lines: list[str] = []
        for segment in range(_PARTS):
            offsets = f"{start} + {segment * _PART} + tl.arange(0, {_PART})"
            call_args = ", ".join([*self.arguments, offsets, "length", str(masked)])
            lines.append(f"{values} = element({call_args})")
            for index in range(len(self.measures)):
                total = self._double.flush_value(f"sum{index}_{segment} + value{index}")
                lines.append(f"sum{index}_{segment} = {total}")
        return lines

    def fold_sums(self) -> list[str]:
        """Return lines that sum all lanes, by repeatedly adding the upper to the lower half."""
        lines: list[str] = []
        for k in range(len(self.measures)):
            reduction = LaneReduction(self, k, "sum")
            lines += [*reduction.fold(_name_parts(k)), f"sum{k} = sum{k}_0"]
            lines += reduction.fold_lanes(f"sum{k}", _PART)
        return lines

    def store_sums(self) -> list[str]:
        count = len(self.measures)
        addresses = [f"leaves + leaf * {count} + {k} + tl.arange(0, 1)" for k in range(count)]
        return [f"tl.store({address}, sum{k})" for k, address in enumerate(addresses)]


def _name_parts(measure: int) -> list[str]:
    """Return the names of the parts of a measure's running sums."""
    return [f"sum{measure}_{segment}" for segment in range(_PARTS)]


class LaneReduction(Targets):
    """Sum or maximum of a formula, computed once for all measures that use the result.

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
        """Return lines that reduce the kernel's variables `names`, and assign the first of them.

        The upper half is joined to the lower half repeatedly; a variable without partner is kept.
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

    def fold_lanes(self, name: str, lanes: int, values_per_lane: int = 1) -> list[str]:
        """Return lines that reduce the lanes of `name` to one, by combining halves repeatedly.

        A lane has `values_per_lane` numbers.
        """
        lines: list[str] = []
        while lanes > 1:
            lanes //= 2
            folded = f"{self._lanes_fold}({name}, {lanes * values_per_lane})"
            lines.append(f"{name} = {self._program.flush_value(folded)}")
        return lines

    def store(self, scope: str, offset: str, value: str, mask: str = "") -> list[str]:
        """Return one line for each measure over `scope` of this reduction: a store of `value`.

        Args:
            scope: "row", "column" or "variable". Other measures are left out.
            offset, value: Expressions: the offset in each measure's array, and the stored value.
            mask: An expression; "" to store all values.
        """
        mask_argument = f", mask={mask}" if mask else ""
        targets = self.targets.get(scope, ())
        return [f"tl.store(target{k} + {offset}, {value}{mask_argument})" for k in targets]


def generate_measure(measurement: Measurement, flush: bool) -> Kernel:
    """Return the kernel that sums formulas over the leaves of tensors.

    Args:
        flush: True to treat denormals as zero.

    Raises:
        RuleError: A formula takes too many values, or returns several.
    """
    program = Program(measurement, flush)
    lines = fill(
        _MEASURE,
        leaf=LEAF,
        lanes=LANES,
        n_scalars=len(program.scalars),
        scalars=program.load_scalars(),
        pointers=program.point_at_leaf(),
        begin=program.begin_sums(),
        whole=program.add_elements("start", False),
        rest=program.add_elements("begin", True),
        fold=program.fold_sums(),
        keep=program.store_sums(),
    )
    attributes = {"integers": ("whole",), "measures": len(program.measures)}
    return name_kernel(program.define_functions(), lines, program.scalars, **attributes)


def generate_peak(kind: str) -> Kernel:
    """Return the kernel that computes the bits of the largest gradient magnitude in each leaf."""
    integer, magnitude = _MAGNITUDES[kind]
    lines = fill(_PEAK, leaf=LEAF, lanes=LANES, integer=integer, magnitude=magnitude)
    return name_kernel(write_header("float64"), lines, (), integers=("streams",))


def generate_combine() -> Kernel:
    """Return the kernel that sums leaves, by adding neighbours in pairs repeatedly."""
    read = [
        f"total{k} = tl.load(leaves + (begin + at + {k}) * measures + measure,"
        f" mask=at + {k} < count, other=-0.0)"
        for k in range(_OF_THREAD)
    ]
    fold: list[str] = []
    segments, threads = _OF_THREAD, FAN // _OF_THREAD
    while segments > 1:
        segments //= 2
        fold += [f"total{k} = total{2 * k} + total{2 * k + 1}" for k in range(segments)]
    while threads > 1:
        threads //= 2
        fold.append(f"total0 = fold_neighbours(total0, {threads})")
    thread_count = FAN // _OF_THREAD
    lines = fill(_COMBINE, threads=thread_count, of_thread=_OF_THREAD, read=read, fold=fold)
    return name_kernel(write_header("float64"), lines, (), integers=("measures",))
