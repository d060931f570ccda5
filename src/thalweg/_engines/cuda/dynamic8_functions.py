"""Triton functions for slots in `dynamic8`, with the bits of its formulas.

A number's exponent selects its decade (factor of ten). Tables of 32 entries have the constants of
decades: each lane of a warp holds an entry, which a shuffle reads. Quotients by the end of a decade
and by 0.9 are sums of two products with the two parts of the reciprocal, exact for all numerators.
"""

# Code for Triton, which has no types.
# pyright: basic
# pyright: reportMissingImports=false, reportRedeclaration=false
from __future__ import annotations

from functools import partial

import numpy as np
import triton
import triton.language as tl

from thalweg._engines.codecs import dynamic8
from thalweg._engines.cuda.blockwise_functions import _has_scale
from thalweg._engines.cuda.device_functions import INTERPRETED, divide_within

LANES = 32
_ENDS = np.array([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0], np.float32)
_ONE = 1 << 23  # of an exponent
_TENTH, _NINE_TENTHS, _THIRD, _FIVE_THIRDS, _FIRST_INVERSE = (
    tl.constexpr(float(np.float32(x))) for x in (0.1, 0.9, 1 / 3, 5 / 3, 1 / dynamic8.FIRST)
)
_INVERSE = tl.constexpr(float(np.float32(1 / _NINE_TENTHS.value)))
_INVERSE_LOW = tl.constexpr(float(np.float32(1 / _NINE_TENTHS.value - _INVERSE.value)))
# The share whose rank in `dynamic8_positive` is exactly 7, the least code of a step.
_LEAST_SHARE = tl.constexpr(float.fromhex("0x1.0624dcp-16"))


def _make_tables(upper_count: int, is_positive: bool) -> np.ndarray:
    """Return the constants of decades (factors of ten), as 32-bit words of shape (6, lanes).

    `codecs.dynamic8` defines shares, ranks and decades. The exponent of a share selects a column of
    row 0. The exponent of the sum in row 0 selects a column of the other rows. The rows are:
      0. The integer to add to the bits of the share.
      1, 2. The reciprocal of the end of the decade, and the rest of the reciprocal.
      3, 4. The count of numbers of the decade, and the index of its last number.
      5. The rank of its first number.
    Shares above the second largest number have the last column. Shares below the first number have
    the first columns, which may give any rank from 1 on. Row 2 of the first columns has the ends of
    decades, for decoding.
    """
    singles = partial(np.asarray, dtype=np.float32)
    counts = singles(upper_count / 2.0 ** np.arange(6, -1, -1))
    borders = dynamic8.border(_ENDS[1:], counts[1:])
    top = dynamic8.number_at(counts[-1:] - 1, _ENDS[-1:], counts[-1:])
    cuts = singles([dynamic8.FIRST, *borders, *np.nextafter(top, np.float32(1)), 1])
    cuts = cuts.view(np.int32)
    entries = np.searchsorted(cuts[:-1] >> 23, np.arange(128 - LANES, 128))
    inverses = 1 / np.array([1, *_ENDS, 1], np.float64)
    counts = singles([upper_count, *counts, 2 * upper_count])
    last_places, base = counts - 1, counts - is_positive
    last_places[-1], base[-1] = counts[-1], 0.5 - is_positive
    low = inverses - singles(inverses)
    rows = [singles(row).view(np.int32) for row in (inverses, low, counts, last_places, base)]
    table = np.stack([-cuts & (_ONE - 1), *rows])[:, entries]
    # Of the largest code: its rank has the mantissa 1 + 1 / (4 * upper_count).
    tenths = singles([0.1]) + singles([0.25 / upper_count]) * singles([0.9])
    ends = singles([0, *_ENDS, *(1 if is_positive else -1) / tenths])
    table[2, : len(ends)] = ends.view(np.int32)
    return table


_TABLES, _TABLES_POSITIVE = _make_tables(64, False), _make_tables(128, True)


def _write_tables(tables: np.ndarray) -> str:
    """Return assembly that sets a register for each table to the entry of the lane."""
    lines = ["{.reg .pred p; .reg .u32 lane; mov.u32 lane, %laneid;"]
    lines += [f"mov.b32 ${row}, {entry};" for row, entry in enumerate(tables[:, 0])]
    for lane in range(1, LANES):
        changed_rows = np.flatnonzero(tables[:, lane] != tables[:, lane - 1])
        lines += [f"setp.ge.u32 p, lane, {lane};"] * bool(len(changed_rows))
        lines += [f"@p mov.b32 ${row}, {tables[row, lane]};" for row in changed_rows]
    return "\n".join([*lines, "}"])


_LOADING, _LOADING_POSITIVE = map(tl.constexpr, map(_write_tables, (_TABLES, _TABLES_POSITIVE)))

if INTERPRETED:
    from triton.runtime.interpreter import TensorHandle

    def dynamic8_tables(anything, POSITIVE):
        return tuple(_TABLES_POSITIVE if POSITIVE else _TABLES)

    def _look_up(table, index):
        """Return entries of a table, by the lower 5 bits of an index."""
        entries = table[index.handle.data & (LANES - 1)]
        return tl.tensor(TensorHandle(entries, tl.int32), index.type)

    def _integer_of(x):
        """Return the integer part of a number; 0 for negative numbers and NaN."""
        return tl.where(x > 0, x, 0.0).to(tl.int32)

    @triton.jit
    def _multiply_add(a, b, c):
        """Return a * b + c, rounded once for nearly all numbers."""
        return (a.to(tl.float64) * b + c).to(tl.float32)

else:

    @triton.jit
    def dynamic8_tables(anything, POSITIVE: tl.constexpr):
        """Return the tables of `dynamic8` or `dynamic8_positive`: of each, the entry of a lane.

        The first argument is any int32 number.
        """
        text: tl.constexpr = _LOADING_POSITIVE if POSITIVE else _LOADING
        return tl.inline_asm_elementwise(
            text,
            "=r,=r,=r,=r,=r,=r,r",
            [anything],
            (tl.int32, tl.int32, tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=True,
            pack=1,
        )

    @triton.jit
    def _look_up(table, index):
        """Return entries of a table, by the lower 5 bits of an index."""
        return tl.inline_asm_elementwise(
            "shfl.sync.idx.b32 $0, $1, $2, 31, -1;", "=r,r,r", [table, index], tl.int32, True, 1
        )

    @triton.jit
    def _integer_of(x):
        """Return the integer part of a number; 0 for negative numbers and NaN."""
        return tl.inline_asm_elementwise("cvt.rzi.u32.f32 $0, $1;", "=r,f", [x], tl.int32, True, 1)

    @triton.jit
    def _multiply_add(a, b, c):
        """Return a * b + c, rounded once."""
        return tl.inline_asm_elementwise(
            "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [a, b, c], tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _constant(table, index):
    """Return entries of a table of float32."""
    return _look_up(table, index).to(tl.float32, bitcast=True)


@triton.jit
def _share_of(x, peaks):
    """Return shares: magnitudes divided by the scales of blocks; 0 or NaN without a scale."""
    # Moved to a scale from 2 to 4, so that no part of the quotient underflows.
    has_scale = _has_scale(peaks)
    unit = tl.where(has_scale, (255 - (peaks >> 23)) << 23, 0).to(tl.float32, bitcast=True)
    scale = tl.where(has_scale, peaks.to(tl.float32, bitcast=True) * unit, 2.0)
    x = tl.abs(x) * unit
    inverse = divide_within(tl.full((), 1, tl.float32), scale)
    share = x * inverse
    return _multiply_add(_multiply_add(-scale, share, x), inverse, share)


@triton.jit
def _rank_of(share, shifts, inverses, low_inverses, counts, lasts, bases):
    """Return the unrounded rank of a share. `shifts` to `bases` are rows of `_make_tables`."""
    bits = share.to(tl.int32, bitcast=True)
    lane = (bits + _look_up(shifts, bits >> 23)) >> 23
    low = share * _constant(low_inverses, lane)
    part = _multiply_add(share, _constant(inverses, lane), low) - _TENTH
    part = _multiply_add(part, _INVERSE, part * _INVERSE_LOW)
    place = _multiply_add(part, _constant(counts, lane), -0.5)
    last_place = _constant(lasts, lane)
    place = tl.minimum(
        tl.minimum(place, place * _FIVE_THIRDS), last_place + (place - last_place) * _THIRD
    )
    return _constant(bases, lane) + place


@triton.jit
def code_dynamic8(x, peaks, dithers, t0, t1, t2, t3, t4, t5):
    """Return the integer codes of numbers of any sign; see `signed_code`."""
    share = _share_of(x, peaks)
    small = share * _FIRST_INVERSE
    rank = tl.minimum(small * small, _rank_of(share, t0, t1, t2, t3, t4, t5))
    code = _integer_of(rank + dithers)
    return tl.where(x < 0.0, -tl.minimum(code, 127), code)


@triton.jit
def code_dynamic8_positive(x, peaks, dithers, t0, t1, t2, t3, t4, t5, FLUSH: tl.constexpr):
    """Return the integer codes of nonnegative float32 numbers.

    Args:
        x: The numbers.
        peaks: The bits of the maximum of each number's block.
        dithers: Offsets in (0, 1), added to unrounded codes before the fraction is dropped.
        t0, t1, t2, t3, t4, t5: The rows of `_make_tables`.
        FLUSH: True if a subnormal quotient of number and scale is 0. The code of 0 is 0.
    """
    share = tl.maximum(_share_of(x, peaks), _LEAST_SHARE)
    code = _integer_of(_rank_of(share, t0, t1, t2, t3, t4, t5) + dithers)
    # The largest number whose quotient by the scale is 0.
    if FLUSH:
        zero = tl.maximum(peaks - 1 - (126 << 23), 0)
    else:
        halves = (peaks.to(tl.float32, bitcast=True) * 0.5).to(tl.int32)
        zero = tl.where(peaks < (152 << 23), halves, peaks - (150 << 23))
    zero = tl.where(_has_scale(peaks), zero, 0x7F800000).to(tl.float32, bitcast=True)
    return tl.where(x > zero, code, 0)


@triton.jit
def _number_at(rank, ends):
    """Return the share of a code; `rank` is 4 * |code| + 2, or 2 * code + 3 for positive codes."""
    bits = rank.to(tl.int32, bitcast=True)
    place = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    tenths = _TENTH + _multiply_add(place, _NINE_TENTHS, -_NINE_TENTHS)
    return tenths * _constant(ends, bits >> 23)


@triton.jit
def decode_dynamic8(code, scale, ends):
    share = _number_at(_multiply_add(tl.abs(code), 4.0, 2.0), ends).to(tl.int32, bitcast=True)
    sign = code.to(tl.int32, bitcast=True) & (-(2**31))
    return (share ^ sign).to(tl.float32, bitcast=True) * scale


@triton.jit
def decode_dynamic8_positive(code, scale, ends):
    return _number_at(_multiply_add(code, 2.0, 3.0), ends) * scale
