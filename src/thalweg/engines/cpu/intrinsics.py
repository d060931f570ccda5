"""What a kernel needs and Numba lacks: typed addresses, 16-bit floats, tickets, denormal flags.

Imports Numba, so only generated kernels and `engines.cpu` may import it.
"""

# Code for Numba, which has no types.
# pyright: basic
# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false
from __future__ import annotations

import platform
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from thalweg.engines import libm
from thalweg.engines.measuring import LANES

FTZ_DAZ = 0x8040  # flush-to-zero and denormals-are-zero bits of the x86 MXCSR
FPCR_FZ = 1 << 24  # flush-to-zero bit of the AArch64 FPCR
_MACHINE = platform.machine().lower()
X86 = _MACHINE in ("x86_64", "amd64")
ARM64 = _MACHINE in ("aarch64", "arm64")


def _pointer_to(element: types.Type, llvm_type: Any, name: str) -> Any:
    @intrinsic
    def pointer(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.inttoptr(args[0], llvm_type.as_pointer())

        return types.CPointer(element)(types.int64), codegen

    pointer.__name__ = name
    return pointer


int64_pointer = _pointer_to(types.int64, ir.IntType(64), "int64_pointer")
int32_pointer = _pointer_to(types.int32, ir.IntType(32), "int32_pointer")
uint16_pointer = _pointer_to(types.uint16, ir.IntType(16), "uint16_pointer")
float32_pointer = _pointer_to(types.float32, ir.FloatType(), "float32_pointer")
float64_pointer = _pointer_to(types.float64, ir.DoubleType(), "float64_pointer")


@intrinsic
def void_pointer(typingctx: Any, address: Any) -> Any:
    """The void pointer to an integer address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), codegen


@intrinsic
def address_of(typingctx: Any, pointer: Any) -> Any:
    """The integer address of a void pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], ir.IntType(64))

    return types.int64(types.voidptr), codegen


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    """Ask for the cache line at an integer address, to be written soon."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, i32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, i32, i32, i32])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        write_high_data = [ir.Constant(i32, value) for value in (1, 3, 1)]
        builder.call(function, [builder.inttoptr(args[0], byte), *write_high_data])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def take_ticket(typingctx: Any, pointer: Any) -> Any:
    """Read the counter at `pointer` and add one to it, atomically."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", args[0], ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.CPointer(types.int64)), codegen


@intrinsic
def lanes(typingctx: Any) -> Any:
    """Memory on the stack for the running sums of a leaf, kept until the function returns."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        memory = cgutils.alloca_once(builder, ir.DoubleType(), LANES)
        memory.align = 64
        return memory

    return types.CPointer(types.float64)(), codegen


@intrinsic
def half_to_float(typingctx: Any, bits: Any) -> Any:
    """The float32 value of a float16 bit pattern."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def float_to_half(typingctx: Any, value: Any) -> Any:
    """The float16 bit pattern nearest to a float32 value, ties to even."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(builder.fptrunc(args[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), codegen


@intrinsic
def bfloat_to_float(typingctx: Any, bits: Any) -> Any:
    """The float32 value of a bfloat16 bit pattern."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = builder.zext(args[0], ir.IntType(32))
        return builder.bitcast(builder.shl(wide, ir.Constant(ir.IntType(32), 16)), ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def float_to_bfloat(typingctx: Any, value: Any) -> Any:
    """The bfloat16 bit pattern nearest to a float32 value, ties to even; NaN becomes 0x7FC0."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32 = ir.IntType(32)
        bits = builder.bitcast(args[0], i32)
        high = builder.lshr(bits, ir.Constant(i32, 16))
        odd = builder.and_(high, ir.Constant(i32, 1))
        rounded = builder.lshr(
            builder.add(bits, builder.add(odd, ir.Constant(i32, 0x7FFF))), ir.Constant(i32, 16)
        )
        nan = builder.fcmp_unordered("uno", args[0], args[0])
        chosen = builder.select(nan, ir.Constant(i32, 0x7FC0), rounded)
        return builder.trunc(chosen, ir.IntType(16))

    return types.uint16(types.float32), codegen


# The functions of formulas. As Numba's own functions each would be compiled by itself first, which
# takes as long as a kernel around it.


def _declared(builder: Any, name: str, kind: Any, arguments: int = 1) -> Any:
    """A function of LLVM or C of so many numbers, all of one type."""
    signature = ir.FunctionType(kind, [kind] * arguments)
    return builder.module.globals.get(name) or ir.Function(builder.module, signature, name)


def _of_llvm(name: str) -> Any:
    """A function of one float or double that is an instruction, not a call."""

    @intrinsic
    def function(typingctx: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = args[0].type
            own = _declared(builder, f"llvm.{name}.{kind.intrinsic_name}", kind)
            return builder.call(own, args)

        return x(x), codegen

    return function


square_root = _of_llvm("sqrt")  # C's may set errno
absolute = _of_llvm("fabs")


@intrinsic
def square(typingctx: Any, x: Any) -> Any:
    """A number times itself."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fmul(args[0], args[0])

    return x(x), codegen


@intrinsic
def sign(typingctx: Any, x: Any) -> Any:
    """-1, 0 or 1; NaN stays NaN."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        (value,) = args
        zero, one = (ir.Constant(value.type, number) for number in (0.0, 1.0))
        below = builder.fcmp_ordered("<", value, zero)
        rest = builder.select(below, ir.Constant(value.type, -1.0), value)
        return builder.select(builder.fcmp_ordered(">", value, zero), one, rest)

    return x(x), codegen


@intrinsic
def choose(typingctx: Any, condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, else `b`."""
    kind = typingctx.unify_types(a, b)
    if kind is None or not isinstance(condition, types.Boolean):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = context.cast(builder, args[1], a, kind)
        other = context.cast(builder, args[2], b, kind)
        return builder.select(args[0], one, other)

    return kind(condition, a, b), codegen


def _extreme(comparison: str) -> Any:
    """The one of two that compares so to the other; NaN if either is."""

    @intrinsic
    def function(typingctx: Any, a: Any, b: Any) -> Any:
        kind = typingctx.unify_types(a, b)
        if kind is None:
            return None

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            one = context.cast(builder, args[0], a, kind)
            other = context.cast(builder, args[1], b, kind)
            is_nan = builder.fcmp_unordered("uno", one, one)
            found = builder.or_(builder.fcmp_ordered(comparison, one, other), is_nan)
            return builder.select(found, one, other)

        return kind(a, b), codegen

    return function


maximum, minimum = _extreme(">"), _extreme("<")


def _of_c(name: str, arguments: int) -> Any:
    """A function of the C library, evaluated in double and rounded once to the arguments' type."""
    symbol = f"thalweg_{name}"
    binding.add_symbol(symbol, libm.address(libm.SYMBOLS[symbol]))

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = [
            context.cast(builder, value, kind, types.float64)
            for value, kind in zip(args, signature.args, strict=True)
        ]
        called = _declared(builder, symbol, ir.DoubleType(), arguments)
        called.attributes.add("nounwind")
        called.attributes.add("readnone")
        found = builder.call(called, given)
        return context.cast(builder, found, types.float64, signature.return_type)

    if arguments == 1:

        @intrinsic
        def of_one(typingctx: Any, x: Any) -> Any:
            return x(x), codegen

        return of_one

    @intrinsic
    def of_two(typingctx: Any, x: Any, y: Any) -> Any:
        kind = typingctx.unify_types(x, y)
        return None if kind is None else (kind(x, y), codegen)

    return of_two


exponential, logarithm, power = _of_c("exp", 1), _of_c("log", 1), _of_c("pow", 2)


def _cast_to(kind: types.Type) -> Any:
    @intrinsic
    def function(typingctx: Any, x: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return context.cast(builder, args[0], x, kind)

        return kind(x), codegen

    return function


wide = _cast_to(types.float64)


@intrinsic
def narrow(typingctx: Any, x: Any, like: Any) -> Any:
    """A number rounded to the type of another."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.cast(builder, args[0], x, like)

    return like(x, like), codegen


def _mxcsr(builder: Any, instruction: str, cell: Any) -> None:
    byte = ir.IntType(8).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [byte])
    name = f"llvm.x86.sse.{instruction}"
    function = builder.module.globals.get(name) or ir.Function(builder.module, signature, name)
    builder.call(function, [builder.bitcast(cell, byte)])


def _fpcr(builder: Any, value: Any = None) -> Any:
    i64 = ir.IntType(64)
    if value is None:
        name, signature, args = "llvm.aarch64.get.fpcr", ir.FunctionType(i64, []), []
    else:
        name, signature = "llvm.aarch64.set.fpcr", ir.FunctionType(ir.VoidType(), [i64])
        args = [value]
    function = builder.module.globals.get(name) or ir.Function(builder.module, signature, name)
    return builder.call(function, args)


@intrinsic
def begin_denormals(typingctx: Any, flush: Any) -> Any:
    """Flush denormals on this thread if `flush` is 1, else keep them; returns what it found."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i32, i64 = ir.IntType(32), ir.IntType(64)
        on = builder.icmp_signed("!=", args[0], ir.Constant(i64, 0))
        if X86:
            cell = builder.alloca(i32)
            _mxcsr(builder, "stmxcsr", cell)
            found = builder.load(cell)
            flushed = builder.or_(found, ir.Constant(i32, FTZ_DAZ))
            kept = builder.and_(found, ir.Constant(i32, 0xFFFFFFFF & ~FTZ_DAZ))
            builder.store(builder.select(on, flushed, kept), cell)
            _mxcsr(builder, "ldmxcsr", cell)
            return builder.zext(found, i64)
        if ARM64:
            found = _fpcr(builder)
            flushed = builder.or_(found, ir.Constant(i64, FPCR_FZ))
            kept = builder.and_(found, ir.Constant(i64, 0xFFFFFFFFFFFFFFFF & ~FPCR_FZ))
            _fpcr(builder, builder.select(on, flushed, kept))
            return found
        return ir.Constant(i64, 0)

    return types.int64(types.int64), codegen


@intrinsic
def end_denormals(typingctx: Any, found: Any) -> Any:
    """Restore the flags that `begin_denormals` found."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if X86:
            cell = builder.alloca(ir.IntType(32))
            builder.store(builder.trunc(args[0], ir.IntType(32)), cell)
            _mxcsr(builder, "ldmxcsr", cell)
        elif ARM64:
            _fpcr(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), codegen
