"""Write the source of a CPU kernel: a rule's formula inlined into a loop over a work table."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from thalweg._engines.codegen import LARGEST, FormulaWriter, Kernel, Update, digest, indent_by
from thalweg._engines.cpu.machine_code import tuning
from thalweg._engines.formula_parser import FUNCTION_PREFIX, LITERAL


class NumberFormat(NamedTuple):
    """How numbers of a storage type are addressed, and templates to read and write them."""

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

_KERNEL = """
def KERNEL_NAME(argument):
    work = int64_pointer(address_of(argument))
    slices, flush = work[1], work[2]
    bounds, chunks = int64_pointer(work[3]), int64_pointer(work[4])
    base, scalar_row = int64_pointer(work[5]), int64_pointer(work[6])
    scalars = {compute}_pointer(work[7])
    one = {literal}(flush | 1)
    found = begin_denormals(flush)
    ticket = take_ticket(work)
    while ticket < slices:
        for chunk in range(bounds[ticket], bounds[ticket + 1]):
            tensor = chunks[4 * chunk]
            offset, grad_offset = chunks[4 * chunk + 1], chunks[4 * chunk + 2]
            length = chunks[4 * chunk + 3]
{pointers}
            row = scalar_row[tensor] * {n_scalars}
{scalars}
{elements}
        ticket = take_ticket(work)
    end_denormals(found)
"""

# What a copy may have of a number, and where a step begins: at the variable or, where others wrote
# to its copy, at that.
_SATURATED = """def saturated(value):
    kept = -{limit} if value < -{limit} else value
    return {limit} if kept > {limit} else kept"""
_RESUMED = """def resumed(value, bits, one):
    return value if {matches_copy} else {compute}({loaded})"""

LINE = 64  # bytes of a cache line

# Divisions and roots keep a processor from running far enough ahead of them to have its memory
# fetched in time, above all where a page ends. Nobody fetches what is only written: copies, and
# slots that choices leave unread.
BLOCK = 128  # elements between two looks ahead
_SLOW = {FUNCTION_PREFIX + name for name in ("sqrt", "exp", "log", "power", "where")}


@cache
def compiler_digest() -> str:
    """A hash of what makes machine code of a source: llvmlite and our compiler."""
    source_texts = (
        Path(__file__).with_name(name).read_text() for name in ("compiler.py", "primitives.py")
    )
    # Asked of the installation: what it imports takes longer than a step.
    return digest(version("llvmlite"), *source_texts)


def name_kernel(
    kind: str, definitions: str, text: str, scalars: tuple[str, ...], measures: int = 0
) -> Kernel:
    """The kernel of a text in which its name is KERNEL_NAME."""
    name = f"{kind}_{digest(definitions, text, compiler_digest())}"
    return Kernel(name, definitions + text.replace("KERNEL_NAME", name), scalars, measures)


class Element:
    """Writes what a kernel does to element i of what p0, p1, ... point at.

    Args:
        update: What becomes of it.
        compute: The type of the arithmetic, "float32" or "float64".
    """

    def __init__(self, update: Update, compute: str) -> None:
        self.update, self.compute = update, compute

    def define_functions(self) -> str:
        """The functions that its lines call."""
        definitions = self.update.define_functions(FormulaWriter())
        if self.update.copy:
            definitions |= of_copies(self.update.storage[-1], self.compute)
        header = HEADER.format(literal=LITERAL, compute=self.compute)
        return header + "\n\n".join(definitions.values()) + "\n"

    def update_element(self, vectors: Mapping[str, str] | None = None) -> list[str]:
        """Read what the formula takes, compute it, and write what changes.

        Args:
            vectors: As for `Update.local_scalars`.
        """
        update = self.update
        reads = [
            f"{update.name_of(stream)} = {self.begins_at(stream)}"
            for stream in update.read_streams()
        ]
        writes: list[str] = []
        for result, stream in update.written_results():
            # A number that was chosen and not computed is flushed by `one`, which LLVM cannot know.
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
        """What the formula begins with: a number that was read; the variable after `before`."""
        if stream or not self.update.before:
            return self.load_value(stream)
        return STORAGE[self.update.storage[0]].load.format(self.prepare_variable())

    def prepare_variable(self) -> str:
        """The variable after `before`, as it is stored."""
        value = self.update.apply_stages(self.update.before, self.load_value(0))
        return STORAGE[self.update.storage[0]].save.format(f"{value} * one")

    def load_value(self, stream: int) -> str:
        """A number in the type of the arithmetic."""
        value, kind = self.read_value(stream), self.update.storage[stream]
        if ("float32" if kind in LARGEST else kind) != self.compute:
            value = f"{LITERAL}({value})"
        if self.update.from_copy and stream == 0:
            value = f"resumed({value}, p{len(self.update.storage) - 1}[i], one)"
        return value

    def read_value(self, stream: int) -> str:
        """A number as it is read."""
        return STORAGE[self.update.storage[stream]].load.format(f"p{stream}[i]")

    def store_value(self, stream: int, value: str) -> str:
        """Write a number."""
        return f"p{stream}[i] = {STORAGE[self.update.storage[stream]].save.format(value)}"

    def store_copy(self, value: str) -> str:
        """Write the copy of a number."""
        return self.store_value(len(self.update.storage) - 1, f"saturated({value}) * one")


def generate_update(update: Update, compute: str) -> Kernel:
    """The kernel of an update of chunks of tensors, in "float32" or "float64"."""
    element = Element(update, compute)
    definitions, pointers = element.define_functions(), point_at_chunk(update)
    return write_kernel(element, definitions, pointers, _update_chunk(definitions, element))


def write_kernel(
    element: Element, definitions: str, pointers: list[str], elements: list[str]
) -> Kernel:
    """The kernel of an update of chunks.

    Args:
        element: What becomes of an element.
        definitions: The functions that are called.
        pointers: Lines that point at what a chunk has of each stream.
        elements: Lines that update its elements.
    """
    scalars = element.update.scalars
    rows = [f"s{k} = scalars[row + {k}]" for k in range(len(scalars))]
    text = _KERNEL.format(
        literal=LITERAL,
        compute=element.compute,
        n_scalars=len(scalars),
        pointers=indent_by(pointers, 3),
        scalars=indent_by(rows or ["pass"], 3),
        elements=indent_by(elements, 3),
    )
    return name_kernel("k", definitions, text, scalars)


def of_copies(storage: str, compute: str) -> dict[str, str]:
    """The functions that have to do with copies of a storage type."""
    _, _, load, save = STORAGE[storage]
    saturated_value, loaded = "saturated(value) * one", load.format("bits")
    matches_copy = f"{save.format(saturated_value)} == bits"
    if storage == "bfloat16":
        matches_copy = f"is_nearest_bfloat({saturated_value}, bits)"
    return {
        "saturated": _SATURATED.format(limit=f"{compute}({LARGEST[storage]!r})"),
        "resumed": _RESUMED.format(matches_copy=matches_copy, loaded=loaded, compute=compute),
    }


def point_at_chunk(update: Update) -> list[str]:
    """Point at what a chunk has of each stream."""
    lines: list[str] = []
    for stream, kind in enumerate(update.storage):
        start = "grad_offset" if update.grad and stream == 1 else "offset"
        lines.append(f"at{stream} = {first_of(update, stream)} + {start} * {STORAGE[kind].size}")
        lines.append(f"p{stream} = {STORAGE[kind].pointer}(at{stream})")
    return lines


def first_of(update: Update, stream: int) -> str:
    """Where a stream of the tensor of a chunk begins."""
    return f"base[tensor * {update.width} + {stream}]"


def _update_chunk(definitions: str, element: Element) -> list[str]:
    """Update the elements of a chunk one after the other."""
    lines, storage = element.update_element(), element.update.storage
    inner, distance = indent_by(lines, 1).splitlines(), tuning().prefetch
    # The processor does not fetch lines ahead that are only written, such as those of a copy.
    gains = element.update.copy or _prefetch_pays("\n".join([definitions, *lines]), len(storage))
    if not (distance and gains):
        return ["for i in each(length):", *inner]
    sizes = [STORAGE[kind].size for kind in storage]
    blocks = [f"for begin in range(0, length, {BLOCK}):"]
    for size in dict.fromkeys(sizes):
        first = f"begin * {size} + {distance}"
        blocks.append(f"    for line in range({first}, {first} + {BLOCK * size}, {LINE}):")
        streams = [stream for stream, stream_size in enumerate(sizes) if stream_size == size]
        blocks += [f"        prefetch(at{stream} + line)" for stream in streams]
    blocks.append(f"    for i in each(begin, min(begin + {BLOCK}, length)):")
    return blocks + indent_by(inner, 1).splitlines()


def _prefetch_pays(source: str, streams: int) -> bool:
    """Return whether an update is faster with prefetches.

    Args:
        source: The source of the update.
        streams: The number of tensors that it reads or writes.
    """
    # Divisions, roots and calls fill the window of the processor before it reaches the next cache
    # lines, above all at the end of a page.
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    is_slow = not names.isdisjoint(_SLOW) or any(isinstance(node, ast.Div) for node in nodes)
    return streams > 2 and is_slow
