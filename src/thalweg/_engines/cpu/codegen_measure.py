"""Source of CPU kernels that sum formulas over leaves (runs of elements), or find maxima.

A leaf is a run of elements of one variable, in row-major order. Its lanes are `LANES` running sums
of each formula: lane j adds the elements j, j + `LANES`, and so on; see `reduction_order.py`. A
stream is a tensor that formulas read: variable, gradient, slot or copy.
"""

from __future__ import annotations

from dataclasses import replace

from thalweg._engines.codegen import (
    Field,
    FormulaWriter,
    Kernel,
    Measurement,
    fill,
    nest,
    read_vectors,
)
from thalweg._engines.codegen_measure import Sweep
from thalweg._engines.cpu.codegen import (
    HEADER,
    STORAGE,
    define_copy_functions,
    load_scalars,
    name_kernel,
    write_threads,
)
from thalweg._engines.formula_graph import FormulaGraph
from thalweg._engines.formula_source import FUNCTION_PREFIX, LITERAL, LOCAL_PREFIX
from thalweg._engines.reduction_order import LANES

# Formulas are float64; stages, and those that are `like_update`, of the type of the update.
STAGE_LITERAL = "_stage_literal"

# Rows of lanes that are added at once: each lane is then read and written once for all of them.
# They lie at multiples of 4 KiB, for which a cache has few places: too few for several streams.
_ROWS, _STREAMS = 8, 2

_SETUP = """
slices, flush = work[1], work[2]
bounds, chunks, base = int64_pointer(work[3]), int64_pointer(work[4]), int64_pointer(work[5])
scalar_step, scalars = work[6], float64_pointer(work[7])
leaves, streams = float64_pointer(work[8]), work[9]
{lanes}
{scratch}
"""
_LEAVES = """
for leaf in range(bounds[ticket], bounds[ticket + 1]):
    tensor, offset = chunks[4 * leaf], chunks[4 * leaf + 1]
    length = chunks[4 * leaf + 3]
    {pointers}
    row = tensor * scalar_step
    {scalars}
    width = {count}
    while width > 1 and width >= 2 * length:  # the lanes beyond are +0 and stay so
        width >>= 1
    for lane in range(width):
        {zero}
    start = 0
    while start + {rows} * {count} <= length:
        {gather_rows}
        for lane in range({count}):
            {add_rows}
        start += {rows} * {count}
    while start < length:
        {gather_row}
        for lane in range(min({count}, length - start)):
            {add_row}
        start += {count}
    while width > 1:
        width >>= 1
        {fold}
    {keep}
"""

# Copies a block of a tensor that is not in row-major order into row-major scratch, which is still
# in the cache when it is added up. `layouts` is the table of `Offsets`.
_GATHER = """
period, taken = layouts[3 * tensor], 0
within = int32_pointer(layouts[3 * tensor + 1])
origins = int64_pointer(layouts[3 * tensor + 2])
several = min({elements}, length - start) if period > 0 else 0
while taken < several:
    place = offset + start + taken
    number = place // period
    place -= number * period
    run = min({run}, min(period - place, several - taken))
    origin = origins[number]
    {copy}
    taken += run
if several > 0:
    {point}
"""

# The blocks of an encoded slot from `start` on are decoded before they are added up.
_DECODE = """
for part in range(0, min({elements}, length - start), {block}):
    record = records{stream} + ((start + part) >> {shift}) * {record}
    codes, scale = {kind}_pointer(record + {header}), float32_pointer(record)[0]
    for j in range({block}):
        scratch{stream}[part + j] = {decode}(float32(codes[j]), scale)
p{stream} = float32_pointer(address_of(scratch{stream}) - start * 4)
"""

_LINE = 64  # bytes of a cache line
_RUN = 512  # elements that are copied before others are prefetched

_FOLD = ("for lane in range(width):", "    lanes{0}[lane] += lanes{0}[lane + width]")

# Magnitudes are compared as integers, which order them as numbers do and put NaN above infinity.
_PEAK_SETUP = """
slices = work[1]
bounds, chunks, base = int64_pointer(work[3]), int64_pointer(work[4]), int64_pointer(work[5])
partial, streams, column = int64_pointer(work[8]), work[9], work[10]
"""
_PEAKS = """
for chunk in range(bounds[ticket], bounds[ticket + 1]):
    values = {integer}_pointer(
        base[chunks[4 * chunk] * streams + column] + chunks[4 * chunk + 2] * {size}
    )
    peak = {integer}(0)
    for i in range(chunks[4 * chunk + 3]):
        value = {integer}(values[i] & {magnitude})
        peak = value if value > peak else peak
    partial[chunk] = peak
"""


class Elements(Sweep):
    """Writer of the parts of a kernel that reduces formulas over elements."""

    def point_at_leaf(self) -> list[str]:
        """Return lines that set pointer `p{k}` to the leaf's first number in tensor k, for each k.

        For an encoded slot, `p{k}` points at scratch memory, and `records{k}` is the address of the
        leaf's codes.
        """
        lines: list[str] = []
        for stream in self.read:
            if codec := self.codecs.get(stream):
                first = f"(offset // {codec.block}) * {codec.record_bytes}"
                lines.append(f"records{stream} = base[tensor * streams + {stream}] + {first}")
                lines.append(f"p{stream} = float32_pointer(address_of(scratch{stream}))")
                continue
            fmt = STORAGE[self.storage[stream]]
            address = f"base[tensor * streams + {stream}] + offset * {fmt.size}"
            lines.append(f"p{stream} = {fmt.pointer}({address})")
        return lines

    def reserve_scratch(self, elements: int) -> list[str]:
        """Return lines that reserve scratch memory for `elements` numbers of each stream."""
        lines = ["layouts = int64_pointer(work[10])"]
        for stream in self.read:
            fmt = STORAGE[self.storage[stream]]
            buffer = f"address_of(numbers({elements * fmt.size // 4}))"
            lines.append(f"scratch{stream} = {fmt.pointer}({buffer})")
        return lines

    def reserve_decoded(self, elements: int) -> list[str]:
        """Return lines that reserve memory for `elements` decoded numbers of each encoded slot."""
        return [
            f"scratch{k} = float32_pointer(address_of(numbers({elements})))" for k in self.codecs
        ]

    def decode(self, elements: int) -> list[str]:
        """Return lines that decode up to `elements` numbers of encoded slots from `start` on."""
        lines: list[str] = []
        for stream, codec in self.codecs.items():
            lines += fill(_DECODE, stream=stream, elements=elements, **self.codec_fields(codec))
        return lines

    def gather(self, elements: int) -> list[str]:
        """Return lines that copy up to `elements` numbers of each tensor to scratch memory.

        The copy is in row-major order, and begins with element `start`. Pointer `p{k}` is set so
        that `p{k}[start]` is this element. At run time, the lines do nothing for a tensor in
        row-major order.
        """
        copy: list[str] = []
        point: list[str] = []
        for stream in self.read:
            fmt = STORAGE[self.storage[stream]]
            begin = f"base[tensor * streams + {stream}] + origin * {fmt.size}"
            loop = "each" if fmt.size > 2 else "range"
            copy += [
                f"source{stream} = {fmt.pointer}({begin})",
                f"ahead = address_of(source{stream}) + (period + place) * {fmt.size}",
                f"for i in range(0, run * {fmt.size}, {_LINE}):",
                "    prefetch_to_read(ahead + i)",
                f"for i in {loop}(run):",
                f"    scratch{stream}[taken + i] = source{stream}[within[place + i]]",
            ]
            address = f"address_of(scratch{stream}) - start * {fmt.size}"
            point.append(f"p{stream} = {fmt.pointer}({address})")
        return fill(_GATHER, elements=elements, run=_RUN, copy=copy, point=point)

    def see_vectors(self) -> dict[str, str]:
        """Return expressions for the numbers of element i in vectors, by the names of scalars."""
        return read_vectors(self.vectors)

    def define_measures(self, name: str = "measured") -> list[str]:
        """Return the definition of a function `name` that computes every formula for element i."""
        header = f"def {name}({', '.join(['i', *self.arguments])}):"
        return nest(header, self._measure_element())

    def _measure_element(self) -> list[str]:
        """Return the body of the function that computes every formula for element i."""
        lines: list[str] = []
        for stream in self.used:
            kind = "float32" if stream in self.codecs else self.storage[stream]
            load = STORAGE[kind].load
            lines.append(f"e{stream} = {load.format(f'p{stream}[i]')}")
        if self.copy is not None:
            # A plain 1: the number is only compared with the copy, and not stored.
            lines.append(f"e0 = resumed(e0, p{self.copy}[i], {self.storage[0]}(1))")
        for index, stage in enumerate(self.stages):
            scalar_texts = [f"{STAGE_LITERAL}({self.scalar[name]})" for name in stage.scalars]
            lines.append(f"e1 = {FUNCTION_PREFIX}stage{index}({', '.join(['e1', *scalar_texts])})")
        # Formulas in float64 read w0, w1, ...; formulas in the type of the update read n0, n1, ...
        if not all(self.are_like_update):
            lines += [f"w{stream} = float64(e{stream})" for stream in self.used]
        if any(self.are_like_update):
            lines += [f"n{stream} = {STAGE_LITERAL}(e{stream})" for stream in self.used]
        for index, measure in enumerate(self.measures):
            lines += self._write_measure(measure, index)
        return [*lines, f"return {self._list_names('v')}"]

    def _write_measure(self, formula_graph: FormulaGraph, index: int) -> list[str]:
        """Return lines that compute measure `index` of element i, and assign it to `v{index}`."""
        # A measure is inlined: a function each would double the time to compile.
        is_like_update = self.are_like_update[index]
        letter, kind = ("n", STAGE_LITERAL) if is_like_update else ("w", "float64")
        inputs = [(f"{stream}", f"{letter}{stream}") for stream in formula_graph.streams]
        vectors = self.see_vectors()
        for name in formula_graph.scalars:
            value = vectors.get(name) or self.scalar[name]
            inputs.append(
                (name, f"{kind}({value})" if is_like_update or name in vectors else value)
            )
        lines = [f"{LOCAL_PREFIX}{name} = {value}" for name, value in inputs]
        writer = FormulaWriter(STAGE_LITERAL if is_like_update else LITERAL)
        operations, (result,) = writer.write_formula(formula_graph, f"node{index}_")
        return [*lines, *operations, f"v{index} = float64({result})"]

    def define_functions(self) -> list[str]:
        """Return the source of all functions that the function of `define_measures` calls."""
        definitions = [HEADER.format(literal=LITERAL, compute="float64")]
        if self.stages or self.codecs or any(self.are_like_update):
            definitions.append(HEADER.format(literal=STAGE_LITERAL, compute=self.compute))
        for index, stage in enumerate(self.stages):
            definitions.append(FormulaWriter(STAGE_LITERAL).define_function(f"stage{index}", stage))
        definitions += self.define_decoders(FormulaWriter(STAGE_LITERAL))
        if self.copy is not None:
            definitions += define_copy_functions(self.storage[-1], self.storage[0]).values()
        return definitions

    def add_rows(self, count: int) -> list[str]:
        """Return lines that add `count` elements, `LANES` apart, to each running sum of `lane`."""
        lines = self.per_measure("sum{0} = lanes{0}[lane]")
        for row in range(count):
            values = ", ".join([f"start + lane + {row * LANES}", *self.arguments])
            lines.append(f"{self._list_names('v')} = measured({values})")
            lines += self.per_measure("sum{0} += v{0}")
        return lines + self.per_measure("lanes{0}[lane] = sum{0}")

    def per_measure(self, *lines: str) -> list[str]:
        """Return the lines once for each measure, with the index of the measure in place of {0}."""
        return [line.format(index) for index in range(len(self.measures)) for line in lines]

    def _list_names(self, name: str) -> str:
        return ", ".join(self.per_measure(name + "{0}"))


def _is_count(formula_graph: FormulaGraph) -> bool:
    """Return True for the formula `where(condition, 1.0, 1.0)`, whose sum counts elements."""
    (result,) = formula_graph.results
    values = result.inputs[1:] if result.op == "where" else []
    return bool(values) and all(node.op == "const" and node.args == (1.0,) for node in values)


def _make_lane_fields(sweep: Elements, gathers: bool) -> dict[str, Field]:
    """Return {placeholder: source lines} for the templates `_SETUP` and `_LEAVES`.

    The lines reserve lanes (running sums) and scratch memory, copy or decode elements to scratch,
    and add elements to lanes. The caller adds `pointers`, `scalars`, `count` and `keep`.

    Args:
        sweep: The writer of the lines.
        gathers: True to copy elements to scratch first, for tensors that are not in row-major
            order. Ignored if `sweep` reads encoded slots or no tensor.
    """
    rows = _ROWS if len(sweep.read) <= _STREAMS else 1
    # `Dispatcher` leaves variables with encoded slots that are not contiguous to the reference.
    gathers = gathers and bool(sweep.read) and not sweep.codecs
    reserve = sweep.reserve_scratch if gathers else sweep.reserve_decoded
    gather = sweep.gather if gathers else sweep.decode
    return {
        "lanes": sweep.per_measure(f"lanes{{0}} = lanes({LANES})"),
        "scratch": reserve(rows * LANES),
        "rows": rows,
        "gather_rows": gather(rows * LANES),
        "gather_row": gather(LANES),
        "zero": sweep.per_measure("lanes{0}[lane] = 0.0"),
        "add_rows": sweep.add_rows(rows),
        "add_row": sweep.add_rows(1),
        "fold": sweep.per_measure(*_FOLD),
    }


def generate_measure(measurement: Measurement, gathers: bool = False) -> Kernel:
    """Return the kernel that sums formulas over each leaf, in one pass over memory.

    Args:
        measurement: The formulas, and the memory that is read.
        gathers: True if a tensor may be out of row-major order. The argument of the kernel then
            has the address of `Offsets.table`.

    Raises:
        RuleError: A formula takes more tensors than there are, or returns several results.
    """
    graphs, formulas = Sweep(measurement).measures, measurement.formulas
    count = len(formulas)
    # Counts need neither memory nor lanes; the first measure is always summed.
    leaves = {k: "float64(length)" for k in range(1, count) if _is_count(graphs[k])}
    summed_indices = [k for k in range(count) if k not in leaves]
    leaves |= {k: f"lanes{index}[0]" for index, k in enumerate(summed_indices)}
    sum_formulas = tuple(formulas[k] for k in summed_indices)
    sweep = Elements(replace(measurement, formulas=sum_formulas))
    fields = _make_lane_fields(sweep, gathers)
    leaf_lines = fill(
        _LEAVES,
        pointers=sweep.point_at_leaf() or ["pass"],
        scalars=load_scalars(len(sweep.scalars)),
        count=LANES,
        keep=[f"leaves[leaf * {count} + {k}] = {leaves[k]}" for k in leaves],
        **fields,
    )
    lines = [*sweep.define_measures(), *write_threads(fill(_SETUP, **fields), leaf_lines)]
    definitions = "\n\n".join(sweep.define_functions()) + "\n"
    return name_kernel("m", definitions, lines, sweep.scalars, count)


def generate_peak(size: int) -> Kernel:
    """Return the kernel that stores the bits of each chunk's largest magnitude.

    Args:
        size: Bytes of a number: 2, 4 or 8.
    """
    header = HEADER.format(literal=LITERAL, compute="float64")
    magnitude = hex(2 ** (8 * size - 1) - 1)
    integer = {2: "uint16", 4: "int32", 8: "int64"}[size]
    peak_lines = fill(_PEAKS, integer=integer, size=size, magnitude=magnitude)
    lines = write_threads(fill(_PEAK_SETUP), peak_lines, flushes=False)
    return name_kernel("p", header, lines, ())
