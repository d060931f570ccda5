"""CRC32C at the speed of memory: by the processor's own instruction, or else by eight tables.

The instruction is reached through LLVM alone, which needs a few hundredths of a second to make the
function; Numba, which makes the other one, needs a second, on processors that are rare by now.
Both let other threads of Python run meanwhile.
"""

# llvmlite and Numba have no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import ctypes
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
    """The checksum by SSE 4.2's or ARM's instruction; None where there is none."""
    kind = _instruction()
    if kind is None:
        return None
    try:
        address = _linked(str(_module(*kind)))
    except (ImportError, RuntimeError, AttributeError):  # another llvmlite than those we know
        return None
    signature = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint32)
    function = signature(address)

    def checksum(view: memoryview, value: int) -> int:
        return function(np.frombuffer(view, np.uint8).ctypes.data, len(view), value)

    # Another LLVM may take the names for something else.
    return checksum if checksum(memoryview(_KNOWN), 0) == _SUM else None


def by_slices(table: list[int]) -> Function:
    """The checksum by eight tables, compiled by Numba: eight bytes at a time.

    Args:
        table: The checksums of single bytes.
    """
    import numba

    tables = np.zeros((8, 256), np.uint32)
    tables[0] = table
    for number in range(1, 8):
        before = tables[number - 1]
        tables[number] = tables[0][before & 0xFF] ^ (before >> 8)

    def summed(data: Any, value: Any, t: Any) -> Any:
        value, place = value ^ np.uint32(0xFFFFFFFF), 0
        while place + 8 <= data.size:
            low = (
                np.uint32(data[place])
                | np.uint32(data[place + 1]) << np.uint32(8)
                | np.uint32(data[place + 2]) << np.uint32(16)
                | np.uint32(data[place + 3]) << np.uint32(24)
            ) ^ value
            value = (
                t[7, low & 0xFF]
                ^ t[6, (low >> 8) & 0xFF]
                ^ t[5, (low >> 16) & 0xFF]
                ^ t[4, low >> 24]
                ^ t[3, data[place + 4]]
                ^ t[2, data[place + 5]]
                ^ t[1, data[place + 6]]
                ^ t[0, data[place + 7]]
            )
            place += 8
        while place < data.size:
            value = t[0, (value ^ data[place]) & 0xFF] ^ (value >> np.uint32(8))
            place += 1
        return value ^ np.uint32(0xFFFFFFFF)

    compiled = numba.njit("uint32(Array(uint8, 1, 'C', readonly=True), uint32, uint32[:, ::1])",
                          nogil=True)(summed)  # fmt: skip

    def checksum(view: memoryview, value: int) -> int:
        return int(compiled(np.frombuffer(view, np.uint8), np.uint32(value), tables))

    return checksum


def _instruction() -> tuple[str, str] | None:
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


def _module(words: str, single: str) -> Any:
    """A function of an address, a size and a checksum, in LLVM's language."""
    from llvmlite import ir

    i8, i32, i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
    is_arm = "aarch64" in words
    state = i32 if is_arm else i64  # what the instruction for 8 bytes takes and gives
    module = ir.Module(_NAME)
    of_words = ir.Function(module, ir.FunctionType(state, [state, i64]), words)
    of_byte = ir.Function(module, ir.FunctionType(i32, [i32, i32 if is_arm else i8]), single)
    function = ir.Function(module, ir.FunctionType(i32, [i64, i64, i32]), _NAME)
    address, size, value = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    start = builder.not_(value)
    start = start if is_arm else builder.zext(start, i64)

    def loop(begin: Any, end: Any, step: int, first: Any, body: Callable[[Any, Any], Any]) -> Any:
        """Go on from `first` by `body(where, value)` while `step` bytes are left."""
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
        carried.add_incoming(body(where, carried), builder.block)
        where.add_incoming(builder.add(where, ir.Constant(i64, step)), builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return where, carried

    def loaded(where: Any, kind: Any, offset: int = 0) -> Any:
        place = builder.add(where, ir.Constant(i64, offset))
        found = builder.load(builder.inttoptr(place, kind.as_pointer()))
        found.align = 1  # pyright: ignore[reportAttributeAccessIssue]
        return found

    def by_words(where: Any, carried: Any) -> Any:
        for number in range(_UNROLLED):
            carried = builder.call(of_words, [carried, loaded(where, i64, 8 * number)])
        return carried

    def by_bytes(where: Any, carried: Any) -> Any:
        byte = loaded(where, i8)
        return builder.call(of_byte, [carried, builder.zext(byte, i32) if is_arm else byte])

    end = builder.add(address, size)
    where, found = loop(address, end, 8 * _UNROLLED, start, by_words)
    found = found if is_arm else builder.trunc(found, i32)
    _, found = loop(where, end, 1, found, by_bytes)
    builder.ret(builder.not_(found))
    return module


_libraries: list[Any] = []  # each owns its code, which must live as long as its address is used


def _linked(text: str) -> int:
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
