"""What generated kernels call: arithmetic, memory by address, denormals.

Imports Triton, so only generated kernels may import it. `/` and `sqrt` of float32 are approximate
in Triton; `div_rn` and `sqrt_rn`, which know float32 alone, are not, but flush denormals before
Triton 3.5: a GPU is given the instructions themselves.
"""

# Code for Triton, which has no types.
# pyright: basic
# pyright: reportMissingImports=false
from __future__ import annotations

import os

import triton
import triton.language as tl

from thalweg._engines import libm

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def divide(a, b):
    """The nearest number to a quotient."""
    if (a + b).dtype != tl.float32:
        return a / b
    elif INTERPRETED:
        return tl.div_rn(a, b)
    else:
        return tl.inline_asm_elementwise(
            "div.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, is_pure=True, pack=1
        )


@triton.jit
def square_root(x):
    """The nearest number to a root."""
    if x.dtype != tl.float32:
        return tl.sqrt(x)
    elif INTERPRETED:
        return tl.sqrt_rn(x)
    else:
        return tl.inline_asm_elementwise(
            "sqrt.rn.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
        )


@triton.jit
def divide_nearly(a, b):
    """A quotient, in float32 within 2 ulp."""
    return a / b


@triton.jit
def square_root_nearly(x):
    """A root, in float32 within one part in 2^23."""
    return tl.sqrt(x)


@triton.jit
def square(x):
    """A number times itself."""
    return x * x


@triton.jit
def absolute(x):
    """A magnitude."""
    return tl.abs(x)


@triton.jit
def sign(x):
    """-1, 0 or 1; NaN stays NaN."""
    unit = tl.full((), 1, x.dtype)
    return tl.where(x > 0, unit, tl.where(x < 0, -unit, x))


@triton.jit
def choose(condition, a, b):
    """`a` where the condition holds, else `b`."""
    return tl.where(condition, a, b)


@triton.jit
def maximum(a, b):
    """The larger one; NaN if either is."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def minimum(a, b):
    """The smaller one; NaN if either is."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def wide(x):
    """A number as float64."""
    return x.to(tl.float64)


@triton.jit
def narrow(x, like):
    """A number rounded to the type of another."""
    return x.to(like.dtype)


if INTERPRETED:
    # In the interpreter numbers are NumPy's, and these the functions of the other engines.
    import numpy as np
    from triton.runtime.interpreter import TensorHandle

    def _call_numpy(function, *operands):
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
        """e to a number."""
        return _call_numpy(libm.exp, x)

    def logarithm(x):
        """The natural logarithm."""
        return _call_numpy(libm.log, x)

    def power(x, y):
        """A number to the power of another."""
        return _call_numpy(libm.power, x, y)

else:
    from triton.language.extra import libdevice

    @triton.jit
    def exponential(x):
        """e to a number, computed in float64 and rounded once."""
        return libdevice.exp(x.to(tl.float64)).to(x.dtype)

    @triton.jit
    def logarithm(x):
        """The natural logarithm, likewise."""
        return libdevice.log(x.to(tl.float64)).to(x.dtype)

    @triton.jit
    def power(x, y):
        """A number to the power of another, likewise."""
        return libdevice.pow(x.to(tl.float64), y.to(tl.float64)).to(x.dtype)


@triton.jit
def to_float16(x):
    """The nearest number of 16 bits, by way of float32."""
    return x.to(tl.float32).to(tl.float16)


@triton.jit
def from_float16(x):
    """A number of 16 bits as float32."""
    return x.to(tl.float32)


if INTERPRETED:  # which cuts bits off, and reads denormal numbers wrong

    @triton.jit
    def from_bfloat16(x):
        """Likewise."""
        return (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)

    @triton.jit
    def to_bfloat16(x):
        """Likewise."""
        x = x.to(tl.float32)
        bits = x.to(tl.int32, bitcast=True)
        bits = tl.where(x == x, bits + 0x7FFF + ((bits >> 16) & 1), 0x7FC00000)
        return (bits >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)

else:

    @triton.jit
    def from_bfloat16(x):
        """Likewise."""
        return x.to(tl.float32)

    @triton.jit
    def to_bfloat16(x):
        """Likewise."""
        return x.to(tl.float32).to(tl.bfloat16)


@triton.jit
def literal32(value: tl.constexpr):
    """A number of a formula in float32."""
    return tl.full((), value, tl.float32)


@triton.jit
def literal64(value: tl.constexpr):
    """A number of a formula in float64."""
    return tl.full((), value, tl.float64)


@triton.jit
def flush(x):
    """A number, or a zero of its sign in place of a denormal one."""
    if x.dtype == tl.float32:
        smallest_normal = tl.full((), 1.1754943508222875e-38, tl.float32)
    else:
        smallest_normal = tl.full((), 2.2250738585072014e-308, tl.float64)
    return tl.where(tl.abs(x) < smallest_normal, x * tl.full((), 0, x.dtype), x)


@triton.jit
def pointer(addresses, element: tl.constexpr, ALIGNED: tl.constexpr):
    """What an address in a table points at.

    Args:
        addresses: A pointer to it.
        element: The type of the elements there.
        ALIGNED: Whether it is a multiple of 16 bytes.
    """
    address = tl.load(addresses).to(tl.pointer_type(element))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address


@triton.jit
def load(start, offsets, length, MASKED: tl.constexpr):
    """Elements, as they are stored."""
    if MASKED:
        return tl.load(start + offsets, mask=offsets < length, other=0)
    else:
        return tl.load(start + offsets)


@triton.jit
def load_where(start, offsets, mask, MASKED: tl.constexpr):
    """The same of places that are there."""
    if MASKED:
        return tl.load(start + offsets, mask=mask, other=0)
    else:
        return tl.load(start + offsets)


@triton.jit
def store(start, offsets, values, length, MASKED: tl.constexpr):
    """Write elements, of the type that is stored."""
    if MASKED:
        tl.store(start + offsets, values, mask=offsets < length)
    else:
        tl.store(start + offsets, values)


@triton.jit
def saturated(x, largest):
    """A number no larger than that in magnitude; NaN stays NaN."""
    x = tl.where(x < -largest, -largest, x)
    return tl.where(x > largest, largest, x)


@triton.jit
def is_same_float16(x, copy):
    """Return whether a float16 has the bits of a copy."""
    return x.to(tl.int16, bitcast=True) == copy.to(tl.int16, bitcast=True)


@triton.jit
def is_nearest_bfloat16(x, copy):
    """Return whether a copy is a nearest bfloat16 to a float32; see `copies.is_nearest`."""
    upper = copy.to(tl.int16, bitcast=True).to(tl.uint16, bitcast=True).to(tl.uint32) << 16
    difference = x.to(tl.uint32, bitcast=True) - upper
    return (difference + 0x8000 <= 0x10000) & (x == x)


@triton.jit
def _added(a, b):
    return a + b


@triton.jit
def fold(x, HALF: tl.constexpr):
    """The upper half of lanes added to the lower half."""
    if INTERPRETED:
        low, high = tl.split(tl.permute(tl.reshape(x, (2, HALF)), (1, 0)))
        return low + high
    else:
        return tl.reduce(tl.reshape(x, (2, HALF)), 0, _added)


@triton.jit
def fold_largest(x, HALF: tl.constexpr):
    """The larger ones of the upper half of lanes and the lower half."""
    if INTERPRETED:
        low, high = tl.split(tl.permute(tl.reshape(x, (2, HALF)), (1, 0)))
        return maximum(low, high)
    else:
        return tl.reduce(tl.reshape(x, (2, HALF)), 0, maximum)


@triton.jit
def fold_neighbours(x, HALF: tl.constexpr):
    """Each number of an even place and the one after it, added."""
    even_lanes, odd_lanes = tl.split(tl.reshape(x, (HALF, 2)))
    return even_lanes + odd_lanes
