"""Functions that write the LLVM code of the operations that kernels may call.

Imports `llvmlite.ir`; kernels loaded from the disk do not need this module.
"""

# llvmlite has no types.
# pyright: basic
from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir

from thalweg._engines.codecs import dither
from thalweg._engines.cpu.work_table import STEP
from thalweg._engines.formula_source import FUNCTION_PREFIX

FTZ_DAZ = 0x8040  # flush-to-zero and denormals-are-zero bits of the x86 MXCSR
FPCR_FZ = 1 << 24  # flush-to-zero bit of the AArch64 FPCR
_MACHINE = platform.machine().lower()
X86 = _MACHINE in ("x86_64", "amd64")
ARM64 = _MACHINE in ("aarch64", "arm64")


class Kind(NamedTuple):
    """Type of numbers, or of pointers to numbers of the kind `item`."""

    llvm: Any
    signed: bool = True
    item: Any = None

    @property
    def is_float(self) -> bool:
        return self in (FLOAT32, FLOAT64)


class Value(NamedTuple):
    """A number or a pointer: an LLVM value and its kind."""

    llvm: Any
    kind: Kind


_I8, _I16, _I32, _I64 = map(ir.IntType, (8, 16, 32, 64))
_HALF, _BYTE = ir.HalfType(), _I8.as_pointer()
BOOL, INT64 = Kind(ir.IntType(1), signed=False), Kind(_I64)
UINT16, FLOAT32, FLOAT64 = Kind(_I16, signed=False), Kind(ir.FloatType()), Kind(ir.DoubleType())
KINDS = {
    "int8": Kind(_I8),
    "uint8": Kind(_I8, signed=False),
    "uint16": UINT16,
    "int32": Kind(_I32),
    "uint32": Kind(_I32, signed=False),
    "int64": INT64,
    "float32": FLOAT32,
    "float64": FLOAT64,
}


def common_kind(first: Kind, second: Kind) -> Kind:
    """Return the common kind of two operands; float64 for a float and a different number kind."""
    if first == second or second == BOOL:
        return first
    if first == BOOL:
        return second
    return FLOAT64 if first.is_float or second.is_float else INT64


def pointer_to(kind: Kind) -> Kind:
    return Kind(kind.llvm.as_pointer(), item=kind)


class Code:
    """Writer of the LLVM instructions of one function.

    Args:
        name: The name of the function and of its module.
        halves: True if the processor has instructions for float16.
        argument_count: The number of int64 parameters of a function that returns an int64; 0 for a
            function that takes an address and returns nothing.

    Attributes:
        builder: The llvmlite builder, positioned where the function continues.
    """

    def __init__(self, name: str, halves: bool, argument_count: int = 0) -> None:
        self.halves = halves
        self.module = ir.Module(name)
        kind = ir.FunctionType(ir.VoidType(), [_BYTE])
        if argument_count:
            kind = ir.FunctionType(_I64, [_I64] * argument_count)
        self.function = ir.Function(self.module, kind, name)
        self._returns = argument_count > 0
        # The first block has only reservations; `end_function` ends it with a jump to the start.
        self._entry = ir.IRBuilder(self.function.append_basic_block("rooms"))
        self._start = self.append_block("start")
        self.builder = ir.IRBuilder(self._start)

    @property
    def arguments(self) -> list[Value]:
        return [Value(x, INT64 if x.type == _I64 else Kind(_BYTE)) for x in self.function.args]

    def end_function(self, results: Sequence[Value] = ()) -> None:
        """Write the return of `results[0]`, or of nothing for (); call it once, last."""
        if self._returns:
            self.builder.ret(self.cast_to(results[0], INT64).llvm)
        else:
            self.builder.ret_void()
        self._entry.branch(self._start)

    def append_block(self, name: str) -> Any:
        return self.function.append_basic_block(name)

    def go_on_at(self, block: Any) -> None:
        """Write a jump to a block, and position the builder in the block."""
        self.builder.branch(block)
        self.builder.position_at_end(block)

    def reserve_stack(self, llvm: Any, count: int | None = None) -> Any:
        """Return a pointer to stack memory, allocated at the entry of the function."""
        # Elsewhere, a loop would reserve memory in each iteration. LLVM turns reservations into
        # registers only in the entry block.
        return self._entry.alloca(llvm, count)

    def write_constant(self, value: float, kind: Kind) -> Value:
        return Value(ir.Constant(kind.llvm, value), kind)

    def cast_to(self, value: Value, kind: Kind) -> Value:
        """Return a number converted to `kind`; an integer that does not fit loses its high bits."""
        operand, source_kind, write = value.llvm, value.kind, self.builder
        if source_kind == kind:
            return value
        if source_kind.is_float and not kind.is_float:
            # Undefined for NaN and for numbers out of range, which callers must exclude.
            cast_operand = write.fptosi(operand, kind.llvm)
        elif source_kind.is_float:
            cast_operand = (write.fpext if kind == FLOAT64 else write.fptrunc)(operand, kind.llvm)
        elif kind.is_float:
            cast_operand = (write.sitofp if source_kind.signed else write.uitofp)(
                operand, kind.llvm
            )
        elif kind == BOOL:
            cast_operand = write.icmp_signed("!=", operand, ir.Constant(source_kind.llvm, 0))
        elif source_kind.llvm.width < kind.llvm.width:
            cast_operand = (write.sext if source_kind.signed else write.zext)(operand, kind.llvm)
        else:
            cast_operand = write.trunc(operand, kind.llvm)
        return Value(cast_operand, kind)

    def cast_alike(self, first: Value, second: Value) -> tuple[Any, Any, Kind]:
        """Return (`first`, `second`, kind), converted to one kind; integers become int64."""
        kind = common_kind(first.kind, second.kind)
        if not kind.is_float and kind != BOOL:
            kind = INT64
        return self.cast_to(first, kind).llvm, self.cast_to(second, kind).llvm, kind

    def declare_external(self, name: str, result: Any, arguments: list[Any]) -> Any:
        """Return a function of LLVM or C, declared in the module once."""
        kind = ir.FunctionType(result, arguments)
        return self.module.globals.get(name) or ir.Function(self.module, kind, name)

    def compare_values(self, sign: str, first: Value, second: Value) -> Value:
        """Return the bool of a comparison such as "<"; with NaN it is False, except for "!="."""
        kind = common_kind(first.kind, second.kind)
        lhs, rhs = self.cast_to(first, kind).llvm, self.cast_to(second, kind).llvm
        if not kind.is_float:
            compare = self.builder.icmp_signed if kind.signed else self.builder.icmp_unsigned
        else:
            compare = self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered
        return Value(compare(sign, lhs, rhs), BOOL)


Function = Callable[..., Value | None]

# Memory


def _address_of(code: Code, pointer: Value) -> Value:
    return Value(code.builder.ptrtoint(pointer.llvm, _I64), INT64)


def _pointer_from(kind: Kind, code: Code, address: Value) -> Value:
    pointer_kind = pointer_to(kind)
    return Value(code.builder.inttoptr(address.llvm, pointer_kind.llvm), pointer_kind)


def _reserve_numbers(kind: Kind, code: Code, count: Value) -> Value:
    """Return a pointer to stack memory for `count` numbers, a constant."""
    memory = code.reserve_stack(kind.llvm, count.llvm)
    memory.align = 64
    return Value(memory, pointer_to(kind))


def _prefetch_line(writes: int, code: Code, address: Value) -> None:
    """Prefetch the cache line at an address; `writes` is 1 for a line that will be written."""
    kinds = [_BYTE, _I32, _I32, _I32]
    function = code.declare_external("llvm.prefetch.p0", ir.VoidType(), kinds)
    hints = [ir.Constant(_I32, value) for value in (writes, 3, 1)]  # near, data
    code.builder.call(function, [code.builder.inttoptr(address.llvm, _BYTE), *hints])


def _take_ticket(code: Code, pointer: Value) -> Value:
    """Increment the counter at `pointer` atomically; return the number before."""
    kind = pointer.kind.item
    increment = ir.Constant(kind.llvm, 1)
    return Value(code.builder.atomic_rmw("add", pointer.llvm, increment, "monotonic"), kind)


def _call_address(kind: Kind, code: Code, address: Value, *values: Value) -> Value:
    """Call a C function, whose parameters and result are of `kind`; return the result.

    If the C function returns a narrower integer than int64, the high bits are undefined.
    """
    function_type = ir.FunctionType(kind.llvm, [kind.llvm] * len(values))
    function = code.builder.inttoptr(address.llvm, function_type.as_pointer())
    operands = [code.cast_to(value, kind).llvm for value in values]
    return Value(code.builder.call(function, operands), kind)


def _reserve_cell(code: Code) -> Value:
    """Return a pointer to an int64 on the stack."""
    return Value(code.reserve_stack(_I64), pointer_to(INT64))


# Numbers of 16 bits


def _i32(value: int) -> Any:
    return ir.Constant(_I32, value)


def _f32(value: float) -> Any:
    return ir.Constant(FLOAT32.llvm, value)


def _half_to_float(code: Code, bits: Value) -> Value:
    """Return a float16 as float32."""
    write = code.builder
    if code.halves:
        return Value(write.fpext(write.bitcast(bits.llvm, _HALF), FLOAT32.llvm), FLOAT32)
    # The processor has no instructions for float16.
    extended = write.zext(bits.llvm, _I32)
    size = write.and_(extended, _i32(0x7FFF))
    shifted = write.shl(size, _i32(13))
    normal = write.add(shifted, _i32((127 - 15) << 23))
    special = write.or_(shifted, _i32(0x7F800000))  # infinity and NaN
    small = write.fmul(write.uitofp(size, FLOAT32.llvm), _f32(2.0**-24))
    magnitude = write.select(write.icmp_unsigned(">=", size, _i32(0x7C00)), special, normal)
    is_small = write.icmp_unsigned("<", size, _i32(0x0400))
    magnitude = write.select(is_small, write.bitcast(small, _I32), magnitude)
    sign = write.shl(write.and_(extended, _i32(0x8000)), _i32(16))
    return Value(write.bitcast(write.or_(magnitude, sign), FLOAT32.llvm), FLOAT32)


def _float_to_half(code: Code, value: Value) -> Value:
    """Round a number to float32, then to float16, ties to even; return the bits."""
    write, value = code.builder, code.cast_to(value, FLOAT32)
    if code.halves:
        return Value(write.bitcast(write.fptrunc(value.llvm, _HALF), _I16), UINT16)
    # The processor has no instructions for float16.
    bits = write.bitcast(value.llvm, _I32)
    size = write.and_(bits, _i32(0x7FFFFFFF))
    last_bit = write.and_(write.lshr(size, _i32(13)), _i32(1))
    down = write.sub(size, _i32((127 - 15) << 23))
    normal = write.lshr(write.add(down, write.add(last_bit, _i32(0xFFF))), _i32(13))
    # The last bit of a sum with 0.5 is worth as much as that of a denormal half.
    half = _f32(0.5)
    sum_bits = write.bitcast(write.fadd(write.bitcast(size, FLOAT32.llvm), half), _I32)
    small = write.sub(sum_bits, _i32(0x3F000000))
    half_bits = write.select(write.icmp_unsigned("<", size, _i32(0x38800000)), small, normal)
    is_large = write.icmp_unsigned(">=", size, _i32(0x477FF000))  # 65520 is infinite
    half_bits = write.select(is_large, _i32(0x7C00), half_bits)
    is_nan = write.icmp_unsigned(">", size, _i32(0x7F800000))
    half_bits = write.select(is_nan, _i32(0x7E00), half_bits)
    sign = write.and_(write.lshr(bits, _i32(16)), _i32(0x8000))
    return Value(write.trunc(write.or_(half_bits, sign), _I16), UINT16)


def _bfloat_to_float(code: Code, bits: Value) -> Value:
    extended = code.builder.shl(code.builder.zext(bits.llvm, _I32), _i32(16))
    return Value(code.builder.bitcast(extended, FLOAT32.llvm), FLOAT32)


def _float_to_bfloat(code: Code, value: Value) -> Value:
    """Return the bits of a number rounded to float32, then to bfloat16; 0x7FC0 for NaN."""
    write, value = code.builder, code.cast_to(value, FLOAT32)
    bits = write.bitcast(value.llvm, _I32)
    last_bit = write.and_(write.lshr(bits, _i32(16)), _i32(1))
    rounded_bits = write.add(bits, write.add(last_bit, _i32(0x7FFF)))
    nan = write.fcmp_unordered("uno", value.llvm, value.llvm)
    bfloat_bits = write.select(nan, _i32(0x7FC0), write.lshr(rounded_bits, _i32(16)))
    return Value(write.trunc(bfloat_bits, _I16), UINT16)


def _is_nearest_bfloat(code: Code, value: Value, bits: Value) -> Value:
    """Return whether no bfloat16 is nearer to `value` than the bfloat16 `bits`; False for NaN."""
    write, value = code.builder, code.cast_to(value, FLOAT32)
    float_bits = write.bitcast(value.llvm, _I32)
    # In units of float32's last place, in which 0x8000 is half of bfloat16's last place.
    distance = write.sub(float_bits, write.shl(write.zext(bits.llvm, _I32), _i32(16)))
    is_close = write.icmp_unsigned("<=", write.add(distance, _i32(0x8000)), _i32(0x10000))
    is_not_nan = write.fcmp_ordered("ord", value.llvm, value.llvm)
    return Value(write.and_(is_close, is_not_nan), BOOL)


def _round_to_bfloat(code: Code, value: Value, bits: Value) -> Value:
    """Round a number to bfloat16 by random `bits`; return the bfloat16's bits."""
    write, value = code.builder, code.cast_to(value, FLOAT32)
    float_bits = write.bitcast(value.llvm, _I32)
    size = write.and_(float_bits, _i32(0x7FFFFFFF))
    is_below_largest = write.icmp_unsigned("<", size, _i32(0x7F7F0000))
    # Beyond the largest, which is odd, ties go up as well: half a place rounds to the nearest.
    addend = write.select(is_below_largest, write.zext(bits.llvm, _I32), _i32(0x8000))
    upper_bits = write.lshr(write.add(float_bits, addend), _i32(16))
    nan = write.fcmp_unordered("uno", value.llvm, value.llvm)
    return Value(write.trunc(write.select(nan, _i32(0x7FC0), upper_bits), _I16), UINT16)


def _round_to_half(code: Code, value: Value, bits: Value) -> Value:
    """Round a number to float16 by random `bits`; return the float16's bits."""
    write, one_float = code.builder, _f32(1.0)
    value = code.cast_to(value, FLOAT32)
    float_bits = write.bitcast(value.llvm, _I32)
    size = write.and_(float_bits, _i32(0x7FFFFFFF))
    exponent = write.lshr(size, _i32(23))
    is_small = write.icmp_unsigned("<", exponent, _i32(113))
    unit_exponent = write.sub(write.select(is_small, _i32(113), exponent), _i32(10))
    unit = write.bitcast(write.shl(unit_exponent, _i32(23)), FLOAT32.llvm)
    inverse = write.shl(write.sub(_i32(254), unit_exponent), _i32(23))
    # Exact, because it is a product with a power of two.
    size_in_units = write.fmul(
        write.bitcast(size, FLOAT32.llvm), write.bitcast(inverse, FLOAT32.llvm)
    )
    is_below_largest = write.icmp_unsigned("<", size, _i32(0x477FE000))
    finite_size = write.select(is_below_largest, size_in_units, one_float)
    integer_units = write.sitofp(write.fptosi(finite_size, _I32), FLOAT32.llvm)
    fraction = write.fmul(write.fsub(finite_size, integer_units), _f32(65536.0))
    fraction = write.fadd(fraction, write.uitofp(write.zext(bits.llvm, _I32), FLOAT32.llvm))
    rounds_up = write.fcmp_ordered(">=", fraction, _f32(65536.0))
    zero = _f32(0.0)
    rounded_size = write.fmul(
        write.fadd(integer_units, write.select(rounds_up, one_float, zero)), unit
    )
    half_bits = write.zext(_float_to_half(code, Value(rounded_size, FLOAT32)).llvm, _I32)
    sign = write.and_(write.lshr(float_bits, _i32(16)), _i32(0x8000))
    nearest = write.zext(_float_to_half(code, value).llvm, _I32)
    selected_bits = write.select(is_below_largest, write.or_(half_bits, sign), nearest)
    return Value(write.trunc(selected_bits, _I16), UINT16)


def _reserve_words(code: Code) -> Value:
    """Return a pointer to stack memory for the random bits of `STEP` elements, padded to blocks."""
    memory = code.reserve_stack(_I64, STEP // 4 + 16)
    memory.align = 64
    return Value(memory, pointer_to(INT64))


# Numbers as codes of 8 bits


def _magnitude_of(code: Code, x: Value) -> Value:
    """Return the bits of a float32 without its sign, ordered as magnitudes with NaN above all."""
    bits = code.builder.bitcast(x.llvm, _I32)
    return Value(code.builder.and_(bits, _i32(0x7FFFFFFF)), KINDS["int32"])


def _float_of(code: Code, bits: Value) -> Value:
    """Return the float32 with these bits."""
    return Value(code.builder.bitcast(bits.llvm, FLOAT32.llvm), FLOAT32)


def _dither_of(code: Code, step: Value, rank: Value) -> Value:
    """Return element `rank` of a step's rounding offsets, from 0 to 1; 0.5 for a negative step."""
    write = code.builder
    # Sums of 32 bits wrap, as those of `dithers_of` are masked.
    value, place = (write.trunc(argument.llvm, _I32) for argument in (step, rank))
    place = write.and_(place, _i32(dither.PERIOD - 1))
    offset = write.mul(place, _i32(dither.ELEMENT_STRIDE))
    total = write.add(write.mul(value, _i32(dither.STEP_STRIDE)), offset)
    fraction = write.sitofp(write.lshr(total, _i32(dither.SHIFT)), FLOAT32.llvm)
    half = _f32(0.5)
    dither_value = write.fmul(write.fadd(fraction, half), _f32(dither.UNIT))
    is_uncounted = write.icmp_signed("<", value, _i32(0))
    return Value(write.select(is_uncounted, half, dither_value), FLOAT32)


def _positive_code(code: Code, x: Value, dither_value: Value, lower_limit: Value) -> Value:
    """Round a real nonnegative code to a uint8 code, by a dither; see `dither.round_codes`."""
    write, zero = code.builder, _f32(0.0)
    low = code.cast_to(lower_limit, FLOAT32).llvm
    raised = write.select(write.fcmp_ordered(">", x.llvm, low), x.llvm, low)
    dithered = write.fadd(raised, dither_value.llvm)
    code_value = write.select(write.fcmp_ordered(">", x.llvm, zero), dithered, zero)
    return Value(write.trunc(write.fptosi(code_value, _I32), _I8), KINDS["uint8"])


def _signed_code(code: Code, x: Value, dither_value: Value) -> Value:
    """Round a real number to an int8, by the offset `dither_value`; return the bits, a uint8."""
    write = code.builder
    bits = write.bitcast(x.llvm, _I32)
    size = write.bitcast(write.and_(bits, _i32(0x7FFFFFFF)), FLOAT32.llvm)
    one_float = _f32(1.0)
    fraction = write.select(write.fcmp_ordered("<", size, one_float), size, one_float)
    sign = write.and_(bits, _i32(0x80000000))
    signed = write.bitcast(write.or_(write.bitcast(dither_value.llvm, _I32), sign), FLOAT32.llvm)
    code_value = write.fptosi(write.fadd(write.fmul(x.llvm, fraction), signed), _I32)
    return Value(write.trunc(code_value, _I8), KINDS["uint8"])


# Numbers split into a bfloat16 and 8 lower bits; see `thalweg._engines.codecs.split8`.


def _join_bfloat(code: Code, upper: Value, codes: Value) -> Value:
    """Return a bfloat16 plus a signed 8-bit correction, as float32; 0, inf and NaN get none."""
    write = code.builder
    extended = write.zext(upper.llvm, _I32)
    size = write.and_(extended, _i32(0x7FFF))
    size_minus_one = write.sub(size, _i32(1))  # zero becomes the largest of all
    has_correction = write.icmp_unsigned("<", size_minus_one, _i32(0x7F7F))
    signed = write.shl(write.sext(codes.llvm, _I32), _i32(8))
    lower_bits = write.select(has_correction, signed, _i32(0))
    float_bits = write.add(write.shl(extended, _i32(16)), lower_bits)
    return Value(write.bitcast(float_bits, FLOAT32.llvm), FLOAT32)


def _round_to_24_bits(code: Code, value: Value, bits: Value) -> Any:
    """Return the upper 24 bits of a float32, rounded by the low 8 of the random `bits`."""
    write = code.builder
    float_bits = write.bitcast(code.cast_to(value, FLOAT32).llvm, _I32)
    random_bits = write.and_(write.zext(bits.llvm, _I32), _i32(0xFF))
    upper_bits = write.lshr(write.add(float_bits, random_bits), _i32(8))
    is_nan = write.fcmp_unordered("uno", value.llvm, value.llvm)
    return write.select(is_nan, _i32(0x7FC000), upper_bits)


def _upper_of(code: Code, value: Value, bits: Value) -> Value:
    write = code.builder
    rounded_word = write.add(_round_to_24_bits(code, value, bits), _i32(0x80))
    return Value(write.trunc(write.lshr(rounded_word, _i32(8)), _I16), UINT16)


def _lower_of(code: Code, value: Value, bits: Value) -> Value:
    return Value(code.builder.trunc(_round_to_24_bits(code, value, bits), _I8), KINDS["uint8"])


# Integers


def _minimum_of_integers(code: Code, first: Value, second: Value) -> Value:
    lhs, rhs, kind = code.cast_alike(first, second)
    return Value(
        code.builder.select(code.builder.icmp_signed("<", rhs, lhs), rhs, lhs),
        kind,
    )


# The functions of formulas


def _call_intrinsic(name: str, code: Code, x: Value) -> Value:
    """Return the result of an LLVM intrinsic on one float or double."""
    kind = x.kind.llvm
    function = code.declare_external(f"llvm.{name}.{kind.intrinsic_name}", kind, [kind])
    return Value(code.builder.call(function, [x.llvm]), x.kind)


def _square(code: Code, x: Value) -> Value:
    return Value(code.builder.fmul(x.llvm, x.llvm), x.kind)


def _sign(code: Code, x: Value) -> Value:
    """Return -1, 0 or 1; NaN stays NaN."""
    write = code.builder
    minus_one, zero, plus_one = (code.write_constant(n, x.kind) for n in (-1.0, 0.0, 1.0))
    sign_or_operand = write.select(code.compare_values("<", x, zero).llvm, minus_one.llvm, x.llvm)
    return Value(
        write.select(code.compare_values(">", x, zero).llvm, plus_one.llvm, sign_or_operand), x.kind
    )


def _where(code: Code, condition: Value, first: Value, second: Value) -> Value:
    lhs, rhs, kind = code.cast_alike(first, second)
    return Value(code.builder.select(code.cast_to(condition, BOOL).llvm, lhs, rhs), kind)


def _extreme(sign: str, code: Code, first: Value, second: Value) -> Value:
    """Return the smaller operand for sign "<", the larger for ">"; NaN if an operand is NaN."""
    lhs, rhs, kind = code.cast_alike(first, second)
    is_nan = code.builder.fcmp_unordered("uno", lhs, lhs)
    selects_lhs = code.builder.or_(code.builder.fcmp_ordered(sign, lhs, rhs), is_nan)
    return Value(code.builder.select(selects_lhs, lhs, rhs), kind)


def _call_libm(name: str, code: Code, *arguments: Value) -> Value:
    """Call a `libm` function in float64; return float32 unless an argument is float64."""
    function = code.declare_external(name, FLOAT64.llvm, [FLOAT64.llvm] * len(arguments))
    # LLVM may then merge equal calls and move them out of loops.
    for attribute in ("nounwind", "readnone"):
        function.attributes.add(attribute)
    returned_value = code.builder.call(
        function, [code.cast_to(value, FLOAT64).llvm for value in arguments]
    )
    kind = FLOAT64 if FLOAT64 in {value.kind for value in arguments} else FLOAT32
    return code.cast_to(Value(returned_value, FLOAT64), kind)


def _cast_to(kind: Kind, code: Code, x: Value) -> Value:
    return code.cast_to(x, kind)


def _narrow(code: Code, x: Value, example: Value) -> Value:
    return code.cast_to(x, example.kind)


# Flags of the processor


def _mxcsr(code: Code, instruction: str, cell: Any) -> None:
    function = code.declare_external(f"llvm.x86.sse.{instruction}", ir.VoidType(), [_BYTE])
    code.builder.call(function, [code.builder.bitcast(cell, _BYTE)])


def _fpcr(code: Code, value: Any = None) -> Any:
    if value is None:
        function = code.declare_external("llvm.aarch64.get.fpcr", _I64, [])
        return code.builder.call(function, [])
    function = code.declare_external("llvm.aarch64.set.fpcr", ir.VoidType(), [_I64])
    return code.builder.call(function, [value])


def _switch_flags(code: Code, is_flushing: Any, previous_flags: Any, bits: int) -> Any:
    write, kind = code.builder, previous_flags.type
    all_bits = (1 << kind.width) - 1
    flushing_flags = write.or_(previous_flags, ir.Constant(kind, bits))
    keeping_flags = write.and_(previous_flags, ir.Constant(kind, all_bits & ~bits))
    return write.select(is_flushing, flushing_flags, keeping_flags)


def _begin_denormals(code: Code, flush: Value) -> Value:
    """Set the processor to keep denormals if `flush` is 0, else to flush; return the old flags."""
    is_flushing = code.cast_to(flush, BOOL).llvm
    if X86:
        cell = code.reserve_stack(_I32)
        _mxcsr(code, "stmxcsr", cell)
        previous_flags = code.builder.load(cell)
        code.builder.store(_switch_flags(code, is_flushing, previous_flags, FTZ_DAZ), cell)
        _mxcsr(code, "ldmxcsr", cell)
        return Value(code.builder.zext(previous_flags, _I64), INT64)
    if ARM64:
        previous_flags = _fpcr(code)
        _fpcr(code, _switch_flags(code, is_flushing, previous_flags, FPCR_FZ))
        return Value(previous_flags, INT64)
    return code.write_constant(0, INT64)


def _end_denormals(code: Code, previous_flags: Value) -> None:
    """Write code that restores the flags that `_begin_denormals` returned."""
    if X86:
        cell = code.reserve_stack(_I32)
        code.builder.store(code.builder.trunc(previous_flags.llvm, _I32), cell)
        _mxcsr(code, "ldmxcsr", cell)
    elif ARM64:
        _fpcr(code, previous_flags.llvm)


_FORMULA_FUNCTIONS: dict[str, Function] = {
    "sqrt": partial(_call_intrinsic, "sqrt"),  # C's may set errno
    "absolute": partial(_call_intrinsic, "fabs"),
    "sign": _sign,
    "square": _square,
    "where": _where,
    "maximum": partial(_extreme, ">"),
    "minimum": partial(_extreme, "<"),
    "exp": partial(_call_libm, "thalweg_exp"),
    "log": partial(_call_libm, "thalweg_log"),
    "power": partial(_call_libm, "thalweg_pow"),
    "wide": partial(_cast_to, FLOAT64),
    "narrow": _narrow,
}
PRIMITIVES: dict[str, Function] = {
    **{FUNCTION_PREFIX + name: function for name, function in _FORMULA_FUNCTIONS.items()},
    **{name: partial(_cast_to, kind) for name, kind in KINDS.items()},
    **{f"{name}_pointer": partial(_pointer_from, kind) for name, kind in KINDS.items()},
    "address_of": _address_of,
    "lanes": partial(_reserve_numbers, FLOAT64),
    "prefetch": partial(_prefetch_line, 1),
    "prefetch_to_read": partial(_prefetch_line, 0),
    "take_ticket": _take_ticket,
    "call": partial(_call_address, INT64),
    "call_float32": partial(_call_address, FLOAT32),
    "call_float64": partial(_call_address, FLOAT64),
    "cell": _reserve_cell,
    "half_to_float": _half_to_float,
    "float_to_half": _float_to_half,
    "bfloat_to_float": _bfloat_to_float,
    "float_to_bfloat": _float_to_bfloat,
    "is_nearest_bfloat": _is_nearest_bfloat,
    "float_to_half_by": _round_to_half,
    "float_to_bfloat_by": _round_to_bfloat,
    "words": _reserve_words,
    "numbers": partial(_reserve_numbers, FLOAT32),
    "magnitude_of": _magnitude_of,
    "float_of": _float_of,
    "join_bfloat": _join_bfloat,
    "upper_of": _upper_of,
    "lower_of": _lower_of,
    "dither_of": _dither_of,
    "positive_code": _positive_code,
    "signed_code": _signed_code,
    "min": _minimum_of_integers,
    "begin_denormals": _begin_denormals,
    "end_denormals": _end_denormals,
}
