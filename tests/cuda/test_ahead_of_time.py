"""PTX, registers and stack of kernels compiled without a GPU."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from pairwise import cover_values
from rulebook import DTYPES, FIRST, KINDS, label, slow_unless
from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import Measurement, Update, distinct_formulas
from thalweg._engines.cpu.sparse_plan import from_zero
from thalweg._engines.cuda import launch
from thalweg._engines.cuda.codegen import WARP, WIDTH, generate_update
from thalweg._engines.cuda.codegen_blocks import generate_blocks
from thalweg._engines.cuda.codegen_measure import generate_combine, generate_measure, generate_peak
from thalweg._engines.cuda.codegen_partial_reductions import Layout, MeasureBuilder
from thalweg._engines.cuda.codegen_row_column import generate_lines
from thalweg._engines.cuda.codegen_small_matrices import generate_short
from thalweg._engines.cuda.codegen_sparse import generate_rows, generate_untouched
from thalweg._engines.cuda.sparse import threads_for
from thalweg._engines.formula_source import FUNCTION_PREFIX
from thalweg._engines.split_weight_rule import split_rule
from thalweg.formula import exp, gradient_squares, log, variable_squares
from thalweg.rules.clipping import clip_by_norm, clip_by_value
from thalweg.rules.torch.adafactor import TORCH_ADAFACTOR

SIZES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
NAMES = [label(dtype) for dtype in DTYPES]
REGISTERS = 64  # of a thread: with as many, 1,024 threads run at once on a multiprocessor
# More than that, and why.
WIDE = {
    "16 bits": 96,  # 16 bytes of each stream are eight elements of a thread
    # A quotient or root of float64 is a function of its own. Nadam has 74 registers since formulas
    # are printed from graphs; with up to 72, seven programs instead of six run at once.
    "float64": 80,
    "power": 104,  # float64's power
    "power of 16 bits": 152,  # as many programs run at once as with 144
    # Eight elements of a thread, whose quotients by roots are computed together: three programs of
    # 128 threads run at once. That saves a quarter of the instructions (`tools/sass_counts.py`).
    "coded": 168,
    "drawn": 160,  # the words of Philox, and eight elements of a thread, whatever their types
}
# Bytes; a few kernels with quotients or roots of 16 bits or float64 have some, also fast ones.
STACK = 24
INSTRUCTION = re.compile(r"^\s+(?:@%?!?\w+ )?([a-z][\w.:]*)", re.MULTILINE)
LIBRARY = re.compile(rf"{FUNCTION_PREFIX}(exp|log|power)\(")
INEXACT = re.compile(
    r"approx|ftz|\.full|^(ex2|lg2|rcp|rsqrt|sin|cos|tanh)|^(fma|mad)\.(rn\.)?f|f16"
)

ADAM = next(case for case in FIRST if case.rule.name == "Adam")
QUICK = [(ADAM, "float32"), (ADAM, "bfloat16")]
# Rules of each kind with all dtypes, others with float32 and another one in turn.
MATRIX = [
    slow_unless((case, name) in QUICK, case, name, 90, True)
    for place, case in enumerate(FIRST)
    for name in NAMES
    if case.rule.name in KINDS or name in ("float32", ("bfloat16", "float64")[place % 2])
]
MATRIX += [
    slow_unless(False, case, "float32", capability, flush)
    for case in FIRST
    if case.rule.name in KINDS
    for capability, flush in [(80, True), (100, True), (90, False)]
]
MATRIX += [
    slow_unless(False, case, "bfloat16", 90, False) for case in FIRST if case.rule.name in KINDS
]
MATRIX += [pytest.param(ADAM, "float32", 80, False), slow_unless(False, ADAM, "bfloat16", 75, True)]


def computed(name):
    return "float64" if name == "float64" else "float32"


def storage_of(case, name):
    return (name,) * (2 + len(case.rule.element_slots))


def instructions(binary):
    return set(INSTRUCTION.findall(binary.assembly))


# Assembly of `device_functions` and `blockwise_functions`, which `test_assembly.py` checks.
INLINE = re.compile(r"// begin inline asm.*?// end inline asm", re.DOTALL)


def assert_exact(binary, kernel):
    assembly = INLINE.sub("", binary.assembly)
    quotients = {"div.rn.f32", "sqrt.rn.f32"} & {*INSTRUCTION.findall(binary.assembly)}
    ops = {*INSTRUCTION.findall(assembly), *quotients}
    floats = [op for op in ops if re.match(r"(add|sub|mul|fma|div|sqrt)\..*f(32|64)$", op)]
    # Without `.rn` the assembler may contract a product and a sum.
    assert [op for op in floats if ".rn." not in op] == []
    calls = kernel.source.split("def element", 1)[-1]
    assert any(op.startswith("div.rn.f") for op in ops) or "divide(" not in calls
    assert any(op.startswith("sqrt.rn.f") for op in ops) or "_f_sqrt(" not in calls
    if not LIBRARY.search(kernel.source):
        assert [op for op in ops if INEXACT.search(op) and "cvt" not in op] == []


def widths(binary, opcode):
    """Bytes that a thread moves at once between registers and memory."""
    widths_found = set()
    for op in instructions(binary):
        if match := re.fullmatch(rf"{opcode}\.global(?:\.v(\d))?\.b(\d+)", op):
            widths_found.add(int(match[1] or 1) * int(match[2]) // 8)
    return widths_found


def assert_aligned(binary, storage):
    """All streams are moved by the widest accesses that a block of them allows."""
    expected = {WIDTH * SIZES[name] // max(SIZES[key] for key in storage) for name in storage}
    for opcode in ("ld", "st"):
        assert expected <= widths(binary, opcode), opcode


def assert_element_by_element(binary, storage):
    vectors = [op for op in instructions(binary) if re.match(r"(ld|st)\.global\.v", op)]
    assert vectors == []
    assert max(widths(binary, "st")) <= max(SIZES[name] for name in storage)


def resources(binary, folder):
    """Registers of a thread, bytes of its stack, bytes of local memory; Triton ships what knows."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    file = folder / "kernel.cubin"
    file.write_bytes(binary.code)
    command = [tool, "--dump-resource-usage", file]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(re.search(rf"\b{name}:(\d+)", text)[1]) for name in ("REG", "STACK", "LOCAL")]


def assert_small(binary, folder, max_registers=REGISTERS):
    registers, stack, local = resources(binary, folder)
    calls = any(op.startswith(("div.rn", "sqrt.rn")) for op in instructions(binary))
    assert registers <= max_registers
    assert stack <= (STACK if calls else 0)
    assert local == 0


def most_registers(kernel, storage):
    widest = max(SIZES[name] for name in storage)
    if LIBRARY.search(kernel.source):
        return WIDE["power of 16 bits" if widest == 2 else "power"]
    return {2: WIDE["16 bits"], 4: REGISTERS, 8: WIDE["float64"]}[widest]


def assert_good(kernel, storage, capability, folder):
    binary = launch.compiled_for(kernel, True, capability)
    assert_exact(binary, kernel)
    assert_aligned(binary, storage)
    assert_small(binary, folder, most_registers(kernel, storage))


@pytest.mark.parametrize(("case", "name", "capability", "flush"), MATRIX, ids=label)
def test_dense_kernels_compile_within_limits(case, name, capability, flush, tmp_path):
    storage = storage_of(case, name)
    kernel = generate_update(Update(case.rule.update, storage), computed(name), flush)
    assert_good(kernel, storage, capability, tmp_path)


BY_NAME = pytest.mark.parametrize("name", [slow_unless(name == "float32", name) for name in NAMES])
BY_CAPABILITY = pytest.mark.parametrize(
    ("capability", "name"),
    [slow_unless(name == "float32", 90, name) for name in NAMES]
    + [slow_unless(False, level, "float32") for level in (80, 100)]
    + [slow_unless(False, 75, "bfloat16")],
)


@BY_NAME
def test_unaligned_kernels_access_single_elements(name):
    storage = storage_of(ADAM, name)
    kernel = generate_update(Update(ADAM.rule.update, storage), computed(name), True)
    binary = launch.compiled_for(kernel, False, 90)
    assert_exact(binary, kernel)
    assert_element_by_element(binary, storage)


@pytest.mark.parametrize("capability", [slow_unless(level == 90, level) for level in (80, 90, 100)])
@pytest.mark.parametrize("grad", ["float32", "bfloat16"])
@pytest.mark.parametrize("from_copy", [False, True])
def test_copy_kernels_compile_within_limits(capability, from_copy, grad, tmp_path):
    storage = ("float32", grad, "float32", "float32", "bfloat16")
    update = Update(ADAM.rule.update, storage, copy=True, from_copy=from_copy)
    kernel = generate_update(update, "float32", True)
    assert_good(kernel, storage, capability, tmp_path)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", ["sum", "successive", "untouched"])
def test_row_kernels_from_copies_compile_within_limits(form, kind, tmp_path):
    grad = form != "untouched"
    storage = ("float32", *("float32",) * (2 + grad), kind)
    formula, before = (ADAM.rule.update, shrunk) if grad else (ADAM.rule.update_untouched, None)
    update = Update(formula, storage, grad=grad, before=before, copy=True, from_copy=True)
    kernel = rows_kernel_of(update, form, "float32")
    binary = launch.compiled_for(kernel, True, 90)
    assert_exact(binary, kernel)
    assert_small(binary, tmp_path, most_registers(kernel, storage))


def shrunk(var, *, decay):
    return var - decay * var


@BY_CAPABILITY
def test_stage_kernels_compile_within_limits(capability, name, tmp_path):
    storage = storage_of(ADAM, name)
    update = Update(ADAM.rule.update, storage, (clip_by_value, clip_by_norm))
    kernel = generate_update(update, computed(name), True)
    assert_good(kernel, storage, capability, tmp_path)


def rows_kernel(kind, storage, name, fast=False):
    if kind == "untouched":
        update = Update(ADAM.rule.update_untouched, storage, grad=False)
    else:
        update = Update(ADAM.rule.update, storage, (from_zero,) if kind == "sum" else ())
    return rows_kernel_of(update, kind, computed(name), fast)


def rows_kernel_of(update, kind, compute, fast=False):
    if kind == "untouched":
        return generate_untouched(update, compute, True, fast)
    return generate_rows(update, compute, True, kind, fast)


@BY_CAPABILITY
@pytest.mark.parametrize("kind", ["sum", "successive", "untouched"])
def test_row_kernels_compile_within_limits(capability, name, kind, tmp_path):
    storage = storage_of(ADAM, name)[kind == "untouched" :]
    kernel = rows_kernel(kind, storage, name)
    for aligned in (True, False):
        binary = launch.compiled_for(kernel, aligned, capability)
        assert_exact(binary, kernel)
        assert_small(binary, tmp_path, most_registers(kernel, storage))
    assert_element_by_element(binary, storage)


@BY_NAME
@pytest.mark.parametrize("kind", ["sum", "successive", "untouched"])
def test_rows_are_read_16_bytes_at_a_time(name, kind):
    storage = storage_of(ADAM, name)[kind == "untouched" :]
    kernel = rows_kernel(kind, storage, name)
    assert_aligned(launch.compiled_for(kernel, True, 90), storage)


@pytest.mark.parametrize("threads", [WARP, 2 * WARP])
def test_narrow_row_kernels_compile_within_limits(threads, tmp_path):
    storage = storage_of(ADAM, "float32")
    update = Update(ADAM.rule.update, storage, (from_zero,))
    kernel = generate_rows(update, "float32", True, "sum", threads=threads)
    assert kernel.threads == threads
    binary = launch.compiled_for(kernel, True, 90)
    assert re.search(rf"\.reqntid {threads}\b", binary.assembly)
    # The row and its first entry are asked for before anything is computed of them.
    prologue, _, _ = binary.assembly.partition("add.rn.f32")
    assert prologue.count("ld.global.v4") >= len(storage)
    assert_exact(binary, kernel)
    assert_aligned(binary, storage)
    assert_small(binary, tmp_path)


@pytest.mark.parametrize(
    ("width", "kinds", "threads"),
    [
        (0, ["float32"], 32), (64, ["float32", "bfloat16"], 32), (129, ["float32"], 64),
        (256, ["bfloat16"], 32), (300, ["float32"], 128), (10**6, ["float64"], 128),
    ],
)  # fmt: skip
def test_row_width_selects_the_thread_count(width, kinds, threads):
    assert threads_for(width, kinds) == threads


def test_untouched_rows_need_one_division_per_thread():
    binary = launch.compiled_for(rows_kernel("untouched", ["float32"] * 3, "float32"), True, 90)
    assert (
        len(re.findall(r"\bdiv\.[su]32\b", binary.assembly)) <= 2
    )  # the other is of the chunk's row
    assert "bar.sync" not in binary.assembly


@BY_CAPABILITY
@pytest.mark.parametrize(
    ("formulas", "stages"),
    [
        pytest.param((gradient_squares,), (), id="one"),
        pytest.param((gradient_squares,), (clip_by_value,), id="staged"),
    ],
)
def test_measure_kernels_compile_within_limits(capability, name, formulas, stages, tmp_path):
    kernel = generate_measure(
        Measurement(formulas, (name, name), computed(name), stages), bool(stages)
    )
    binary = launch.compiled_for(kernel, True, capability)
    assert_exact(binary, kernel)
    # Four lanes of a thread, at whose width all that is read is.
    assert min(WIDTH, 4 * SIZES[name]) in widths(binary, "ld")
    assert_small(binary, tmp_path, REGISTERS)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_measure_kernels_from_copies_compile_within_limits(kind, tmp_path):
    storage = ("float32", "bfloat16", kind)
    measurement = Measurement((variable_squares,), storage, "float32", copy=True, from_copy=True)
    kernel = generate_measure(measurement, True)
    binary = launch.compiled_for(kernel, True, 90)
    assert_exact(binary, kernel)
    assert_small(binary, tmp_path, REGISTERS)


@pytest.mark.slow
def test_two_measures_spill_no_registers(tmp_path):
    formulas = (variable_squares, gradient_squares)
    kernel = generate_measure(Measurement(formulas, ("float32",) * 2, "float32"), False)
    assert_small(launch.compiled_for(kernel, True, 90), tmp_path, REGISTERS)


@BY_CAPABILITY
def test_peak_kernels_compile_within_limits(capability, name, tmp_path):
    binary = launch.compiled_for(generate_peak(name), True, capability)
    assert max(widths(binary, "ld")) >= 8
    assert_small(binary, tmp_path)


@pytest.mark.parametrize("capability", [80, 90, 100, slow_unless(False, 75)])
def test_combine_kernel_compiles_within_limits(capability, tmp_path):
    assert_small(launch.compiled_for(generate_combine(), False, capability), tmp_path)


NOISY = [
    ("bfloat16",) * 2,
    ("bfloat16",) * 4,
    ("float16",) * 4,
    ("float32", "float32", "bfloat16", "bfloat16"),
    ("bfloat16", "bfloat16", "float32", "float32"),
]


@pytest.mark.parametrize(
    ("storage", "capability"),
    [slow_unless(storage is NOISY[0], storage, 90) for storage in NOISY]
    + [slow_unless(False, NOISY[1], 75)],
    ids=label,
)
def test_random_rounding_kernels_compile_within_limits(storage, capability, tmp_path):
    rule = (ADAM if len(storage) == 4 else FIRST[0]).rule
    kernel = generate_blocks(Update(rule.update, storage, draws=True), True)
    binary = launch.compiled_for(kernel, True, capability)
    assert_exact(binary, kernel)
    assert WIDTH in widths(binary, "ld")
    assert WIDTH in widths(binary, "st")
    assert_small(binary, tmp_path, WIDE["drawn"])
    # Where chunks do not begin at eights, a thread has words of two groups.
    other_binary = launch.compiled_for(kernel, False, capability)
    assert_exact(other_binary, kernel)
    assert_element_by_element(other_binary, storage)
    multiplied = [compiled.assembly.count("mul.hi.u32") for compiled in (binary, other_binary)]
    assert 0 < multiplied[0] < multiplied[1]
    assert resources(other_binary, tmp_path)[2] == 0


CODED = [
    ("float32", "float32", "softsign8", "root8"),
    ("float32", "bfloat16", "linear8", "root8"),
    ("float32", "float32", "softsign8", "dynamic8_positive"),
    ("float32", "float32", "dynamic8", "dynamic8_positive"),
    ("bfloat16", "bfloat16", "softsign8", "root8", "split8"),
    ("bfloat16", "bfloat16", "float32", "float32", "split8"),
]


@pytest.mark.parametrize(
    ("storage", "draws", "capability"),
    [
        slow_unless(storage in (CODED[0], CODED[-1]), storage, draws, 90)
        for storage, draws in zip(CODED, (False, True, False, True, True, False))
    ]
    + [slow_unless(False, CODED[0], True, 90), slow_unless(False, CODED[0], False, 100)]
    + [slow_unless(False, CODED[-2], draws, 75) for draws in (False, True)],
    ids=label,
)
def test_codec_kernels_compile_within_limits(storage, draws, capability, tmp_path):
    formula = ADAM.rule.update
    if "split8" in storage:
        formula = split_rule(ADAM.rule).update
    kernel = generate_blocks(Update(formula, storage, draws=draws), True, fast=True)
    for aligned in (True, False):
        binary = launch.compiled_for(kernel, aligned, capability)
        # Whatever math is chosen: a code would be another one.
        assert_exact(binary, kernel)
        assert resources(binary, tmp_path)[2] == 0
        if aligned:
            assert_small(binary, tmp_path, WIDE["drawn" if draws else "coded"])
            assert 8 in widths(binary, "ld") or WIDTH in widths(binary, "ld")
        if "split8" not in storage:  # four codes at a time, wherever elements begin
            for opcode in ("ld", "st"):
                assert min(widths(binary, opcode)) >= min(SIZES.get(x, 4) for x in storage[:2])


def both_sides(var, grad, *, rows, columns, limit):
    return grad * grad * rows + columns * limit


def update_of_lines(var, grad, m, *, rows, columns, limit):
    return var - m * rows / columns - limit, m + grad


VECTORS = {"rows": "row", "columns": "column"}
MEASURES = tuple(
    Measure(both_sides, f"{axis}_{reduce}", axis, reduce)
    for axis, reduce in (("row", "sum"), ("column", "sum"), ("variable", "largest"))
)


@BY_NAME
def test_line_kernels_compile_within_limits(name, tmp_path):
    storage, compute = (name,) * 3, computed(name)
    kernel = generate_update(
        Update(update_of_lines, storage, vectors=(*VECTORS.items(),)), compute, True
    )
    assert kernel.vectors == (*VECTORS,)
    binary = launch.compiled_for(kernel, True, 90)
    assert_exact(binary, kernel)
    assert_aligned(binary, storage)
    assert (
        len(re.findall(r"\bdiv\.[su]32\b", binary.assembly)) > 0
    )  # of elements; of a chunk in 64 bits
    assert resources(binary, tmp_path)[2] == 0


LAYOUTS = [
    Layout((3, 3)), Layout((4, 4)), Layout((8, 8)),
    *(Layout(None, columns) for columns in (32, 64, 128, 1024)),
]  # fmt: skip
PASSES = {"mixed": MEASURES, "Adafactor": TORCH_ADAFACTOR.passes[:3]}
LINE_MEASURES = cover_values(itertools.product(NAMES, PASSES, LAYOUTS), 2)


@pytest.mark.parametrize(
    ("name", "passes", "layout"),
    [slow_unless(row[0] == "float32", *row) for row in LINE_MEASURES],
    ids=str,
)
def test_line_measure_kernels_compile_within_limits(name, passes, layout, tmp_path):
    measures = PASSES[passes]
    measurement = Measurement(
        distinct_formulas(measures), (name,) * 3, computed(name), vectors=(*VECTORS.items(),)
    )
    measuring = MeasureBuilder(measures, measurement, True)
    if layout.sides:
        kernel = generate_short(measuring, layout.sides)
    else:
        kernel = generate_lines(measuring, layout.columns)
    binary = launch.compiled_for(kernel, False, 90)
    assert_exact(binary, kernel)
    assert "fma" not in binary.assembly
    assert kernel.threads == (128 if layout.sides else min(layout.columns, 128))
    # Next to nothing spills to local memory.
    _, stack, local = resources(binary, tmp_path)
    assert stack <= (STACK if name == "float64" else 0)
    assert local == 0
    if layout.sides:  # nothing moves between threads
        assert not re.search(r"bar\.sync|shfl", binary.assembly)


def fast_kernel(kind, name="float32"):
    storage = storage_of(ADAM, name)
    if kind == "dense":
        return generate_update(Update(ADAM.rule.update, storage), computed(name), True, fast=True)
    return rows_kernel(kind, storage, name, fast=True)


@pytest.mark.parametrize("kind", ["dense", "sum", "successive"])
def test_fast_kernels_use_fma_and_approximate_division(kind, tmp_path):
    kernel, storage = fast_kernel(kind), storage_of(ADAM, "float32")
    exact = rows_kernel(kind, storage, "float32") if kind != "dense" else None
    exact = exact or generate_update(Update(ADAM.rule.update, storage), "float32", True)
    assert kernel.name != exact.name
    ops = instructions(launch.compiled_for(kernel, True, 90))
    assert any(op.startswith("fma.rn") and op.endswith("f32") for op in ops)
    assert not [op for op in ops if re.match(r"(div|sqrt)\.rn", op)]
    assert {"div.full.f32", "sqrt.approx.ftz.f32"} <= ops
    ops = instructions(launch.compiled_for(exact, True, 90))
    assert not [op for op in ops if op.startswith("fma")]
    assert any(op.startswith("div.rn") for op in ops)
    assert_small(launch.compiled_for(kernel, True, 90), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "name"), [*zip(FIRST, itertools.cycle(("float32", "bfloat16")))], ids=label
)
def test_every_rule_has_fast_kernels(case, name, tmp_path):
    storage = storage_of(case, name)
    kernel = generate_update(Update(case.rule.update, storage), computed(name), True, fast=True)
    binary = launch.compiled_for(kernel, True, 90)
    assert not [op for op in instructions(binary) if re.match(r"(div|sqrt)\.rn\.f32", op)]
    assert_aligned(binary, storage)
    registers, stack, local = resources(binary, tmp_path)
    assert registers <= most_registers(kernel, storage)
    assert stack <= (0 if name == "float32" else STACK)
    assert local == 0


def test_fast_float64_kernels_use_fma_and_exact_division():
    ops = instructions(launch.compiled_for(fast_kernel("dense", "float64"), True, 90))
    assert any(op.startswith("fma.rn.f64") for op in ops)
    assert "div.rn.f64" in ops


def through_the_library(var, grad, *, rate):
    return (var - rate * exp(log(grad)),)


def test_exponentials_and_logarithms_are_computed_in_float64():
    kernel = generate_update(Update(through_the_library, ("float32",) * 2), "float32", True)
    ops = instructions(launch.compiled_for(kernel, True, 90))
    assert not [op for op in ops if re.match(r"ex2|lg2|fma\.rn\.f32", op)]


def sampled_kernel(kind, name, flush):
    """Return a kernel for a sample over architectures."""
    storage, compute = storage_of(ADAM, name), computed(name)
    update = Update(ADAM.rule.update, storage)
    if kind in ("sum", "successive", "untouched"):
        return rows_kernel(kind, storage[kind == "untouched" :], name)
    if kind in ("tile", "short"):
        formulas, vectors = distinct_formulas(MEASURES), tuple(VECTORS.items())
        measurement = Measurement(formulas, (name,) * 3, compute, vectors=vectors)
        builder = MeasureBuilder(MEASURES, measurement, flush)
        tile = kind == "tile"
        return generate_lines(builder, 128) if tile else generate_short(builder, (4, 4))
    kernels = {
        "dense": lambda: generate_update(update, compute, flush),
        "fast": lambda: fast_kernel("dense", name),
        "narrow": lambda: generate_rows(update, compute, flush, "sum", threads=WARP),
        "measure": lambda: generate_measure(
            Measurement((gradient_squares,), (name, name), compute, (clip_by_value,)), flush
        ),
        "peak": lambda: generate_peak(name),
        "combine": generate_combine,
        "lines": lambda: generate_update(
            Update(update_of_lines, (name,) * 3, vectors=tuple(VECTORS.items())), compute, flush
        ),
        "drawn": lambda: generate_blocks(Update(ADAM.rule.update, storage, draws=True), flush),
        "coded": lambda: generate_blocks(Update(ADAM.rule.update, CODED[0]), flush),
        "split": lambda: generate_blocks(Update(split_rule(ADAM.rule).update, CODED[-1]), flush),
        "library": lambda: generate_update(
            Update(through_the_library, (name, name)), compute, flush
        ),
    }
    return kernels[kind]()


# Each kind, dtype, way of denormals and alignment with each architecture, but not with each other.
SAMPLE = [
    ("dense", "float32", False, True, "gfx942"),
    ("dense", "float64", True, True, "gfx90a"),
    ("dense", "float16", False, True, 75),
    ("fast", "float32", True, True, "gfx942"),
    ("sum", "bfloat16", True, True, "gfx942"),
    ("successive", "float64", True, False, 75),
    ("untouched", "float16", True, False, "gfx90a"),
    ("narrow", "float32", False, True, "gfx942"),
    ("measure", "bfloat16", True, True, "gfx90a"),
    ("peak", "float64", True, True, "gfx942"),
    ("combine", "float64", True, False, "gfx942"),
    ("lines", "float32", True, False, 75),
    ("lines", "float64", False, True, "gfx942"),
    ("tile", "float32", True, False, "gfx942"),
    ("tile", "float64", True, False, 75),
    ("short", "float16", True, False, "gfx90a"),
    ("drawn", "bfloat16", False, False, "gfx942"),
    ("coded", "float32", True, True, "gfx942"),
    ("split", "bfloat16", False, True, "gfx90a"),
    ("library", "float32", True, True, "gfx942"),
]
AMD_INSTRUCTION = re.compile(r"^\s+([a-z]\w+?)(?:_e32|_e64|_sdwa|_dpp)?\s", re.MULTILINE)


def assert_good_for_amd(binary, kernel):
    """Fused operations are those of divisions and roots; denormals are kept, nothing spills."""
    counts = Counter(AMD_INSTRUCTION.findall(binary.assembly))

    def count(pattern):
        return sum(n for op, n in counts.items() if re.fullmatch(pattern, op))

    divisions = count(r"v_div_fixup_f(32|64)")
    fused = count(r"v_(pk_)?(fma|fmac|mad|mac)_(legacy_)?f(32|64)")
    # Functions of the library, and quotients of integers, are computed with others.
    has_others = LIBRARY.search(kernel.source) or count("v_rcp_iflag_f32|v_trunc_f32")
    if kernel.fast:
        assert fused > 5 * divisions
    elif not has_others:
        assert fused == 5 * divisions + 2 * count("v_sqrt_f32") + 7 * count("v_rsq_f64")
        assert count(r"v_rcp_f(32|64)") == divisions
        assert count(r"v_(rsq_f32|(exp|log|sin|cos)_\w+)") == 0
    settings = dict(re.findall(r"^\s+\.(\w+):?\s+(\d+)$", binary.assembly, re.MULTILINE))
    for setting, value in (
        ("amdhsa_float_denorm_mode_32", 3), ("amdhsa_float_denorm_mode_16_64", 3),
        ("vgpr_spill_count", 0), ("private_segment_fixed_size", 0),
        ("wavefront_size", 64), ("max_flat_workgroup_size", binary.threads),
        ("kernarg_segment_size", 8 * binary.parameters),
    ):  # fmt: skip
        assert int(settings[setting]) == value, setting
    assert binary.threads == max(kernel.threads, 64)
    assert binary.shared <= 1 << 14
    assert binary.code.startswith(b"\x7fELF")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name", "flush", "aligned", "architecture"), SAMPLE)
def test_kernels_compile_for_devices_that_have_not_run_them(
    kind, name, flush, aligned, architecture, tmp_path
):
    kernel = sampled_kernel(kind, name, flush)
    binary = launch.compiled_for(kernel, aligned, architecture)
    if isinstance(architecture, str):
        assert_good_for_amd(binary, kernel)
    else:
        assert_exact(binary, kernel)
        assert resources(binary, tmp_path)[2] == 0
