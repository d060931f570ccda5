"""A part of `look.py`: clips gradients by their common norm, after they were measured.

It does what `core/common_factor.py` does with numbers that are nowhere near the ends of their type,
with the same bits; all else is left to that. What it says of the step lies in the same block.
"""

# Code for `compiler`, behind the text of `look`.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821
from __future__ import annotations

# Words of what a block has at CLIPPING; float64 but for those that count or are addresses.
NORM_TAKEN = 0  # out: which step the next two are of
NORM_VALUE = 1  # out: the common norm
NORM_FACTOR = 2  # out
NORM_LIMIT = 3
NORM_EPSILON = 4  # what torch adds to a norm
NORM_LOWEST = 5  # sum of squares that is usual
NORM_HIGHEST = 6  # likewise
NORM_FURTHEST = 7  # norm that is usual
NORM_UNSCALING = 8  # what the norm of each gradient is multiplied by
NORM_UNSCALES = 9  # whether it is
NORM_IS_NARROW = 10  # whether the factor is made in float32
NORM_IS_TORCHS = 11  # whether the formula is torch's, or TensorFlow's
NORM_COUNT = 12  # of gradients
NORM_SQUARES = 13  # where the sum of the squares of each goes
NORM_SWEEPS = 14  # what was measured
NORM_ROWS = 16  # where the factor goes
NORM = 18

# Bytes of a record.
SWEEP = 32  # leaves; how many gradients; how many leaves each has, and its place among all
ROWS = 32  # the first number, how many, bytes from one to the next, whether they are float32

LEAST = 1.1754943508222875e-38  # factor that float32 holds with all its bits


def added_up(numbers, count):
    """The sum of numbers in the order of `measuring.Tree`, in the place of the first."""
    while count > 1:
        half = count >> 1
        for i in range(half):
            numbers[i] = numbers[2 * i] + numbers[2 * i + 1]
        if count & 1:
            numbers[half] = numbers[count - 1]
        count = half + (count & 1)
    found = 0.0
    if count == 1:
        found = numbers[0]
    return found


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
    numbers, squares = float64_pointer(address_of(own)), float64_pointer(own[NORM_SQUARES])
    for k in range(own[NORM_SWEEPS]):
        sweep = int64_pointer(own[NORM_SWEEPS + 1] + SWEEP * k)
        leaves, counts, places = sweep[0], int64_pointer(sweep[2]), int64_pointer(sweep[3])
        for i in range(sweep[1]):
            squares[places[i]] = added_up(float64_pointer(leaves), counts[i])
            leaves = leaves + 8 * counts[i]
    if own[NORM_UNSCALES]:
        for i in range(own[NORM_COUNT]):
            root = _f_sqrt(squares[i]) * numbers[NORM_UNSCALING]
            squares[i] = root * root
    return added_up(squares, own[NORM_COUNT])


def clip(block):
    """Give the kernels the factor; BEYOND if something is not usual, such as NaN."""
    own, numbers = int64_pointer(block[CLIPPING]), float64_pointer(block[CLIPPING])
    squares = squares_of(own)
    norm, limit, epsilon = _f_sqrt(squares), numbers[NORM_LIMIT], numbers[NORM_EPSILON]
    factor = 0.0
    is_usual = squares >= numbers[NORM_LOWEST] and squares <= numbers[NORM_HIGHEST]
    if is_usual and norm <= numbers[NORM_FURTHEST]:
        if own[NORM_IS_NARROW]:
            one, bound, added = float32(1), float32(limit), float32(epsilon)
            factor = float64(factor_of(float32(norm), bound, added, one, own[NORM_IS_TORCHS]))
        else:
            factor = factor_of(norm, limit, epsilon, 1.0, own[NORM_IS_TORCHS])
    if factor >= LEAST:
        for k in range(own[NORM_ROWS]):
            rows = int64_pointer(own[NORM_ROWS + 1] + ROWS * k)
            for i in range(rows[1]):
                if rows[3]:
                    float32_pointer(rows[0] + rows[2] * i)[0] = factor
                else:
                    float64_pointer(rows[0] + rows[2] * i)[0] = factor
        numbers[NORM_VALUE] = norm
        numbers[NORM_FACTOR] = factor
        own[NORM_TAKEN] = block[TAKEN] + 1
        return 0
    return BEYOND
