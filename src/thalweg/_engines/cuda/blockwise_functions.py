"""Triton functions for stochastic rounding and for slots in 8-bit codes.

Integers are uint32 and numbers are float32, as in the NumPy versions of the same arithmetic:
`thalweg._engines.philox`, `codecs.records` and `codecs.split8`.
"""

# Code for Triton, which has no types.
# pyright: basic
# pyright: reportMissingImports=false
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.random import philox_impl

from thalweg._engines.codecs import codec, dither, root8
from thalweg._engines.cuda.device_functions import divide, divide_within, lacks_ptx, to_float16

LEAST_PEAK = tl.constexpr(codec.LEAST_PEAK)
LARGEST_PEAK = tl.constexpr(codec.LARGEST_PEAK)
NAN = tl.constexpr(codec.NAN)
PERIOD, TURN = tl.constexpr(dither.PERIOD), tl.constexpr(dither.TURN)
ELEMENT_STRIDE = tl.constexpr(dither.ELEMENT_STRIDE)
STEP_STRIDE = tl.constexpr(dither.STEP_STRIDE)
# Of a dither plus 1, as float32: its bits in the mantissa, and the half of a unit behind them.
FRACTION = tl.constexpr(0x7FFFFF & -(1 << (dither.SHIFT - 9)))
HALF_UNIT = tl.constexpr(0x3F800000 | (1 << (dither.SHIFT - 10)))

# Random bits


@triton.jit
def words_of(group, step, number, stream, low, high):
    """Return four random uint32 words for each group of eight elements, by int64 index."""
    lower = (group & 0xFFFFFFFF).to(tl.uint32)
    upper = (((group >> 32) << 8) | stream).to(tl.uint32)
    return philox_impl(lower, step, number, upper, low, high)


@triton.jit
def bits_of(position, step, number, stream, low, high, COUNT: tl.constexpr, ALIGNED: tl.constexpr):
    """Return 16 random bits for each of COUNT consecutive elements, as uint32.

    Args:
        position: Index of the first element in the unsharded variable, int64.
        step, number: The step's number, and the variable's index in the optimizer.
        stream: Index of the stored tensor: 0 for the variable, 1 for its first slot, ...
        low, high: The two words of the key.
        COUNT: Number of elements, a multiple of eight.
        ALIGNED: True if `position` is a multiple of eight.
    """
    group = (position >> 3) + tl.arange(0, COUNT // 8)
    w0, w1, w2, w3 = words_of(group, step, number, stream, low, high)
    # Eight elements that start inside a group need the end of its words and the next group's begin.
    if not ALIGNED:
        # Bits of the position: skip two words, one word, half a word.
        w4, w5, w6, w7 = words_of(group + 1, step, number, stream, low, high)
        bit2, bit1 = (position & 4) != 0, (position & 2) != 0
        w0, w1, w2 = tl.where(bit2, w2, w0), tl.where(bit2, w3, w1), tl.where(bit2, w4, w2)
        w3, w4, w5 = tl.where(bit2, w5, w3), tl.where(bit2, w6, w4), tl.where(bit2, w7, w5)
        w0, w1, w2 = tl.where(bit1, w1, w0), tl.where(bit1, w2, w1), tl.where(bit1, w3, w2)
        w3, w4 = tl.where(bit1, w4, w3), tl.where(bit1, w5, w4)
        bit0 = (position & 1) != 0
        w0 = tl.where(bit0, (w0 >> 16) | (w1 << 16), w0)
        w1 = tl.where(bit0, (w1 >> 16) | (w2 << 16), w1)
        w2 = tl.where(bit0, (w2 >> 16) | (w3 << 16), w2)
        w3 = tl.where(bit0, (w3 >> 16) | (w4 << 16), w3)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return tl.reshape(tl.join(words & 0xFFFF, words >> 16), (COUNT,))


@triton.jit
def whole_position(position, ALIGNED: tl.constexpr):
    """Return a position; if ALIGNED in a form in which the compiler sees a multiple of eight."""
    if ALIGNED:
        position = (position >> 3) << 3
    return position


@triton.jit
def to_bfloat16_by(x, random_bits):
    """Round the magnitude of a float32 to bfloat16, up or down as 16 random bits decide."""
    if lacks_ptx():
        return _to_bfloat16_by(x, random_bits)
    else:
        return tl.inline_asm_elementwise(
            _ROUNDING, _ROUNDING_OPERANDS, [x, random_bits], tl.bfloat16, is_pure=True, pack=_PACK
        )


def _write_rounding(count: int) -> str:
    """Return assembly of `to_bfloat16_by` for an even count of elements.

    The fast code adds the random bits to each number. The slow code rounds numbers with at least
    the magnitude of the largest bfloat16, and NaN, to nearest.
    """
    half = count // 2
    fast_code, slow_code = "", ""
    for k in range(count):
        x, drawn = f"${half + k}", f"${half + count + k}"
        fast_code += f"add.u32 x{k}, {x}, {drawn}; and.b32 y, {x}, 0x7FFFFFFF;"
        fast_code += "max.u32 m, m, y;" if k else "mov.u32 m, y;"
        slow_code += f"""
and.b32 y, {x}, 0x7FFFFFFF; bfe.u32 m, {x}, 16, 1; add.u32 m, m, 0x7FFF; add.u32 m, m, {x};
setp.ge.u32 p, y, 0x7F7F0000; @p mov.u32 x{k}, m;
setp.gt.u32 p, y, 0x7F800000; @p mov.u32 x{k}, 0x7FC00000;"""
    results = "".join(f"prmt.b32 ${k}, x{2 * k}, x{2 * k + 1}, 0x7632;" for k in range(half))
    return f"""{{
.reg .pred p; .reg .b32 y, m, {", ".join(f"x{k}" for k in range(count))};
{fast_code}
setp.lt.u32 p, m, 0x7F7F0000;
@p bra DONE;
{slow_code}
DONE:
{results}
}}"""


PACK = 8
_PACK = tl.constexpr(PACK)
_ROUNDING = tl.constexpr(_write_rounding(PACK))
_ROUNDING_OPERANDS = tl.constexpr(",".join(["=r"] * (PACK // 2) + ["r"] * 2 * PACK))


@triton.jit
def _to_bfloat16_by(x, random_bits):
    """Return the result of `to_bfloat16_by`, without assembly."""
    x_bits = x.to(tl.uint32, bitcast=True)
    magnitude = x_bits & 0x7FFFFFFF
    carried_bits = x_bits + tl.where(
        magnitude < 0x7F7F0000, random_bits, ((x_bits >> 16) & 1) + 0x7FFF
    )
    upper_bits = tl.where(magnitude > 0x7F800000, 0x7FC0, carried_bits >> 16)
    return upper_bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def to_float16_by(x, random_bits):
    """Return a float32 rounded stochastically to float16, by 16 random bits.

    Magnitudes of 65504 or more, and NaN, are rounded to nearest.
    """
    x_bits = x.to(tl.uint32, bitcast=True)
    magnitude = x_bits & 0x7FFFFFFF
    exponent = magnitude >> 23
    unit_exponent = tl.where(exponent > 113, exponent, 113) - 10
    unit = (unit_exponent << 23).to(tl.float32, bitcast=True)
    units = magnitude.to(tl.float32, bitcast=True) * ((254 - unit_exponent) << 23).to(
        tl.float32, bitcast=True
    )
    full_units = tl.floor(units)
    fraction = (units - full_units) * 65536.0 + random_bits.to(tl.float32)
    rounded_magnitude = (tl.where(fraction >= 65536.0, full_units + 1.0, full_units) * unit).to(
        tl.float16
    )
    signed_bits = rounded_magnitude.to(tl.int16, bitcast=True) | ((x_bits >> 16) & 0x8000).to(
        tl.int16
    )
    nearest_bits = to_float16(x).to(tl.int16, bitcast=True)
    return tl.where(magnitude < 0x477FE000, signed_bits, nearest_bits).to(tl.float16, bitcast=True)


# float32 split into a bfloat16 and a correction code


def _write_joining() -> str:
    """Return assembly of `joined` for four elements."""
    # Integers are added in `bits`: Triton 3.2 has outputs in registers of float32.
    lines = ["{.reg .pred p; .reg .b32 bits, code; .reg .f32 size;"]
    for k in range(4):
        word = f"${4 + k // 2}"
        lines += [
            f"and.b32 bits, {word}, 0xFFFF0000;" if k % 2 else f"shl.b32 bits, {word}, 16;",
            # The code times 256, with its sign in the upper bytes.
            f"prmt.b32 code, $6, 0, 0x{8 + k:x}{8 + k:x}{k}4;",
            "mov.b32 size, bits; abs.f32 size, size;",
            "setp.gt.f32 p, size, 0f00000000; setp.lt.and.f32 p, size, 0f7F800000, p;",
            f"@p add.s32 bits, bits, code; mov.b32 ${k}, bits;",
        ]
    return "\n".join([*lines, "}"])


_JOINING = tl.constexpr(_write_joining())
# The second byte of each of four words.
_LOWER = tl.constexpr(
    "{.reg .b32 x, y; prmt.b32 x, $1, $2, 0x0051; prmt.b32 y, $3, $4, 0x0051;"
    "prmt.b32 $0, x, y, 0x5410;}"
)


@triton.jit
def joined(upper, code):
    """Return a bfloat16 `upper` as float32, corrected by an 8-bit code; see `codecs.split8`."""
    if lacks_ptx():
        upper_bits = upper.to(tl.int16, bitcast=True).to(tl.int32) << 16
        magnitude = tl.abs(upper_bits.to(tl.float32, bitcast=True))
        is_corrected = (magnitude > 0.0) & (magnitude < float("inf"))
        corrected_bits = upper_bits + (code.to(tl.int32) << 8)
        return tl.where(is_corrected, corrected_bits, upper_bits).to(tl.float32, bitcast=True)
    else:
        return tl.inline_asm_elementwise(
            _JOINING, "=&f,=&f,=&f,=&f,r,r,r", [upper, code], tl.float32, is_pure=True, pack=4
        )


@triton.jit
def _word_of(x, random_bits):
    """Return the bits of a float32, whose upper 24 bits 8 random bits have rounded."""
    x_bits = tl.where(x == x, x.to(tl.uint32, bitcast=True), 0x7FC00000)
    return x_bits + (random_bits & 0xFF)


@triton.jit
def upper_of(x, random_bits):
    """Return the bfloat16 part of a float32 that `joined` restores."""
    upper_bits = (_word_of(x, random_bits) + 0x8000) >> 16
    return upper_bits.to(tl.int16).to(tl.bfloat16, bitcast=True)


@triton.jit
def lower_of(x, random_bits):
    """Return the int8 correction code of a float32 beside its `upper_of`."""
    word = _word_of(x, random_bits)
    if lacks_ptx():
        return (word >> 8).to(tl.int8)
    else:
        return tl.inline_asm_elementwise(
            _LOWER, "=r,r,r,r,r", [word], tl.int8, is_pure=True, pack=4
        )


# Records of codecs


@triton.jit
def records(addresses, element):
    """Load the address of records; return a pointer to elements of a type, 4-byte aligned."""
    return tl.multiple_of(tl.load(addresses).to(tl.pointer_type(element)), 4)


@triton.jit
def word_pointer(start):
    """Return a pointer to bytes as a pointer to 32-bit integers."""
    return start.to(tl.pointer_type(tl.int32), bitcast=True)


@triton.jit
def store_where(start, offsets, values, mask, MASKED: tl.constexpr):
    """Store values, cut to the integer type of `start`; only where `mask` if MASKED."""
    values = values.to(start.dtype.element_ty)
    if MASKED:
        tl.store(start + offsets, values, mask=mask)
    else:
        tl.store(start + offsets, values)


@triton.jit
def _store_words(addresses, words):
    """Store 32-bit integers at int64 addresses; each thread stores the integers that it holds.

    `tl.store` would first exchange integers between threads, through shared memory.
    """
    tl.inline_asm_elementwise(
        "st.global.b32 [$1], $2; mov.b32 $0, 0;",
        "=r,l,r",
        [addresses, words],
        tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def store_scales(start, offsets, values, mask, MASKED: tl.constexpr):
    """Store the bits of the scales of records; only where `mask` if MASKED."""
    if MASKED or lacks_ptx():
        store_where(start, offsets, values, mask, MASKED)
    else:
        _store_words((start + offsets).to(tl.int64), values)


# The first byte of each of four words.
_PACKING = tl.constexpr(
    "{.reg .b32 x, y; prmt.b32 x, $1, $2, 0x0040; prmt.b32 y, $3, $4, 0x0040;"
    "prmt.b32 $0, x, y, 0x5410;}"
)


@triton.jit
def store_codes(start, offsets, fours, codes, mask, MASKED: tl.constexpr):
    """Store 8-bit codes at `start + offsets`. If MASKED, store only where `mask` is True.

    Codes of a row are adjacent in groups of four; `fours` has the offset of each first code.
    """
    if MASKED or lacks_ptx():
        store_where(start, offsets, codes, mask, MASKED)
    else:
        ROWS: tl.constexpr = codes.shape[0]
        WORDS: tl.constexpr = codes.shape[1] // 4
        parts = tl.reshape(codes.to(tl.int32), (ROWS, WORDS, 2, 2))
        even_codes, odd_codes = tl.split(parts)
        code0, code2 = tl.split(even_codes)
        code1, code3 = tl.split(odd_codes)
        words = tl.inline_asm_elementwise(
            _PACKING, "=r,r,r,r,r", [code0, code1, code2, code3], tl.int32, is_pure=True, pack=1
        )
        _store_words((start + fours).to(tl.int64), words)


@triton.jit
def tile_of(x, offsets, length, MASKED: tl.constexpr):
    """Broadcast a number to the shape of a tile, with zeros from `length` on if MASKED."""
    x = tl.broadcast_to(x, offsets.shape)
    if MASKED:
        x = tl.where(offsets < length, x, 0.0)
    return x


@triton.jit
def _larger(a, b):
    """Return the larger of two numbers, NaN if either is NaN; as `tl.reduce` takes it."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def peaks_of(x, PARTS: tl.constexpr):
    """Return for each row the bits of the largest magnitude, or NaN, in the row's block.

    A block has PARTS rows of `x`. The result has the shape (rows, 1).
    """
    if lacks_ptx():
        peaks = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    else:
        peaks = tl.reduce(tl.abs(x), 1, _larger).to(tl.int32, bitcast=True)
    if PARTS > 1:
        ROWS: tl.constexpr = x.shape[0]
        block_peaks = tl.max(tl.reshape(peaks, (ROWS // PARTS, PARTS)), axis=1)
        peaks = tl.reshape(
            tl.broadcast_to(tl.expand_dims(block_peaks, 1), (ROWS // PARTS, PARTS)), (ROWS,)
        )
    return tl.expand_dims(peaks, 1)


@triton.jit
def _has_scale(peaks):
    """Return True if the peak of a block is in the range of scales."""
    return (peaks > LEAST_PEAK) & (peaks <= LARGEST_PEAK)


@triton.jit
def scale_of(peaks):
    """Return the scale of each block: its peak, or 1 outside of the range of scales."""
    return tl.where(_has_scale(peaks), peaks, 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def kept_of(peaks):
    """Return the bits to store as a scale: the peak, 0 if it is too small, NaN if too large."""
    return tl.where(_has_scale(peaks), peaks, tl.where(peaks > LARGEST_PEAK, NAN, 0))


@triton.jit
def dithers_of(element, step):
    """Return the dithers of int64 element indices in a step; 0.5 if `step` is negative."""
    element = element.to(tl.uint32)
    rank = (element + (element // PERIOD) * TURN) & (PERIOD - 1)
    total = rank * ELEMENT_STRIDE + step.to(tl.uint32) * STEP_STRIDE
    # The dither plus 1, and 1.5 without steps.
    fraction = tl.where(step < 0, 0, FRACTION).to(tl.uint32)
    begin = tl.where(step < 0, 0x3FC00000, HALF_UNIT).to(tl.uint32)
    return (((total >> 9) & fraction) | begin).to(tl.float32, bitcast=True) - 1.0


ROOT8_STEP = tl.constexpr(root8.STEP)

# Codes in fewer instructions than the formulas of codecs have, with the same bits


@triton.jit
def _scaled_inverse(peaks, largest):
    """Return the largest code divided by the scale of each block; 0 for blocks without a scale."""
    return tl.where(_has_scale(peaks), divide(largest, scale_of(peaks)), 0.0)


@triton.jit
def encode_linear8(x, peaks):
    """Return reals between codes of `linear8`; zeros and NaN in blocks without a scale."""
    return x * _scaled_inverse(peaks, 127.0)


@triton.jit
def encode_root8(x, peaks):
    """Return reals between codes of `root8`; zeros and NaN in blocks without a scale."""
    # A root is from 2**-75 to 2**64.
    return x * tl.where(_has_scale(peaks), divide_within(255.0, scale_of(peaks)), 0.0)


def _write_conversion(kind: str) -> str:
    """Return assembly of `number_of` for four codes, signed (s32) or not (u32)."""
    lines = (f"bfe.{kind} x, $4, {8 * k}, 8; cvt.rn.f32.{kind} ${k}, x;" for k in range(4))
    return "{.reg .b32 x;" + "".join(lines) + "}"


_FROM_INT8 = tl.constexpr(_write_conversion("s32"))
_FROM_UINT8 = tl.constexpr(_write_conversion("u32"))


@triton.jit
def number_of(code):
    """Return int8 or uint8 codes as float32."""
    if lacks_ptx():
        return code.to(tl.float32)
    else:
        return tl.inline_asm_elementwise(
            _FROM_INT8 if code.dtype == tl.int8 else _FROM_UINT8,
            "=&f,=&f,=&f,=&f,r",
            [code],
            tl.float32,
            is_pure=True,
            pack=4,
        )


@triton.jit
def code_of(code):
    return code


# The float 2**23 + code times the step, less 2**23 steps, is rounded once, as code * step.
_ROOT8 = tl.constexpr(
    "{.reg .b32 x; .reg .f32 s, t; mov.f32 s, 0f3B808081; mov.f32 t, 0fC7008081;"
    + "".join(f"prmt.b32 x, $4, 0x4B000000, 0x744{k}; fma.rn.f32 ${k}, x, s, t;" for k in range(4))
    + "}"
)


@triton.jit
def decode_root8(code, scale):
    """Return the float32 number of a uint8 code of `root8`."""
    if lacks_ptx():
        root = code.to(tl.float32) * tl.full((), ROOT8_STEP, tl.float32)
    else:
        root = tl.inline_asm_elementwise(
            _ROOT8, "=&f,=&f,=&f,=&f,r", [code], tl.float32, is_pure=True, pack=4
        )
    root = root * scale
    return root * root


@triton.jit
def decode_softsign8(code, scale):
    return _divide_codes(code, 254.0 - tl.abs(code)) * scale


_SOFTSIGN8 = tl.constexpr(
    "{.reg .f32 n, e, y, q; rcp.approx.ftz.f32 y, $2; mul.rn.f32 q, $1, y;"
    "neg.f32 n, $2; fma.rn.f32 e, n, q, $1; fma.rn.f32 $0, e, y, q;}"
)


@triton.jit
def _divide_codes(code, divisor):
    """Return the quotient of a code and a divisor of `softsign8`, correctly rounded.

    The approximate reciprocal must be within 3 units in the last place.
    """
    if lacks_ptx():
        return tl.div_rn(code, divisor)
    else:
        return tl.inline_asm_elementwise(
            _SOFTSIGN8, "=f,f,f", [code, divisor], tl.float32, is_pure=True, pack=1
        )


@triton.jit
def encode_softsign8(x, peaks):
    """Return codes of `softsign8` as real numbers; 0 or NaN in blocks without a scale."""
    # Dividend and divisor are multiplied by a power of 2, so that half of the scale is from 1 to 2.
    # Only numbers below 2**-120 of the scale lose bits; their code is 0.
    has_scale = _has_scale(peaks)
    unit = ((255 - (peaks >> 23)) << 23).to(tl.float32, bitcast=True)
    unit = tl.where(has_scale, unit, 0.0)
    half_scale = tl.where(has_scale, (scale_of(peaks) * 0.5) * unit, 1.0)
    half = (x * 0.5) * unit
    return divide_within(half, half_scale + tl.abs(half)) * 254.0


@triton.jit
def positive_code(x, dithers, SMALLEST_CODE: tl.constexpr):
    """Return the codes of dithered positive reals, at least SMALLEST_CODE; 0 for others."""
    dithered = tl.where(x > SMALLEST_CODE, x, SMALLEST_CODE * 1.0) + dithers
    return tl.where(x > 0.0, dithered, 0.0).to(tl.int32)


# The factor is 1 for all roots but zeros and NaN: the least is 2**-75.
_POSITIVE = tl.constexpr(
    "{.reg .f32 s; mul.rn.sat.f32 s, $1, 0f71800000; fma.rn.f32 $0, $2, s, $3;}"
)


@triton.jit
def root_code(x, root, dithers, SMALLEST_CODE: tl.constexpr):
    """Return `positive_code(x, dithers, SMALLEST_CODE)`, in fewer instructions.

    `x` has the codes of `root` before rounding. Both are positive for the same elements.
    """
    if lacks_ptx():
        return positive_code(x, dithers, SMALLEST_CODE)
    else:
        codes = tl.where(x > SMALLEST_CODE, x, SMALLEST_CODE * 1.0)
        dithered = tl.inline_asm_elementwise(
            _POSITIVE, "=f,f,f,f", [root, codes, dithers], tl.float32, is_pure=True, pack=1
        )
        return dithered.to(tl.int32)


@triton.jit
def signed_code(x, dithers):
    """Return the integer codes of dithered reals of any sign."""
    magnitude = tl.abs(x)
    sign_bits = x.to(tl.uint32, bitcast=True) & 0x80000000
    dithers = (dithers.to(tl.uint32, bitcast=True) | sign_bits).to(tl.float32, bitcast=True)
    return (x * tl.where(magnitude < 1.0, magnitude, 1.0) + dithers).to(tl.int32)
