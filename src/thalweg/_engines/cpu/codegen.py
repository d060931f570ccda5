"""Write the source of CPU kernels, which compute a formula for chunks (ranges of elements)."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from thalweg._engines.codegen import (
    LARGEST,
    FormulaWriter,
    Kernel,
    TracedUpdate,
    Update,
    digest,
    fill,
    join_lines,
    nest,
)
from thalweg._engines.cpu.machine_code import tuning
from thalweg._engines.formula_source import FUNCTION_PREFIX, LITERAL


class NumberFormat(NamedTuple):
    """Pointer type and bytes of a storage type, and templates that load and save a number."""

    pointer: str
    size: int
    load: str
    save: str


STORAGE = {
    "float32": NumberFormat("float32_pointer", 4, "{0}", "{0}"),
    "float64": NumberFormat("float64_pointer", 8, "{0}", "{0}"),
    "float16": NumberFormat("uint16_pointer", 2, "half_to_float({0})", "float_to_half({0})"),
    "bfloat16": NumberFormat("uint16_pointer", 2, "bfloat_to_float({0})", "float_to_bfloat({0})"),
}

HEADER = "{literal} = {compute}\n\n\n"

# Threads take slices of the work until none is left.
_KERNEL = """
def KERNEL_NAME(argument):
    work = int64_pointer(address_of(argument))
    {setup}
    {begin}
    ticket = take_ticket(work)
    while ticket < slices:
        {slice}
        ticket = take_ticket(work)
    {end}
"""

# Of a kernel over the chunks of a work table. As `flush` is 0 or 1, `one` is 1; LLVM cannot tell.
_TABLE = """
slices, flush = work[1], work[2]
bounds, chunks = int64_pointer(work[3]), int64_pointer(work[4])
base, scalar_row = int64_pointer(work[5]), int64_pointer(work[6])
scalars = {compute}_pointer(work[7])
one = {literal}(flush | 1)
"""
_CHUNK = """
for chunk in range(bounds[ticket], bounds[ticket + 1]):
    tensor = chunks[4 * chunk]
    offset, grad_offset = chunks[4 * chunk + 1], chunks[4 * chunk + 2]
    length = chunks[4 * chunk + 3]
    {pointers}
    row = scalar_row[tensor] * {n_scalars}
    {scalars}
    {elements}
"""

# `saturated` bounds a number by the range of a copy. `resumed` returns the variable or, if others
# have written to its copy, the copy.
_SATURATED = """def saturated(value):
    kept = -{limit} if value < -{limit} else value
    return {limit} if kept > {limit} else kept"""
_RESUMED = """def resumed(value, bits, one):
    return value if {matches_copy} else {compute}({loaded})"""

LINE = 64  # bytes of a cache line

BLOCK = 128  # elements between two prefetches
_SLOW = {FUNCTION_PREFIX + name for name in ("sqrt", "exp", "log", "power", "where")}


@cache
def compiler_digest() -> str:
    """Return a hash of the version of llvmlite and of the sources of the compiler."""
    source_texts = (
        Path(__file__).with_name(name).read_text() for name in ("compiler.py", "primitives.py")
    )
    # Importing llvmlite for its version would take longer than a step.
    return digest(version("llvmlite"), *source_texts)


def write_threads(setup: list[str], slice_lines: list[str], flushes: bool = True) -> list[str]:
    """Return the lines of a kernel function that several threads call at once.

    The work is divided into slices. A call runs one slice after another until no slice is left.

    Args:
        setup: Lines that assign `slices`, the number of slices, and `flush`, 0 or 1.
        slice_lines: Lines that run the slice with the index `ticket`.
        flushes: True for a kernel that treats denormals as zero if `flush` is 1.
    """
    return fill(
        _KERNEL,
        setup=setup,
        begin=["found = begin_denormals(flush)"] * flushes,
        slice=slice_lines,
        end=["end_denormals(found)"] * flushes,
    )


def read_table(compute: str, literal: str = LITERAL) -> list[str]:
    """Return lines that load the fields of a work table, with scalars of the type `compute`.

    Args:
        literal: The name of the type of `one`, a variable with the value 1, unknown to LLVM.
    """
    return fill(_TABLE, compute=compute, literal=literal)


def load_scalars(count: int) -> list[str]:
    """Return lines that load the scalars `s0`, `s1`, ... of the table's row from `row` on."""
    return [f"s{k} = scalars[row + {k}]" for k in range(count)]


def name_kernel(
    kind: str, definitions: str, lines: list[str], scalars: tuple[str, ...], measures: int = 0
) -> Kernel:
    """Return a kernel whose source is `definitions`, followed by `lines`.

    The kernel's name is the letter `kind` and a hash of the source. The name replaces KERNEL_NAME
    in `lines`. `scalars` and `measures` become fields of the kernel.
    """
    text = join_lines(lines)
    # The disk cache finds kernels by name, so the name depends on the compiler's sources, too.
    name = f"{kind}_{digest(definitions, text, compiler_digest())}"
    return Kernel(name, definitions + text.replace("KERNEL_NAME", name), scalars, measures)


class Element:
    """Writer of kernel lines that update element `i`. Pointer `p{k}` is for tensor k of the update.

    Args:
        compute: The type of the arithmetic, "float32" or "float64".
    """

    def __init__(self, update: TracedUpdate, compute: str) -> None:
        self.update, self.compute = update, compute

    def define_functions(self) -> str:
        """Return the text of the functions that the lines of an element call."""
        definitions = self.update.define_functions(FormulaWriter())
        if self.update.copy:
            definitions |= define_copy_functions(self.update.storage[-1], self.compute)
        header = HEADER.format(literal=LITERAL, compute=self.compute)
        return header + "\n\n".join(definitions.values()) + "\n"

    def point_at_chunk(self) -> list[str]:
        """Return lines that set address `at{k}` and pointer `p{k}` of each tensor k of a chunk."""
        lines: list[str] = []
        for stream, kind in enumerate(self.update.storage):
            start = "grad_offset" if self.update.grad and stream == 1 else "offset"
            first = first_of(self.update, stream)
            lines.append(f"at{stream} = {first} + {start} * {STORAGE[kind].size}")
            lines.append(f"p{stream} = {STORAGE[kind].pointer}(at{stream})")
        return lines

    def update_element(self, vectors: Mapping[str, str] | None = None) -> list[str]:
        """Return lines that load an element's inputs, compute the formula, and store the results.

        Args:
            vectors: {parameter: expression}, for parameters with a number per row or column. The
                expression is the number at element `i`. By default, `read_vectors` writes it.
        """
        update = self.update
        reads = [
            f"{update.name_of(stream)} = {self.begins_at(stream)}"
            for stream in update.read_streams()
        ]
        writes: list[str] = []
        for result, stream in update.written_results():
            # A product with `one` flushes a number that was selected and not computed. LLVM does
            # not know the value of `one` and keeps the product.
            value = f"out{result}" if update.formula.is_rounded(result) else f"out{result} * one"
            writes.append(self.store_value(stream, value))
        if update.writes_copy():
            writes.append(self.store_copy("out0"))
        return [
            *update.local_scalars(vectors),
            *reads,
            *update.staged_gradient(),
            *update.compute_results(FormulaWriter()),
            *(writes or ["pass"]),
        ]

    def begins_at(self, stream: int) -> str:
        """Return an expression for a stream's input to the formula, in the type of the arithmetic.

        It is the loaded number. The variable (stream 0) is first changed by the stages `before`.
        """
        if stream or not self.update.before:
            return self.load_value(stream)
        return STORAGE[self.update.storage[0]].load.format(self.prepare_variable())

    def prepare_variable(self) -> str:
        """Return an expression for the variable after `before`, in its storage type."""
        value = self.update.apply_stages(self.update.before, self.load_value(0))
        return STORAGE[self.update.storage[0]].save.format(f"{value} * one")

    def load_value(self, stream: int) -> str:
        """Return an expression for a stream's number, converted to the type of the arithmetic."""
        value, kind = self.read_value(stream), self.update.storage[stream]
        if ("float32" if kind in LARGEST else kind) != self.compute:
            value = f"{LITERAL}({value})"
        if self.update.from_copy and stream == 0:
            value = f"resumed({value}, p{len(self.update.storage) - 1}[i], one)"
        return value

    def read_value(self, stream: int) -> str:
        """Return an expression that loads a stream's number, of any type."""
        return STORAGE[self.update.storage[stream]].load.format(f"p{stream}[i]")

    def store_value(self, stream: int, value: str) -> str:
        return f"p{stream}[i] = {STORAGE[self.update.storage[stream]].save.format(value)}"

    def store_copy(self, value: str) -> str:
        """Return a statement that stores an expression, saturated, in the low-precision copy."""
        return self.store_value(len(self.update.storage) - 1, f"saturated({value}) * one")


def generate_update(update: Update, compute: str) -> Kernel:
    """Return the kernel that updates chunks of tensors, in arithmetic of type `compute`."""
    element = Element(update.traced, compute)
    return write_kernel(element, _update_chunk(element))


def write_kernel(
    element: Element, elements: list[str], kind: str = "k", setup: Sequence[str] = ()
) -> Kernel:
    """Return a kernel that runs `elements` for each chunk, a range of elements.

    Args:
        element: The writer that provides the scalars, type, functions and pointers of the kernel.
        elements: Lines that update the elements of a chunk.
        kind: The first letter of the kernel's name.
        setup: Lines that run once, before all chunks.
    """
    scalars = element.update.scalars
    chunk = fill(
        _CHUNK,
        pointers=element.point_at_chunk(),
        n_scalars=len(scalars),
        scalars=load_scalars(len(scalars)) or ["pass"],
        elements=elements,
    )
    lines = write_threads([*read_table(element.compute), *setup], chunk)
    return name_kernel(kind, element.define_functions(), lines, scalars)


def define_copy_functions(kind: str, compute: str) -> dict[str, str]:
    """Return {name: source} of two kernel functions for a variable with a 16-bit copy.

    `saturated(value)` clamps a number to the range of the copy's dtype. `resumed(value, bits, one)`
    compares a variable's number with `bits`, the copy's number. It returns `value` if `value`
    rounds to `bits`. Otherwise it returns the copy's number.

    Args:
        kind: The storage type of the copy.
    """
    _, _, load, save = STORAGE[kind]
    saturated_value, loaded = "saturated(value) * one", load.format("bits")
    matches_copy = f"{save.format(saturated_value)} == bits"
    if kind == "bfloat16":
        matches_copy = f"is_nearest_bfloat({saturated_value}, bits)"
    return {
        "saturated": _SATURATED.format(limit=f"{compute}({LARGEST[kind]!r})"),
        "resumed": _RESUMED.format(matches_copy=matches_copy, loaded=loaded, compute=compute),
    }


def first_of(update: TracedUpdate, stream: int) -> str:
    """Return an expression for the address of a stream of the chunk's tensor."""
    return f"base[tensor * {update.width} + {stream}]"


def _update_chunk(element: Element) -> list[str]:
    """Return kernel lines that update elements 0 to `length - 1` of a chunk.

    If `_gains_by_prefetches` returns True, the lines also prefetch memory.
    """
    storage, distance = element.update.storage, tuning().prefetch
    if not distance or not _gains_by_prefetches(element):
        return nest("for i in each(length):", element.update_element())
    sizes = [STORAGE[kind].size for kind in storage]
    block: list[str] = []
    for size in dict.fromkeys(sizes):
        first = f"begin * {size} + {distance}"
        streams = [stream for stream, stream_size in enumerate(sizes) if stream_size == size]
        block += nest(
            f"for line in range({first}, {first} + {BLOCK * size}, {LINE}):",
            [f"prefetch(at{stream} + line)" for stream in streams],
        )
    lines = element.update_element()
    block += nest(f"for i in each(begin, min(begin + {BLOCK}, length)):", lines)
    return nest(f"for begin in range(0, length, {BLOCK}):", block)


def _gains_by_prefetches(element: Element) -> bool:
    """Return True if prefetches make an update faster: if it writes a 16-bit copy, or is slow.

    A slow update has over two tensors, and divides or calls functions in `_SLOW`.
    """
    # The processor does not fetch lines ahead that are only written, such as those of a copy.
    if element.update.copy or len(element.update.storage) <= 2:
        return element.update.copy
    # Divisions, roots and calls fill the window of the processor before it reaches the next cache
    # lines, above all at the end of a page.
    source = "\n".join([element.define_functions(), *element.update_element()])
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return not names.isdisjoint(_SLOW) or any(isinstance(node, ast.Div) for node in nodes)
