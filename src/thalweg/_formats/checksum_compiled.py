"""CRC32C compiled by LLVM, with the processor's instruction or with eight tables.

LLVM needs a few hundredths of a second to compile the function, and releases the GIL meanwhile.

google-crc32c is as fast and releases the GIL, too, but would be one more dependency of every save;
LLVM is installed for the kernels.
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
_CHECK_INPUT, _CHECK_SUM = b"123456789" * 9, 0x486A442F
_UNROLLED = 8  # words of 8 bytes per iteration


def by_instruction() -> Function | None:
    """Return the checksum function with an instruction of SSE 4.2 or ARM; None without support."""
    kind = _crc_instructions()
    return None if kind is None else _compile_module(_build_instruction_module(*kind))


def by_slices(table: list[int]) -> Function | None:
    """Return the checksum function with eight lookup tables; None if LLVM cannot be loaded.

    `table` has the checksums of the 256 single bytes.
    """
    tables = [table]
    for _ in range(7):
        tables.append([table[entry & 0xFF] ^ (entry >> 8) for entry in tables[-1]])
    return _compile_module(_build_table_module([entry for row in tables for entry in row]))


def _compile_module(module: object) -> Function | None:
    """Compile a module to a checksum function; None if LLVM fails or a test sum is wrong."""
    try:
        address = _link_function(str(module))
    except (ImportError, RuntimeError, AttributeError):  # Other versions of llvmlite differ.
        return None
    signature = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32)
    function = signature(address)

    def checksum(view: memoryview, initial: int) -> int:
        return function(np.frombuffer(view, np.uint8).ctypes.data, len(view), initial)

    # Other versions of LLVM may define the intrinsics differently.
    return checksum if checksum(memoryview(_CHECK_INPUT), 0) == _CHECK_SUM else None


def _crc_instructions() -> tuple[str, str] | None:
    """Return LLVM's names of the CRC32C instructions for 8 bytes and 1 byte; None if missing."""
    from llvmlite import binding

    machine = platform.machine().lower()
    if sys.maxsize < 2**32 or sys.byteorder != "little":
        return None
    try:
        features = dict(binding.get_host_cpu_features())
    except RuntimeError:  # LLVM does not support this on all platforms.
        features = {}
    if machine in ("x86_64", "amd64") and features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64", "llvm.x86.sse42.crc32.32.8"
    is_apple = sys.platform == "darwin"  # All ARM processors of Apple have the instruction.
    if machine in ("aarch64", "arm64") and (features.get("crc") or is_apple):
        return "llvm.aarch64.crc32cx", "llvm.aarch64.crc32cb"
    return None


Step = Callable[[Any, Any, Any], Any]  # builder, address and checksum to the next checksum


def _build_instruction_module(word_intrinsic: str, byte_intrinsic: str) -> object:
    """Return an LLVM module with the checksum function, using the processor's instructions.

    The arguments are LLVM's names of the instructions for 8 bytes and 1 byte.
    """
    from llvmlite import ir

    i8, i32, i64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
    is_arm = "aarch64" in word_intrinsic
    # The instruction of x86 for words takes and returns the checksum in 64 bits.
    state = i32 if is_arm else i64
    module = ir.Module(_NAME)
    of_words = ir.Function(module, ir.FunctionType(state, [state, i64]), word_intrinsic)
    of_byte = ir.Function(
        module, ir.FunctionType(i32, [i32, i32 if is_arm else i8]), byte_intrinsic
    )

    def by_words(builder: Any, address: Any, crc: Any) -> Any:
        for index in range(_UNROLLED):
            crc = builder.call(of_words, [crc, _load_word(builder, address, i64, 8 * index)])
        return crc

    def by_byte(builder: Any, address: object, crc: Any) -> Any:
        byte = _load_word(builder, address, i8)
        return builder.call(of_byte, [crc, builder.zext(byte, i32) if is_arm else byte])

    return _write_function(module, state, 8 * _UNROLLED, by_words, by_byte)


def _build_table_module(tables: list[int]) -> object:
    """Return an LLVM module with the checksum function, using eight tables of 256 numbers."""
    from llvmlite import ir

    i8, i32 = ir.IntType(8), ir.IntType(32)
    module, kind = ir.Module(_NAME), ir.ArrayType(i32, len(tables))
    constant = ir.GlobalVariable(module, kind, "tables")
    constant.global_constant, constant.linkage = True, "internal"
    constant.initializer = ir.Constant(kind, tables)  # pyright: ignore[reportAttributeAccessIssue]

    def look_up(builder: Any, table_index: int, address: Any, offset: int, crc: Any) -> Any:
        """Build the lookup of one byte and the lowest byte of the checksum in a table."""
        byte = builder.xor(builder.zext(_load_word(builder, address, i8, offset), i32), crc)
        index = builder.add(
            builder.and_(byte, ir.Constant(i32, 255)), ir.Constant(i32, table_index * 256)
        )
        return builder.load(builder.gep(constant, [ir.Constant(i32, 0), index]))

    def by_words(builder: Any, address: object, crc: Any) -> Any:
        terms = []
        for offset in range(8):
            terms.append(look_up(builder, 7 - offset, address, offset, crc))
            crc = builder.lshr(crc, ir.Constant(i32, 8))
        return functools.reduce(builder.xor, terms)

    def by_byte(builder: Any, address: Any, crc: Any) -> Any:
        shifted = builder.lshr(crc, ir.Constant(i32, 8))
        return builder.xor(look_up(builder, 0, address, 0, crc), shifted)

    return _write_function(module, i32, 8, by_words, by_byte)


def _load_word(builder: Any, address: Any, kind: Any, offset: int = 0) -> object:
    """Build and return the load of an integer of type `kind` at an address plus offset."""
    pointer = builder.add(address, address.type(offset))
    word = builder.load(builder.inttoptr(pointer, kind.as_pointer()))
    # Without this, LLVM assumes that the address is a multiple of the word's size.
    word.align = 1
    return word


def _write_function(
    module: object, state: object, word_size: int, by_words: Step, by_byte: Step
) -> object:
    """Add the function (address, size, initial checksum) -> checksum; return `module`.

    Args:
        module: The LLVM module, extended in place.
        state: The type of the checksum between steps.
        word_size: The number of bytes of a `by_words` step.
        by_words: `by_words(builder, address, checksum)` builds a step over `word_size` bytes, and
            returns the next checksum.
        by_byte: Does the same for a step over one byte.
    """
    from llvmlite import ir

    i32, i64 = ir.IntType(32), ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(i32, [i64, i64, i32]), _NAME)
    address, size, initial = function.args
    builder = ir.IRBuilder(function.append_basic_block("entry"))

    def add_loop(begin: object, end: object, step: int, first: Any, write_step: Step) -> Any:
        """Build a loop over addresses from `begin` to `end` in steps of `step` bytes.

        `write_step` builds the loop body, and `first` is the checksum at the beginning. Return
        (address, checksum) after the last complete step.
        """
        entry_block = builder.block
        loop_head, loop_body, loop_end = map(function.append_basic_block, ("head", "in", "out"))
        builder.branch(loop_head)
        builder.position_at_end(loop_head)
        position, crc = builder.phi(i64), builder.phi(first.type)
        position.add_incoming(begin, entry_block)
        crc.add_incoming(first, entry_block)
        remaining = builder.sub(end, position)
        has_step = builder.icmp_unsigned(">=", remaining, ir.Constant(i64, step))
        builder.cbranch(has_step, loop_body, loop_end)
        builder.position_at_end(loop_body)
        crc.add_incoming(write_step(builder, position, crc), builder.block)
        position.add_incoming(builder.add(position, ir.Constant(i64, step)), builder.block)
        builder.branch(loop_head)
        builder.position_at_end(loop_end)
        return position, crc

    start, end = builder.not_(initial), builder.add(address, size)
    start = builder.zext(start, state) if state == i64 else start
    position, crc = add_loop(address, end, word_size, start, by_words)
    crc = builder.trunc(crc, i32) if state == i64 else crc
    _, crc = add_loop(position, end, 1, crc, by_byte)
    builder.ret(builder.not_(crc))
    return module


# Each library owns its code, which must live as long as its address is used.
_libraries: list[object] = []


def _link_function(llvm_ir: str) -> int:
    """Compile LLVM IR for this processor, and return the address of its checksum function.

    The code is never freed. Failures of llvmlite raise ImportError, RuntimeError or AttributeError.
    """
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
    builder = binding.JITLibraryBuilder().add_ir(llvm_ir).export_symbol(_NAME)
    library = builder.link(linker, _NAME)
    _libraries.append((linker, library))
    return library[_NAME]
