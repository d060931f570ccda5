"""Write the source of a CPU kernel: a rule's formula inlined into a loop over a work table."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from thalweg.engines.cpu import store
from thalweg.engines.transcribe import (
    FUNCTION_PREFIX,
    HELPER_PREFIX,
    LITERAL,
    LOCAL_PREFIX,
    Transcript,
    check_counts,
    transcribe,
)
from thalweg.formula import Formula

# How each storage type is addressed, read and written: pointer, item size, load, store.
STORAGE = {
    "float32": ("float32_pointer", 4, "{0}", "{0}"),
    "float64": ("float64_pointer", 8, "{0}", "{0}"),
    "float16": ("uint16_pointer", 2, "half_to_float({0})", "float_to_half({0})"),
    "bfloat16": ("uint16_pointer", 2, "bfloat_to_float({0})", "float_to_bfloat({0})"),
}

# The largest number of each type that a copy of a variable may have; beyond it copies saturate.
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}

HEADER = "{literal} = {compute}\n\n\n"

_KERNEL = """
def {name}(argument):
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

_ROWS = """
def {name}(argument):
    work = int64_pointer(address_of(argument))
    slices, flush, groups, share, width = work[1], work[2], work[3], work[4], work[5]
    row_of, first = int64_pointer(work[6]), int32_pointer(work[7])
    following, base = int32_pointer(work[8]), int64_pointer(work[9])
    scalars = {compute}_pointer(work[10])
    scratch = work[11] + take_ticket(int64_pointer(address_of(argument) + 104)) * work[12]
    one = {literal}(flush | 1)
    row = 0
{scalars}
    found = begin_denormals(flush)
    ticket = take_ticket(work)
    while ticket < slices:
        for group in range(ticket * share, min((ticket + 1) * share, groups)):
{prefetches}
            offset = row_of[group] * width
            entry = int64(first[group])
{update}
        ticket = take_ticket(work)
    end_denormals(found)
"""

# What a copy may have of a number, and where a step begins: at the variable or, where others wrote
# to its copy, at that.
_SATURATED = """def saturated(value):
    kept = -{limit} if value < -{limit} else value
    return {limit} if kept > {limit} else kept"""
_RESUMED = """def resumed(value, bits, one):
    return value if {saved} == bits else {compute}({loaded})"""

AHEAD = 8  # rows between the one that is updated and the one that is prefetched
SHORT = 256  # elements of a row that are prefetched
LINE = 64  # bytes of a cache line

# Divisions and roots keep a processor from running far enough ahead of them to have its memory
# fetched in time, above all where a page ends. Nobody fetches what is only written: copies, and
# slots that choices leave unread.
BLOCK = 128  # elements between two looks ahead
DISTANCE = 2048  # bytes between what is updated and what is prefetched
_SLOW = {FUNCTION_PREFIX + name for name in ("sqrt", "exp", "log", "power", "where")}


@dataclass(frozen=True)
class Kernel:
    """A generated kernel.

    Attributes:
        name: Name of its file and its function; holds the hash of everything that matters to it.
        source: Its text.
        scalars: The scalars it takes, in the order of its scalar rows.
        measures: How many numbers it makes of each leaf, if it measures.
    """

    name: str
    source: str
    scalars: tuple[str, ...]
    measures: int = 0


@cache
def versions() -> str:
    """A hash of what makes machine code of a source: llvmlite and our compiler."""
    own = (Path(__file__).with_name(name).read_text() for name in ("compiler.py", "primitives.py"))
    # Asked of the installation: what it imports takes longer than a step.
    return store.digest(version("llvmlite"), *own)


def indented(lines: list[str], depth: int) -> str:
    """Lines of a body so many levels deep."""
    return "\n".join("    " * depth + line for line in lines)


def _stage_names(stages: tuple[Formula, ...], prefix: str) -> list[tuple[str, Transcript]]:
    return [(f"{prefix}{index}", transcribe(stage)) for index, stage in enumerate(stages)]


def applied(stages: Sequence[tuple[str, Transcript]], position: dict[str, int], value: str) -> str:
    """An expression for a value after stages."""
    for name, stage in stages:
        arguments = ", ".join([value, *(f"s{position[scalar]}" for scalar in stage.scalars)])
        value = f"{FUNCTION_PREFIX}{name}({arguments})"
    return value


def generate(
    formula: Formula,
    stages: tuple[Formula, ...],
    storage: tuple[str, ...],
    compute: str,
    grad: bool,
    duplicates: Literal["sum", "successive"] | None = None,
    copy: bool = False,
    entries: tuple[Formula, ...] = (),
    before: Formula | None = None,
    from_copy: bool = False,
) -> Kernel:
    """The kernel that runs `formula` over tensors of the given storage types.

    Args:
        formula: `update`, `update_sparse` or `update_untouched` of a rule.
        stages: Formulas `(grad, *, scalars) -> grad` applied to the gradient first.
        storage: Storage types of variable, gradient (if any), slots and copy (if any).
        compute: "float32" or "float64".
        grad: Whether the formula takes a gradient.
        duplicates: None for a kernel over chunks of tensors. For one over rows that a sparse
            gradient names: what happens to a row that it names several times.
        copy: Whether the last of `storage` is a copy of the variable in another type, which is
            written and not read. A number that is too large for it becomes the largest it has.
        entries: Stages applied to the entries of a sparse gradient, before they are summed. Of a
            16-bit variable they are rounded to its type then.
        before: A formula `(var, *, scalars) -> var` applied to the variable first, once per element
            and rounded to its type.
        from_copy: Whether the copy is read, too: where it is not the variable, rounded, the update
            begins at the copy. One that leaves the variable alone then leaves the copy alone.
    """
    transcript = transcribe(formula)
    check_counts(formula, transcript, grad, len(storage) - 1 - grad - copy)
    staged, first = _stage_names(stages, "stage"), _stage_names(entries, "entry")
    begun = _stage_names((before,) if before else (), "before")
    for _, stage in begun:
        check_counts(before, stage, False, 0)
    named = [*first, *staged, *begun]
    names = dict.fromkeys(name for _, stage in named for name in stage.scalars)
    scalars = (*names, *(name for name in transcript.scalars if name not in names))
    position = {name: index for index, name in enumerate(scalars)}

    definitions: dict[str, str] = {}
    for helper in transcript.helpers:
        definitions[helper.name] = ast.unparse(helper)
    for name, stage in named:
        definitions |= stage_definition(name, stage)
    if copy:
        definitions |= of_copies(storage[-1], compute)

    # A row's sum lies in scratch: in the variable's type, whatever that of the entries.
    of_rows = storage[0] if duplicates == "sum" else storage[1] if grad else ""
    pointers: list[str] = []
    loads: list[str] = []
    stores: list[str] = []
    for index, kind in enumerate(storage):
        is_gradient = grad and index == 1
        pointer, size, load, save = STORAGE[of_rows if is_gradient and duplicates else kind]
        if duplicates is None:
            start = "grad_offset" if is_gradient else "offset"
            pointers.append(
                f"at{index} = base[tensor * {len(storage)} + {index}] + {start} * {size}"
            )
            address = f"at{index}"
        else:
            address = "gradient" if is_gradient else f"base[{index}] + offset * {size}"
        pointers.append(f"p{index} = {pointer}({address})")
        if copy and index == len(storage) - 1:
            continue
        name = LOCAL_PREFIX + transcript.positional[index]
        value = load.format(f"p{index}[i]")
        if is_gradient and duplicates == "successive":
            value = _entry_value(value, storage, compute, first, position)
        if ("float32" if kind in LARGEST else kind) != compute:
            value = f"{LITERAL}({value})"  # a slot of another type than the arithmetic
        if from_copy and index == 0:
            value = f"resumed({value}, p{len(storage) - 1}[i], one)"
        loads.append(f"{name} = {value}")
    _, _, load, save = STORAGE[storage[-1]]
    kept = f"p{len(storage) - 1}[i] = {save}"
    once: list[str] = []  # what a row gets before the first of its entries
    if begun:
        _, _, load, save = STORAGE[storage[0]]
        value = loads[0].partition(" = ")[2]
        changed = save.format(f"{applied(begun, position, value)} * one")
        if duplicates == "successive":
            once = [pointers[0], "for i in range(width):", f"    p0[i] = {changed}"]
            if from_copy:
                once.insert(1, pointers[-1])
                once.append("    " + kept.format("saturated(p0[i]) * one"))
        else:
            loads[0] = f"{LOCAL_PREFIX}{transcript.positional[0]} = {load.format(changed)}"
    if staged:
        grad_name = LOCAL_PREFIX + transcript.positional[1]
        loads.append(f"{grad_name} = {applied(staged, position, grad_name)}")
    body = [line for statement in transcript.body for line in ast.unparse(statement).splitlines()]
    body += [f"out{i} = {ast.unparse(result)}" for i, result in enumerate(transcript.results)]
    for index, _ in enumerate(transcript.results):
        stream = index if index == 0 or not grad else index + 1
        if not transcript.passes(index, stream) or (begun and index == 0):
            save = STORAGE[storage[stream]][3]
            # A number that was chosen and not computed is flushed by `one`, which LLVM cannot know.
            value = f"out{index}" if transcript.rounded(index) else f"out{index} * one"
            stores.append(f"p{stream}[i] = {save.format(value)}")
    if copy and not (from_copy and transcript.passes(0, 0) and not begun):
        stores.append(kept.format("saturated(out0) * one"))

    scalar_lines = [f"s{i} = scalars[row + {i}]" for i in range(len(scalars))]
    # Anew for each element: a formula may assign to them.
    own = [f"{LOCAL_PREFIX}{name} = s{position[name]}" for name in transcript.scalars]
    header = HEADER.format(literal=LITERAL, compute=compute)
    text = header + "\n\n".join(definitions.values()) + "\n"
    element = [*own, *loads, *body, *(stores or ["pass"])]
    common = {"name": "KERNEL_NAME", "literal": LITERAL, "compute": compute}
    if duplicates is None:
        template = _KERNEL.format(
            **common,
            n_scalars=len(scalars),
            pointers=indented(pointers, 3),
            scalars=indented(scalar_lines or ["pass"], 3),
            elements=indented(_elements(text, element, storage, copy), 3),
        )
    else:
        update = [*pointers, "for i in range(width):", *("    " + line for line in element)]
        template = _ROWS.format(
            **common,
            scalars=indented(scalar_lines, 1),
            prefetches=indented(_prefetches(storage), 3),
            update=indented([*_rows_gradient(storage, compute, first, position), *update], 3)
            if duplicates == "sum"
            else indented([*once, *_one_by_one(storage[1], update)], 3),
        )
    name = f"k_{store.digest(text, template, versions())}"
    source = text + template.replace("KERNEL_NAME", name)
    return Kernel(name, source, scalars)


def of_copies(storage: str, compute: str) -> dict[str, str]:
    """The functions that have to do with copies of a storage type."""
    _, _, load, save = STORAGE[storage]
    saved, loaded = save.format("saturated(value) * one"), load.format("bits")
    return {
        "saturated": _SATURATED.format(limit=f"{compute}({LARGEST[storage]!r})"),
        "resumed": _RESUMED.format(saved=saved, loaded=loaded, compute=compute),
    }


def _elements(
    definitions: str, element: list[str], storage: tuple[str, ...], copy: bool
) -> list[str]:
    """Update the elements of a chunk one after the other."""
    inner = indented(element, 1).splitlines()
    if not (copy or _gains("\n".join([definitions, *element]), len(storage))):
        return ["for i in range(length):", *inner]
    lines = [f"for begin in range(0, length, {BLOCK}):"]
    sizes = [STORAGE[kind][1] for kind in storage]
    for size in dict.fromkeys(sizes):
        first = f"begin * {size} + {DISTANCE}"
        lines.append(f"    for line in range({first}, {first} + {BLOCK * size}, {LINE}):")
        places = [index for index, each in enumerate(sizes) if each == size]
        lines += [f"        prefetch(at{index} + line)" for index in places]
    lines.append(f"    for i in range(begin, min(begin + {BLOCK}, length)):")
    return lines + indented(inner, 1).splitlines()


def _gains(source: str, streams: int) -> bool:
    """Whether an update of so many streams is faster with prefetches."""
    nodes = list(ast.walk(ast.parse(source)))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    is_slow = not names.isdisjoint(_SLOW) or any(isinstance(node, ast.Div) for node in nodes)
    return streams > 2 and is_slow


def _entry(storage: str) -> str:
    return f"base[1] + entry * width * {STORAGE[storage][1]}"


_NEXT = "entry = int64(following[entry])"


def _one_by_one(storage: str, update: list[str]) -> list[str]:
    """Update a row once for each of its entries."""
    inner = [f"gradient = {_entry(storage)}", _NEXT, *update]
    return ["while entry >= 0:", *("    " + line for line in inner)]


def _entry_value(
    value: str,
    storage: tuple[str, ...],
    compute: str,
    stages: list[tuple[str, Transcript]],
    position: dict[str, int],
) -> str:
    """An expression for an element of an entry after its stages."""
    if not stages:
        return value
    value = applied(stages, position, value)
    _, _, load, save = STORAGE[storage[0]]
    return value if storage[0] == compute else load.format(save.format(value))


def _rows_gradient(
    storage: tuple[str, ...],
    compute: str,
    stages: list[tuple[str, Transcript]],
    position: dict[str, int],
) -> list[str]:
    """The gradient of a row: that of its only entry where it lies, or a sum, in scratch.

    The first two entries are added without a copy; a sum in another type is rounded once. Entries
    that have stages, or are of another type than the variable, are always brought to scratch.
    """
    pointer, _, load, _ = STORAGE[storage[1]]

    def element(values: str) -> str:
        return _entry_value(load.format(f"{values}[i]"), storage, compute, stages, position)

    add = [f"more = {pointer}({_entry(storage[1])})", "for i in range(width):"]
    rest = [
        "while entry >= 0:",
        *("    " + line for line in add),
        f"        wide[i] = wide[i] + {element('more')}",
        f"    {_NEXT}",
        "gradient = scratch",
    ]
    if storage[0] != compute:
        _, _, _, save = STORAGE[storage[0]]
        rest += [
            f"gradient = scratch + width * {STORAGE[compute][1]}",
            f"narrow = {STORAGE[storage[0]][0]}(gradient)",
            "for i in range(width):",
            f"    narrow[i] = {save.format('wide[i]')}",
        ]
    start = [f"gradient = {_entry(storage[1])}", _NEXT]
    both = [f"values, wide = {pointer}(gradient), {compute}_pointer(scratch)"]
    if stages or storage[0] != storage[1]:
        begin = ["for i in range(width):", f"    wide[i] = {element('values')}"]
        return [*start, *both, *begin, *rest]
    begin = [*both, *add, f"    wide[i] = {element('values')} + {element('more')}", _NEXT]
    return [*start, "if entry >= 0:", *("    " + line for line in [*begin, *rest])]


def _prefetches(storage: tuple[str, ...]) -> list[str]:
    lines = [
        f"ahead = group + {AHEAD}",
        "if ahead < groups:",
        "    there = row_of[ahead] * width",
    ]
    for index, kind in enumerate(storage):
        if index != 1:  # gradients are read almost in order
            size = STORAGE[kind][1]
            lines += [
                f"    start = base[{index}] + there * {size}",
                f"    for line in range(0, min(width, {SHORT}) * {size}, {LINE}):",
                "        prefetch(start + line)",
            ]
    return lines


def stage_definition(name: str, stage: Transcript) -> dict[str, str]:
    """A formula of one result as a function of that name, after the helpers that it calls."""
    # Its helpers are numbered like the formula's, so they get the stage's name.
    lines = [line for statement in stage.body for line in ast.unparse(statement).splitlines()]
    lines.append(f"return {ast.unparse(stage.results[0])}")
    parameters = ", ".join(LOCAL_PREFIX + each for each in (*stage.positional, *stage.scalars))
    text = f"def {FUNCTION_PREFIX}{name}({parameters}):\n" + indented(lines, 1)
    found = {helper.name: ast.unparse(helper) for helper in stage.helpers}
    own, theirs = FUNCTION_PREFIX + HELPER_PREFIX, f"{FUNCTION_PREFIX}{name}_{HELPER_PREFIX}"
    every = {**found, name: text}
    return {key.replace(own, theirs): value.replace(own, theirs) for key, value in every.items()}
