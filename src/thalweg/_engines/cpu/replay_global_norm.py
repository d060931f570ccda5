"""Clipping by the global norm in a replay, between the measures of gradients and the writes.

It does what `_core/clip_factor.py` does with numbers that are nowhere near the ends of their
type, with the same bits; all else is left to that. It is compiled with `leaf_sums.py`.
"""

# Code for `compiler`.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821
from __future__ import annotations

# Words of its block. Records are arrays: their number, and where the first one lies.
ROUTINE = 0  # the address of this, which the look calls
IS_USUAL = 1  # out: whether there is a factor; else nothing but sums was written
TAKEN = 2  # which step the next two are of, as the look says
NORM = 3  # out, float64; so are those down to UNSCALING
FACTOR = 4  # out
LIMIT = 5
EPSILON = 6  # what torch adds to a norm
LOWEST = 7  # sum of squares that is usual
HIGHEST = 8  # likewise
FURTHEST = 9  # norm that is usual
UNSCALING = 10  # what the norm of each gradient is multiplied by
UNSCALES = 11  # whether it is
IS_NARROW = 12  # whether the factor is made in float32
IS_TORCHS = 13  # whether the formula is torch's, or TensorFlow's
COUNT = 14  # of gradients
SQUARES = 15  # where the sum of the squares of each goes
SWEEPS = 16  # what was measured
ROWS = 18  # where the factor goes
SWITCHES = 20  # address of the flags of gradients; 0 if all are present
SWITCH_STRIDE = 21  # bytes from one to the next
BLOCK = 22

# Bytes of a record.
SWEEP = 32  # the leaves; how many gradients; how many leaves each has, and its place among all
ROW = 40  # the first number, how many, bytes from one to the next; whether they are stored as
# float32, and whether they are rounded to it

LEAST = 1.1754943508222875e-38  # factor that float32 holds with all its bits


def factor_of(norm, limit, epsilon, one, is_torchs):
    """The factor, in the kind of its arguments."""
    if is_torchs:
        factor = limit / (norm + epsilon)
        if factor > one:
            factor = one
        return factor
    factor, other = one / norm, one / limit
    if other < factor:
        factor = other
    return limit * factor


def squares_of(own):
    """The sum of the squares of all gradients, once they were measured."""
    numbers, squares = float64_pointer(address_of(own)), float64_pointer(own[SQUARES])
    for i in range(own[COUNT]):
        squares[i] = 0.0  # that of one without elements, which no kernel has
    for k in range(own[SWEEPS]):
        sweep = int64_pointer(own[SWEEPS + 1] + SWEEP * k)
        leaves, counts, places = sweep[0], int64_pointer(sweep[2]), int64_pointer(sweep[3])
        for i in range(sweep[1]):
            squares[places[i]] = added_up(float64_pointer(leaves), counts[i], 1)
            leaves = leaves + 8 * counts[i]
    count = own[COUNT]
    if own[SWITCHES]:  # the tree of sums has leaves for gradients that are there, and no others
        count = 0
        for i in range(own[COUNT]):
            if int64_pointer(own[SWITCHES] + own[SWITCH_STRIDE] * i)[0]:
                squares[count] = squares[i]
                count = count + 1
    if own[UNSCALES]:
        for i in range(count):
            root = _f_sqrt(squares[i]) * numbers[UNSCALING]
            squares[i] = root * root
    return added_up(squares, count, 1)


def clip(own):
    """Give the kernels the factor, if all is usual: there is no NaN, say."""
    numbers = float64_pointer(address_of(own))
    squares = squares_of(own)
    norm, limit, epsilon = _f_sqrt(squares), numbers[LIMIT], numbers[EPSILON]
    factor = 0.0
    is_usual = squares >= numbers[LOWEST] and squares <= numbers[HIGHEST]
    if is_usual and norm <= numbers[FURTHEST]:
        if own[IS_NARROW]:
            one, bound, added = float32(1), float32(limit), float32(epsilon)
            factor = float64(factor_of(float32(norm), bound, added, one, own[IS_TORCHS]))
        else:
            factor = factor_of(norm, limit, epsilon, 1.0, own[IS_TORCHS])
    if factor >= LEAST:
        for k in range(own[ROWS]):
            rows = int64_pointer(own[ROWS + 1] + ROW * k)
            for i in range(rows[1]):
                if rows[3]:
                    float32_pointer(rows[0] + rows[2] * i)[0] = factor
                elif rows[4]:
                    float64_pointer(rows[0] + rows[2] * i)[0] = float64(float32(factor))
                else:
                    float64_pointer(rows[0] + rows[2] * i)[0] = factor
        numbers[NORM], numbers[FACTOR], own[IS_USUAL] = norm, factor, 1
    else:
        own[IS_USUAL] = 0
