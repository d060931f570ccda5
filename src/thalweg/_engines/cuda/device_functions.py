"""Triton functions that generated kernels call: exact arithmetic, loads, stores, denormals.

Imports Triton, so only generated kernels may import it. In Triton, `/` and `sqrt` of float32 are
approximate; `div_rn` and `sqrt_rn` are exact, but flush denormals on NVIDIA's GPUs before Triton
3.5: there PTX instructions are used instead. AMD's compiler expands `div_rn` and `sqrt_rn` to
correctly rounded sequences that keep denormals.
"""

# Code for Triton, which has no types.
# pyright: basic
# pyright: reportMissingImports=false
from __future__ import annotations

import os
from typing import Any

import triton
import triton.language as tl

from thalweg._engines import libm

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

if INTERPRETED:

    def lacks_ptx():  # pyright: ignore[reportRedeclaration]
        """Return True: the interpreter has no PTX assembly."""
        return True

else:

    @tl.core.builtin
    def lacks_ptx(_builder: Any = None, _semantic: Any = None):
        """Return True if the target has no PTX assembly; a constant of the compiled kernel."""
        # Triton passes one of the two, by its version.
        builder = _builder or _semantic.builder
        return tl.constexpr(builder.options.backend_name != "cuda")


@triton.jit
def divide(a, b):
    """Return a quotient, correctly rounded."""
    if (a + b).dtype != tl.float32:
        return a / b
    elif lacks_ptx():
        return tl.div_rn(a, b)
    else:
        return tl.inline_asm_elementwise(
            "div.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, is_pure=True, pack=1
        )


@triton.jit
def square_root(x):
    """Return a square root, correctly rounded."""
    if x.dtype != tl.float32:
        return tl.sqrt(x)
    elif lacks_ptx():
        return tl.sqrt_rn(x)
    else:
        return tl.inline_asm_elementwise(
            "sqrt.rn.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
        )


# Quotients by a corrected root, the last operations of most rules that divide by mean squares.
# Division and root each begin with a test of their operands and a branch. Here a group of elements
# has one test and one branch. The instructions are those that the assembler uses for usual numbers:
#
# root of v:   y ~ 1/sqrt(v), g = v * y, sqrt(v) = g + (v - g * g) * (y / 2)
# a / b:       y ~ 1/b, y = y + y * (1 - b * y), q = a * y, a / b = q + y * (a - b * q)
#
# With the nearest number to 1/b as y, `a / b` is correctly rounded for all a and b, if no part
# overflows or underflows: `tests/cuda/test_exact_quotients.py`.
_LEAST_SQUARE = "0x0D800000"  # 2**-100: above, the parts of a root are normal


def _write_division(numerator: str, denominator: str, quotient: str) -> str:
    """Return assembly for a quotient in the usual range."""
    return f"""
rcp.approx.ftz.f32 y, {denominator}; neg.f32 n, {denominator};
fma.rn.f32 e, n, y, 0f3F800000; fma.rn.f32 y, y, e, y;
mul.rn.f32 q, {numerator}, y; fma.rn.f32 e, n, q, {numerator}; fma.rn.f32 {quotient}, e, y, q;"""


def _write_quotient_by_root(corrected: bool, group: int) -> str:
    """Return assembly of `divide_by_root` for a group of elements."""
    registers = ", ".join(f"quotient{k}, root{k}" for k in range(group))
    fast_code, slow_code, results = "", "", ""
    for k in range(group):
        a, v, c, r, epsilon, least_quotient = (f"${kind * group + k}" for kind in range(2, 8))
        quotient, root = f"quotient{k}", f"root{k}"
        # Triton 3.2 has operands in registers of float32, of which no integers are compared.
        smaller = f"mov.b32 w, {v}; min.s32 m, m, w;" if k else f"mov.b32 m, {v};"
        fast_code += f"""
rsqrt.approx.ftz.f32 y, {v}; mul.rn.f32 g, {v}, y; mul.rn.f32 h, y, 0f3F000000;
neg.f32 n, g; fma.rn.f32 e, n, g, {v}; fma.rn.f32 {root}, e, h, g; {smaller}"""
        fast_code += (
            f"""
mul.rn.f32 q, {root}, {r}; neg.f32 n, {c};
fma.rn.f32 e, n, q, {root}; fma.rn.f32 d, e, {r}, q;"""
            * corrected
        )
        fast_code += f"add.rn.f32 d, {'d' if corrected else root}, {epsilon};"
        fast_code += _write_division(a, "d", quotient)
        fast_code += (
            f"abs.f32 e, {quotient}; setp.ge{'.and' * (k > 0)}.f32 usual, e, {least_quotient}"
        )
        fast_code += ", usual;" if k else ";"
        slow_code += f"sqrt.rn.f32 {root}, {v};"
        slow_code += f"div.rn.f32 d, {root}, {c};" if corrected else f"mov.f32 d, {root};"
        slow_code += f"add.rn.f32 d, d, {epsilon}; div.rn.f32 {quotient}, {a}, d;"
        results += f"mov.f32 ${k}, {quotient}; mov.f32 ${group + k}, {root};"
    return f"""{{
.reg .pred usual; .reg .b32 m, w; .reg .f32 y, g, h, n, e, q, d, {registers};
{fast_code}
setp.ge.and.s32 usual, m, {_LEAST_SQUARE}, usual;
@usual bra DONE;
{slow_code}
DONE:
{results}
}}"""


_WITHIN = tl.constexpr(f"{{.reg .f32 n, e, y, q;{_write_division('$1', '$2', '$0')} }}")
_OPERANDS = tl.constexpr("=f,=f" + ",f" * 6)
_OPERANDS4 = tl.constexpr("=f" + ",=f" * 7 + ",f" * 24)
_OPERANDS8 = tl.constexpr("=f" + ",=f" * 15 + ",f" * 48)
_BY_ROOT = tl.constexpr(_write_quotient_by_root(False, 1))
_BY_ROOT4 = tl.constexpr(_write_quotient_by_root(False, 4))
_BY_ROOT8 = tl.constexpr(_write_quotient_by_root(False, 8))
_BY_CORRECTED_ROOT = tl.constexpr(_write_quotient_by_root(True, 1))
_BY_CORRECTED_ROOT4 = tl.constexpr(_write_quotient_by_root(True, 4))
_BY_CORRECTED_ROOT8 = tl.constexpr(_write_quotient_by_root(True, 8))


@triton.jit
def divide_within(a, b):
    """Return a / b, for a normal `b` of at most 2**125. Operands are not tested.

    The quotient is correctly rounded if |a| and |a / b| are at least 2**-100. For a smaller `a`,
    the quotient is small.
    """
    if lacks_ptx():
        return tl.div_rn(a, b)
    else:
        return tl.inline_asm_elementwise(
            _WITHIN, "=f,f,f", [a, b], tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _least_quotient(correction, reciprocal, epsilon):
    """Return the least magnitude of a usual quotient by a root; NaN if there is none."""
    smallest_divisor = maximum(epsilon, reciprocal * 2.0**-50)
    quotient = maximum(divide(tl.full((), 2.0**-100, tl.float32), smallest_divisor), 2.0**-120)
    is_usual = (correction >= 2.0**-30) & (correction <= 2.0**30)
    is_usual &= (epsilon >= 0.0) & (epsilon <= 2.0**60)
    return tl.where(is_usual, quotient, float("nan"))


@triton.jit
def divide_by_root(a, v, correction, epsilon, CORRECTED: tl.constexpr, GROUP: tl.constexpr):
    """Return (a / (sqrt(v) / correction + epsilon), sqrt(v)); each operation is rounded once.

    Args:
        a, v: float32.
        correction, epsilon: float32. Scalars are faster than blocks.
        CORRECTED: False to leave out the division by `correction`.
        GROUP: The number of elements per thread. 8 and 4 are fastest.
    """
    # Triton 3.2 has no `or` for numbers of Python.
    if lacks_ptx() | correction.type.is_block() | epsilon.type.is_block():
        root = square_root(v)
        divisor = root
        if CORRECTED:
            divisor = divide(root, correction)
        return divide(a, divisor + epsilon), root
    else:
        reciprocal = divide(tl.full((), 1, tl.float32), correction)
        least_quotient = _least_quotient(correction, reciprocal, epsilon)
        if GROUP == 8:
            text: tl.constexpr = _BY_CORRECTED_ROOT8 if CORRECTED else _BY_ROOT8
            constraints: tl.constexpr = _OPERANDS8
        elif GROUP == 4:
            text: tl.constexpr = _BY_CORRECTED_ROOT4 if CORRECTED else _BY_ROOT4
            constraints: tl.constexpr = _OPERANDS4
        else:
            text: tl.constexpr = _BY_CORRECTED_ROOT if CORRECTED else _BY_ROOT
            constraints: tl.constexpr = _OPERANDS
        return tl.inline_asm_elementwise(
            text,
            constraints,
            # Triton 3.2 would bind a name to the first entry of a list.
            [a, v, correction, reciprocal, epsilon, least_quotient],
            (tl.float32, tl.float32),
            is_pure=True,
            pack=GROUP if GROUP == 8 or GROUP == 4 else 1,
        )


@triton.jit
def divide_nearly(a, b):
    """Return a quotient, in float32 within 2 ulp."""
    return a / b


@triton.jit
def square_root_nearly(x):
    """Return a square root, in float32 within one part in 2^23."""
    return tl.sqrt(x)


@triton.jit
def square(x):
    """Return a number times itself."""
    return x * x


@triton.jit
def absolute(x):
    return tl.abs(x)


@triton.jit
def sign(x):
    """Return -1, 0 or 1; NaN for NaN."""
    unit = tl.full((), 1, x.dtype)
    return tl.where(x > 0, unit, tl.where(x < 0, -unit, x))


@triton.jit
def choose(condition, a, b):
    """Return `a` where the condition holds, else `b`."""
    return tl.where(condition, a, b)


@triton.jit
def maximum(a, b):
    """Return the larger number; NaN if either is NaN."""
    # By default `tl.maximum` returns the operand that is not NaN.
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def minimum(a, b):
    """Return the smaller number; NaN if either is NaN."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def wide(x):
    return x.to(tl.float64)


@triton.jit
def narrow(x, like):
    """Return a number rounded to the dtype of `like`."""
    return x.to(like.dtype)


if INTERPRETED:
    # The interpreter computes with NumPy; these are the functions of the other engines.
    import numpy as np
    from triton.runtime.interpreter import TensorHandle

    def _call_numpy(function, *operands):
        """Apply a float64 function of `libm` to tensors; round to the dtype of the first one."""
        triton_dtype = operands[0].dtype
        arrays = np.broadcast_arrays(
            *(operand.handle.data.astype(np.float64) for operand in operands)
        )
        results = np.vectorize(function, otypes=[np.float64])(*arrays)
        numpy_dtype = np.float64 if triton_dtype == tl.float64 else np.float32
        with np.errstate(all="ignore"):
            array = np.asarray(results, np.float64).astype(numpy_dtype)
        shape = [tl.constexpr(size) for size in array.shape]
        block = tl.block_type(triton_dtype, shape) if shape else triton_dtype
        return tl.tensor(TensorHandle(array, triton_dtype), block)

    def exponential(x):
        """Return e to the power x."""
        return _call_numpy(libm.exp, x)

    def logarithm(x):
        return _call_numpy(libm.log, x)

    def power(x, y):
        return _call_numpy(libm.power, x, y)

else:
    from triton.language.extra import libdevice

    @triton.jit
    def exponential(x):
        """Return e to the power x, computed in float64 and rounded once."""
        return libdevice.exp(x.to(tl.float64)).to(x.dtype)

    @triton.jit
    def logarithm(x):
        """Return the natural logarithm, computed in float64 and rounded once."""
        return libdevice.log(x.to(tl.float64)).to(x.dtype)

    @triton.jit
    def power(x, y):
        """Return x to the power y, computed in float64 and rounded once."""
        return libdevice.pow(x.to(tl.float64), y.to(tl.float64)).to(x.dtype)


@triton.jit
def to_float16(x):
    """Return a number rounded to float32, then to float16."""
    # Kernels for CPUs round in these two steps, too.
    return x.to(tl.float32).to(tl.float16)


@triton.jit
def from_float16(x):
    return x.to(tl.float32)


# AMD's GPUs and those below compute capability 8.0 have no bfloat16 instructions, and not every
# version of Triton has a substitute. The interpreter truncates to bfloat16 and misreads denormal
# bfloat16.
@triton.jit
def to_bfloat16_by_bits(x):
    """Return what `to_bfloat16` does, computed with integers."""
    x = x.to(tl.float32)
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
    return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)


_FROM_BFLOAT16 = tl.constexpr("shl.b32 $0, $2, 16; and.b32 $1, $2, 0xFFFF0000;")


@triton.jit
def from_bfloat16(x):
    """Return a bfloat16 as float32."""
    if lacks_ptx():
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        # Each half of a word is moved by one instruction.
        return tl.inline_asm_elementwise(
            _FROM_BFLOAT16, "=&f,=f,r", [x], tl.float32, is_pure=True, pack=2
        )


if INTERPRETED:
    to_bfloat16 = to_bfloat16_by_bits

else:

    @triton.jit
    def to_bfloat16(x):
        """Return a number rounded to float32, then to bfloat16."""
        return x.to(tl.float32).to(tl.bfloat16)


@triton.jit
def literal32(value: tl.constexpr):
    """Return a constant of a formula as float32."""
    return tl.full((), value, tl.float32)


@triton.jit
def literal64(value: tl.constexpr):
    """Return a constant of a formula as float64."""
    return tl.full((), value, tl.float64)


@triton.jit
def flush(x):
    """Return `x`; a denormal becomes a zero of equal sign."""
    if x.dtype == tl.float32:
        smallest_normal = tl.full((), 1.1754943508222875e-38, tl.float32)
    else:
        smallest_normal = tl.full((), 2.2250738585072014e-308, tl.float64)
    # The product has the sign of `x`.
    return tl.where(tl.abs(x) < smallest_normal, x * tl.full((), 0, x.dtype), x)


@triton.jit
def pointer(addresses, element: tl.constexpr, ALIGNED: tl.constexpr):
    """Load an address from a table and return it as a typed pointer.

    Args:
        addresses: Pointer to the address.
        element: The dtype of the elements at the address.
        ALIGNED: True if the address is a multiple of 16 bytes.
    """
    address = tl.load(addresses).to(tl.pointer_type(element))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address


@triton.jit
def opaque(index):
    """Return a loop's index, unchanged, by assembly that the compiler cannot analyze.

    Otherwise, the compiler would keep and increment an address for each stream.
    """
    if lacks_ptx():
        return index
    else:
        return tl.inline_asm_elementwise(
            "mov.b32 $0, $1;", "=r,r", [index], tl.int32, is_pure=True, pack=1
        )


@triton.jit
def load(start, offsets, length, MASKED: tl.constexpr):
    """Load elements at offsets, in their storage dtype; 0 from `length` on if MASKED."""
    if MASKED:
        return tl.load(start + offsets, mask=offsets < length, other=0)
    else:
        return tl.load(start + offsets)


@triton.jit
def load_where(start, offsets, mask, MASKED: tl.constexpr):
    """Load elements at offsets, in their storage dtype; 0 outside of `mask` if MASKED."""
    if MASKED:
        return tl.load(start + offsets, mask=mask, other=0)
    else:
        return tl.load(start + offsets)


@triton.jit
def store(start, offsets, values, length, MASKED: tl.constexpr):
    """Store values of the storage dtype at offsets; only those below `length` if MASKED."""
    if MASKED:
        tl.store(start + offsets, values, mask=offsets < length)
    else:
        tl.store(start + offsets, values)


@triton.jit
def saturated(x, largest):
    """Return a number clamped to [-largest, largest]; NaN for NaN."""
    x = tl.where(x < -largest, -largest, x)
    return tl.where(x > largest, largest, x)


@triton.jit
def is_same_float16(x, copy):
    return x.to(tl.int16, bitcast=True) == copy.to(tl.int16, bitcast=True)


@triton.jit
def is_nearest_bfloat16(x, copy):
    """Return True if a copy is a nearest bfloat16 to a float32; see `copies.is_nearest`."""
    upper = copy.to(tl.int16, bitcast=True).to(tl.uint16, bitcast=True).to(tl.uint32) << 16
    difference = x.to(tl.uint32, bitcast=True) - upper
    return (difference + 0x8000 <= 0x10000) & (x == x)


@triton.jit
def _added(a, b):
    """Return a sum, as `tl.reduce` takes it."""
    return a + b


@triton.jit
def fold(x, HALF: tl.constexpr):
    """Return the upper half of lanes added to the lower half."""
    if INTERPRETED:
        low, high = tl.split(tl.permute(tl.reshape(x, (2, HALF)), (1, 0)))
        return low + high
    else:
        return tl.reduce(tl.reshape(x, (2, HALF)), 0, _added)


@triton.jit
def fold_largest(x, HALF: tl.constexpr):
    """Return the elementwise maximum of the upper and the lower half of lanes."""
    if INTERPRETED:
        low, high = tl.split(tl.permute(tl.reshape(x, (2, HALF)), (1, 0)))
        return maximum(low, high)
    else:
        return tl.reduce(tl.reshape(x, (2, HALF)), 0, maximum)


@triton.jit
def fold_neighbours(x, HALF: tl.constexpr):
    """Return the sum of each even lane and the next lane."""
    even_lanes, odd_lanes = tl.split(tl.reshape(x, (HALF, 2)))
    return even_lanes + odd_lanes
