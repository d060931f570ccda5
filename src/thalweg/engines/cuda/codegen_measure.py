"""Write the source of a measuring kernel: formulas summed leaf by leaf, or largest magnitudes.

A program makes one leaf, in the order of `thalweg.engines.measuring`.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.engines.cpu.codegen import indented
from thalweg.engines.cpu.codegen_measure import check_measure, used
from thalweg.engines.cuda.codegen import FUNCTIONS, Kernel, Writer, header, made
from thalweg.engines.measuring import LANES, LEAF
from thalweg.engines.transcribe import FUNCTION_PREFIX, LITERAL, LOCAL_PREFIX, transcribe
from thalweg.formula import Formula

# Formulas are float64, stages of the type of the update: the latter get names of their own.
_STAGE_FUNCTION = "_s_"
_STAGE_LITERAL = "_stage_literal"

# A program keeps its lanes in parts: the sum of two of them moves nothing between threads, and the
# rest of the tree is over so many lanes alone.
_PARTS = 2
_PART = LANES // _PARTS

# The length of a leaf is an argument: a loop of a known length would be unrolled, and take more
# registers than there are.
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

_MAGNITUDES = {
    "float64": ("int64", 2**63 - 1),
    "float32": ("int32", 2**31 - 1),
    "float16": ("int16", 2**15 - 1),
    "bfloat16": ("int16", 2**15 - 1),
}


def generate_measure(
    formulas: tuple[Formula, ...],
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    measured: int,
    compute: str,
    flush: bool,
    from_copy: bool = False,
) -> Kernel:
    """The kernel that sums formulas over the leaves of tensors of the given storage types.

    Args:
        formulas: Functions of (var, grad, *slots) of one result, in float64.
        stages: Formulas applied to the gradient first, in `compute`.
        storage: Storage types of variable, gradient, slots and copy (if any).
        measured: How many of them formulas may read.
        compute: "float32" or "float64": the type of the update.
        flush: Whether denormals are treated as zero.
        from_copy: As for `generate` of `codegen`.
    """
    measures = [transcribe(formula) for formula in formulas]
    for formula, transcript in zip(formulas, measures, strict=True):
        check_measure(formula, transcript, measured)
    streams = sorted({stream for each in measures for stream in used(each)})
    has_copy = from_copy and 0 in streams
    read = [*streams, len(storage) - 1] if has_copy else streams
    staged = [transcribe(stage) for stage in stages] if 1 in streams else []
    every = (*staged, *measures)
    scalars = tuple(dict.fromkeys(name for each in every for name in each.scalars))
    scalar = {name: f"s{index}" for index, name in enumerate(scalars)}
    double, single = Writer("float64", flush), Writer(compute, flush)

    definitions: dict[str, str] = {}
    body: list[str] = []
    for stream in streams:
        value = f"load(p{stream}, at, length, MASKED)"
        kind = storage[stream]
        own = single if stream == 1 and staged else double
        body.append(f"e{stream} = {own.read(value, kind)}")
        if has_copy and stream == 0:
            body += double.resumed("e0", storage, "at", "length", "MASKED")
    for index, stage in enumerate(staged):
        definitions |= {
            name: _for_stages(text)
            for name, text in single.definition(f"stage{index}", stage).items()
        }
        given = [f"{scalar[name]}.to(tl.{compute})" for name in stage.scalars]
        body.append(f"e1 = {_STAGE_FUNCTION}stage{index}({', '.join(['e1', *given])})")
    if staged:
        body.append("e1 = e1.to(tl.float64)")
    for index, transcript in enumerate(measures):
        definitions |= {
            name: text.replace(f"{FUNCTION_PREFIX}helper", f"{FUNCTION_PREFIX}m{index}_helper")
            for name, text in double.helpers(transcript).items()
        }
        names = {k: name for k, name in enumerate(transcript.positional) if k in streams}
        body += [f"{LOCAL_PREFIX}{name} = e{k}" for k, name in names.items()]
        body += [f"{LOCAL_PREFIX}{name} = {scalar[name]}" for name in transcript.scalars]
        lines = [*double.lines(transcript), f"m{index} = {double.result(transcript, 0)}"]
        body += [
            line.replace(f"{FUNCTION_PREFIX}helper", f"{FUNCTION_PREFIX}m{index}_helper")
            for line in lines
        ]
        # Where elements are missing +0 is added; a formula of zeros need not be zero.
        body.append(f"m{index} = tl.where(at < length, m{index}, tl.full((), 0, tl.float64))")
    count = len(measures)
    body.append(f"return {', '.join(f'm{index}' for index in range(count))}")

    arguments = [*(f"p{stream}" for stream in read), *scalar.values()]
    parameters = ", ".join([*arguments, "at", "length", "MASKED: tl.constexpr"])
    texts = [*definitions.values()]
    texts.append(f"@triton.jit\ndef element({parameters}):\n{indented(body, 1)}")
    folds = [line for index in range(count) for line in _folded(double, index)]
    kernel = _MEASURE.format(
        leaf=LEAF,
        lanes=LANES,
        n_scalars=len(scalars),
        arguments=", ".join(arguments),
        whole=indented(_added(double, arguments, count, "start", False), 3),
        rest=indented(_added(double, arguments, count, "begin", True), 3),
        scalars=indented(
            [
                f"s{k} = {double.flushed(f'tl.load(scalars + row + {k})')}"
                for k in range(len(scalars))
            ],
            1,
        ),
        pointers=indented(
            [
                f"p{k} = pointer(base + tensor * {len(storage)} + {k}, tl.{storage[k]}, ALIGNED)"
                " + offset"
                for k in read
            ],
            1,
        ),
        begin=indented(
            [
                f"sum{index}_{part} = tl.zeros(({_PART},), tl.float64)"
                for index in range(count)
                for part in range(_PARTS)
            ],
            1,
        ),
        fold=indented(folds, 1),
        keep=indented(
            [
                f"tl.store(leaves + leaf * {count} + {index} + tl.arange(0, 1), sum{index})"
                for index in range(count)
            ],
            1,
        ),
    )
    text = header("float64") + _stage_header(compute) + "\n\n" + "\n\n\n".join(texts) + "\n"
    return made(text + kernel, scalars, integers=("whole",), measures=count)


def generate_peak(kind: str) -> Kernel:
    """The kernel that finds the largest magnitude in each leaf, as bits; NaN is above infinity."""
    integer, magnitude = _MAGNITUDES[kind]
    kernel = _PEAK.format(leaf=LEAF, lanes=LANES, integer=integer, magnitude=magnitude)
    return made(header("float64") + "\n\n" + kernel, (), integers=("streams",))


def _added(
    writer: Writer, arguments: Sequence[str], count: int, start: str, masked: bool
) -> list[str]:
    """Add the next element of each lane to it."""
    values = ", ".join(f"value{index}" for index in range(count))
    lines: list[str] = []
    for part in range(_PARTS):
        at = f"{start} + {part * _PART} + tl.arange(0, {_PART})"
        lines.append(f"{values} = element({', '.join([*arguments, at, 'length', str(masked)])})")
        for index in range(count):
            total = writer.flushed(f"sum{index}_{part} + value{index}")
            lines.append(f"sum{index}_{part} = {total}")
    return lines


def _folded(writer: Writer, index: int) -> list[str]:
    """Add the upper half of the lanes to the lower half until one is left."""
    lines: list[str] = []
    parts = _PARTS
    while parts > 1:
        parts //= 2
        for part in range(parts):
            total = writer.flushed(f"sum{index}_{part} + sum{index}_{part + parts}")
            lines.append(f"sum{index}_{part} = {total}")
    lines.append(f"sum{index} = sum{index}_0")
    half = _PART // 2
    while half:
        lines.append(f"sum{index} = {writer.flushed(f'fold(sum{index}, {half})')}")
        half //= 2
    return lines


def _for_stages(text: str) -> str:
    return text.replace(FUNCTION_PREFIX, _STAGE_FUNCTION).replace(
        f"{LITERAL}(", f"{_STAGE_LITERAL}("
    )


def _stage_header(compute: str) -> str:
    literal = "literal32" if compute == "float32" else "literal64"
    names = [f"{_STAGE_FUNCTION}{name} = {own}" for name, own in FUNCTIONS.items()]
    return "\n".join(
        [
            f"from thalweg.engines.cuda.functions import {literal}",
            *names,
            f"{_STAGE_LITERAL} = {literal}",
            "",
        ]
    )
