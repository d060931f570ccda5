"""CRC32C at the speed of memory: by the processor's own instruction, or else by eight tables.

LLVM needs a few hundredths of a second to make the function; it lets other threads of Python run
meanwhile.

By hand, as google-crc32c, which is as fast and lets them run, too, would be one more package that
every save needs, where LLVM is at hand for the kernels.
"""

# llvmlite has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import ctypes
import functools
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Function = Callable[[memoryview, int], int]

_NAME = "thalweg_crc32c"
_KNOWN, _SUM = b"123456789" * 9, 0x486A442F
_UNROLLED = 8  # words of 8 bytes in a round of the loop


def by_instruction() -> Function | None:
    """Return the checksum by SSE 4.2's or ARM's instruction; None where there is none."""
    kind = _crc_instructions()
    return None if kind is None else _compile_module(_module_of_instructions(*kind))


def by_slices(table: list[int]) -> Function | None:
    """Return the checksum by eight tables: eight bytes at a time; None where LLVM cannot load it.

    Args:
        table: The checksums of single bytes.
    """
    tables = [table]
    for _ in range(7):
        tables.append([table[before & 0xFF] ^ (before >> 8) for before in tables[-1]])
    return _compile_module(_of_tables([value for each in tables for value in each]))


def _compile_module(module: object) -> Function | None:
    try:
        address = _link_function(str(module))
    except (ImportError, RuntimeError, AttributeError):  # another llvmlite than those we know
        return None
    signature = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
    function = signature(address)

    def checksum(view: memoryview, value: int) -> int:
        return function(np.frombuffer(view, np.uint8).ctypes.data, len(view), value)

    # Another LLVM may take the names for something else.
    return checksum if checksum(memoryview(_KNOWN), 0) == _SUM else None


def _crc_instructions() -> tuple[str, str] | None:
    """LLVM's names of the instructions for 8 bytes and for 1; None if the processor has none."""
    from llvmlite import binding

    machine = platform.machine().lower()
    if sys.maxsize < 2**32 or sys.byteorder != "little":  # registers are too narrow, or turned
        return None
    try:
        features = dict(binding.get_host_cpu_features())
    except RuntimeError:  # LLVM cannot tell on this platform
        features = {}
    if machine in ("x86_64", "amd64") and features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64", "llvm.x86.sse42.crc32.32.8"
    is_apple = sys.platform == "darwin"  # all of Apple's own processors have it
    if machine in ("aarch64", "arm64") and (features.get("crc") or is_apple):
        return "llvm.aarch64.crc32cx", "llvm.aarch64.crc32cb"
    return None


Step = Callable[[Any, Any, Any], Any]  # with a builder: an address and a sum give the next sum


def _module_of_instructions(words: str, single: str) -> object:
    """The function by these instructions, in LLVM's language."""
    from llvmlite import ir

    i8, i32, i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
    is_arm = "aarch64" in words
    state = i32 if is_arm else i64  # what the instruction for 8 bytes takes and gives
    module = ir.Module(_NAME)
    of_words = ir.Function(module, ir.FunctionType(state, [state, i64]), words)
    of_byte = ir.Function(module, ir.FunctionType(i32, [i32, i32 if is_arm else i8]), single)

    def by_words(builder: Any, where: Any, carried: Any) -> Any:
        for number in range(_UNROLLED):
            carried = builder.call(of_words, [carried, _load_word(builder, where, i64, 8 * number)])
        return carried

    def by_byte(builder: Any, where: object, carried: Any) -> Any:
        byte = _load_word(builder, where, i8)
        return builder.call(of_byte, [carried, builder.zext(byte, i32) if is_arm else byte])

    return _write_function(module, state, 8 * _UNROLLED, by_words, by_byte)


def _of_tables(tables: list[int]) -> object:
    """The function by eight tables, one behind the other, in LLVM's language."""
    from llvmlite import ir

    i8, i32 = ir.IntType(8), ir.IntType(32)
    module, kind = ir.Module(_NAME), ir.ArrayType(i32, len(tables))
    kept = ir.GlobalVariable(module, kind, "tables")
    kept.global_constant, kept.linkage = True, "internal"
    kept.initializer = ir.Constant(kind, tables)  # pyright: ignore[reportAttributeAccessIssue]

    def look_up(builder: Any, number: int, where: Any, offset: int, carried: Any) -> Any:
        """What a table has for a byte and the lowest byte of the sum."""
        byte = builder.xor(builder.zext(_load_word(builder, where, i8, offset), i32), carried)
        place = builder.add(
            builder.and_(byte, ir.Constant(i32, 255)), ir.Constant(i32, number * 256)
        )
        return builder.load(builder.gep(kept, [ir.Constant(i32, 0), place]))

    def by_words(builder: Any, where: object, carried: Any) -> Any:
        every = []
        for offset in range(8):
            every.append(look_up(builder, 7 - offset, where, offset, carried))
            carried = builder.lshr(carried, ir.Constant(i32, 8))  # of four bytes: 0 from then on
        return functools.reduce(builder.xor, every)

    def by_byte(builder: Any, where: Any, carried: Any) -> Any:
        rest = builder.lshr(carried, ir.Constant(i32, 8))
        return builder.xor(look_up(builder, 0, where, 0, carried), rest)

    return _write_function(module, i32, 8, by_words, by_byte)


def _load_word(builder: Any, where: Any, kind: Any, offset: int = 0) -> object:
    place = builder.add(where, where.type(offset))
    found = builder.load(builder.inttoptr(place, kind.as_pointer()))
    found.align = 1
    return found


def _write_function(
    module: object, state: object, size_of_words: int, by_words: Step, by_byte: Step
) -> object:
    """A function of an address, a size and a checksum.

    Args:
        module: Where it is written.
        state: The type of a sum between steps.
        size_of_words: How many bytes `by_words` sums.
        by_words: Writes a step over so many bytes.
        by_byte: Writes a step over one.
    """
    from llvmlite import ir

    i32, i64 = ir.IntType(32), ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(i32, [i64, i64, i32]), _NAME)
    address, size, value = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))

    def add_loop(begin: object, end: object, step: int, first: Any, body: Step) -> Any:
        """Go on from `first` by `body` while `step` bytes are left."""
        before = builder.block
        head, inside, after = (function.append_basic_block(name) for name in ("head", "in", "out"))
        builder.branch(head)
        builder.position_at_end(head)
        where, carried = builder.phi(i64), builder.phi(first.type)
        where.add_incoming(begin, before)
        carried.add_incoming(first, before)
        left = builder.sub(end, where)
        builder.cbranch(builder.icmp_unsigned(">=", left, ir.Constant(i64, step)), inside, after)
        builder.position_at_end(inside)
        carried.add_incoming(body(builder, where, carried), builder.block)
        where.add_incoming(builder.add(where, ir.Constant(i64, step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return where, carried

    start, end = builder.not_(value), builder.add(address, size)
    start = builder.zext(start, state) if state == i64 else start
    where, found = add_loop(address, end, size_of_words, start, by_words)
    found = builder.trunc(found, i32) if state == i64 else found
    _, found = add_loop(where, end, 1, found, by_byte)
    builder.ret(builder.not_(found))
    return module


_libraries: list[object] = []  # each owns its code, which must live as long as its address is used


def _link_function(text: str) -> int:
    """The address of the function, compiled for this processor."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    try:
        features = binding.get_host_cpu_features().flatten()
    except RuntimeError:
        features = ""
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=features, opt=3, jit=True
    )
    linker = binding.create_lljit_compiler(machine, suppress_errors=True)
    builder = binding.JITLibraryBuilder().add_ir(text).export_symbol(_NAME)
    library = builder.link(linker, _NAME)
    _libraries.append((linker, library))
    return library[_NAME]
