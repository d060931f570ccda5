"""Clip factor of the global norm in a replay. Names in capitals are indices of words of `block`.

The factor has the bits that `_core/clip_factor.py` computes. Very large and very small numbers are
left to that module. This file is compiled with `leaf_sums.py`.
"""

# Code for `compiler`.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821
from __future__ import annotations

# Words of the block. An array of records has two words: its length, and the address of the first
# record.
ROUTINE = 0  # the address of the compiled `clip`, for `replay_kernel`
HAS_FACTOR = 1  # out: 1 if the factor was computed; otherwise only SQUARES was written
STEP = 2  # the number of the step to which NORM and FACTOR belong; set by `replay_kernel`
# Words 3 to 10 are float64.
NORM = 3  # out
FACTOR = 4  # out
LIMIT = 5
EPSILON = 6  # the number that torch's formula adds to the norm
MIN_SQUARE_SUM = 7  # the range of the sum of squares in which the factor is computed here
MAX_SQUARE_SUM = 8
MAX_NORM = 9
UNSCALING = 10  # the factor by which the norm of each gradient is multiplied
HAS_UNSCALING = 11
IS_FLOAT32 = 12  # 1 if the factor is computed in float32
USES_TORCH_FORMULA = 13  # 1 for torch's formula, 0 for TensorFlow's
COUNT = 14  # the number of gradients
SQUARES = 15  # out: the address of the sums of squares of all gradients
SWEEPS = 16  # kernels that have measured gradients
ROWS = 18  # columns of scalars that receive the factor
PRESENCE_FLAGS = 20  # the address of the flag of the first gradient; 0 if all are present
PRESENCE_STRIDE = 21  # bytes between flags
BLOCK = 22

# The leaves, the number of gradients, the numbers of their leaves, and their indices.
SWEEP_BYTES = 32
# The first number, the count, the bytes between numbers, 1 if the numbers are stored as float32,
# and 1 if they are rounded to float32.
ROW_BYTES = 40

MIN_FACTOR = 1.1754943508222875e-38  # the least normal number of float32


def factor_of(norm, limit, epsilon, unit, is_torchs):
    """Return the clip factor by torch's formula if `is_torchs`, else by TensorFlow's formula.

    torch: min(1, limit / (norm + epsilon)). TensorFlow: limit * min(1 / norm, 1 / limit). All
    numbers have one dtype, in which the factor is computed; `unit` is 1.
    """
    if is_torchs:
        factor = limit / (norm + epsilon)
        return unit if factor > unit else factor
    factor, inverse_limit = unit / norm, unit / limit
    return limit * (inverse_limit if inverse_limit < factor else factor)


def sum_squares(block):
    """Return the sum of squares over all gradients; store each gradient's sum in SQUARES.

    A gradient's sum is added up from leaves, partial sums that kernels have stored. A gradient with
    a presence flag of 0 gets no entry in SQUARES. Sums are multiplied by the square of UNSCALING.
    """
    numbers, squares = float64_pointer(address_of(block)), float64_pointer(block[SQUARES])
    for i in range(block[COUNT]):
        squares[i] = 0.0  # no kernel measures a gradient without elements
    for k in range(block[SWEEPS]):
        sweep = int64_pointer(block[SWEEPS + 1] + SWEEP_BYTES * k)
        leaves, counts, places = sweep[0], int64_pointer(sweep[2]), int64_pointer(sweep[3])
        for i in range(sweep[1]):
            squares[places[i]] = add_pairwise(float64_pointer(leaves), counts[i], 1)
            leaves = leaves + 8 * counts[i]
    count = block[COUNT]
    # The tree of sums has leaves for present gradients only.
    if block[PRESENCE_FLAGS]:
        count = 0
        for i in range(block[COUNT]):
            if int64_pointer(block[PRESENCE_FLAGS] + block[PRESENCE_STRIDE] * i)[0]:
                squares[count] = squares[i]
                count = count + 1
    if block[HAS_UNSCALING]:
        for i in range(count):
            root = _f_sqrt(squares[i]) * numbers[UNSCALING]
            squares[i] = root * root
    return add_pairwise(squares, count, 1)


def clip(block):
    """Compute the global norm and the clip factor; write the factor to the kernels' scalars.

    Store the results in NORM and FACTOR, and 1 in HAS_FACTOR. If the sum of squares, the norm or
    the factor is out of range or NaN, store only SQUARES, and 0 in HAS_FACTOR.
    """
    numbers = float64_pointer(address_of(block))
    squares = sum_squares(block)
    norm, limit, epsilon = _f_sqrt(squares), numbers[LIMIT], numbers[EPSILON]
    factor = 0.0
    is_in_range = squares >= numbers[MIN_SQUARE_SUM] and squares <= numbers[MAX_SQUARE_SUM]
    if is_in_range and norm <= numbers[MAX_NORM]:
        is_torchs = block[USES_TORCH_FORMULA]
        if block[IS_FLOAT32]:
            float32_limit, float32_epsilon = float32(limit), float32(epsilon)
            factor = float64(
                factor_of(float32(norm), float32_limit, float32_epsilon, float32(1), is_torchs)
            )
        else:
            factor = factor_of(norm, limit, epsilon, 1.0, is_torchs)
    if factor >= MIN_FACTOR:
        for k in range(block[ROWS]):
            rows = int64_pointer(block[ROWS + 1] + ROW_BYTES * k)
            number = float64(float32(factor)) if rows[4] else factor
            for i in range(rows[1]):
                if rows[3]:
                    float32_pointer(rows[0] + rows[2] * i)[0] = number
                else:
                    float64_pointer(rows[0] + rows[2] * i)[0] = number
        numbers[NORM], numbers[FACTOR], block[HAS_FACTOR] = norm, factor, 1
    else:
        block[HAS_FACTOR] = 0
