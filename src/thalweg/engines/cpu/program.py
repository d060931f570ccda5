"""The scalars of a kernel, made of numbers in the call that takes a step: a list of operations.

The functions here are compiled with those of `look.py`, which runs each program of a block before
the kernels. Registers are float64; the result of an operation of float32 is rounded to it, which
for `+ - * /` and roots of float32 gives its bits.
"""

# Code for `compiler`, which finds its types itself.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821
from __future__ import annotations

PROGRAM = 88  # bytes of a record

# Words of a record.
IN_FLOAT32 = 0  # whether powers are
OPERATIONS = 1  # how many, and where
REGISTERS = 3
NAMES = 4  # how many scalars the kernel has, and where the register of each is listed
ROWS = 6  # how many there are, and where the first one lies
POWER = 8  # C's function
STORED_FLOAT32 = 9  # whether the scalars are
OF_PYTHON = 10  # whether numbers are Python's: powers are not flushed, and all scalars are finite

# What is done, to which three registers, where the result goes, and whether it is of float32.
OPERATION = 6  # words

ADD = 0
SUBTRACT = 1
MULTIPLY = 2
DIVIDE = 3
ROOT = 4
RAISE = 5
GREATER = 6
UNEQUAL = 7
EITHER = 8
CHOOSE = 9
LESS = 10
BOTH = 11
EQUAL = 12

NONE = -1  # in place of a register: somebody else sets the scalar

# The least normal numbers.
TINY_FLOAT32 = 1.1754943508222875e-38
TINY_FLOAT64 = 2.2250738585072014e-308
HIGHEST_FLOAT32 = 3.4028234663852886e38
HIGHEST_FLOAT64 = 1.7976931348623157e308


def raised(program, x, y):
    """`x` to the power of `y`; 0 below the normal numbers."""
    found, tiny = 0.0, TINY_FLOAT64
    if program[IN_FLOAT32]:
        found = float64(call_float32(program[POWER], x, y))
        tiny = TINY_FLOAT32
    else:
        found = call_float64(program[POWER], x, y)
    if program[OF_PYTHON] == 0 and _f_absolute(found) < tiny:
        found = 0.0
    return found


def is_finite(x):
    """Whether a number is neither infinite nor NaN."""
    if _f_absolute(x) <= HIGHEST_FLOAT64:
        return 1
    return 0


def computed(program, operation, x, y, z):
    """What an operation makes of numbers, of which it may take fewer; conditions are 1 or 0."""
    if operation == ADD:
        return x + y
    if operation == SUBTRACT:
        return x - y
    if operation == MULTIPLY:
        return x * y
    if operation == DIVIDE:
        return x / y
    if operation == ROOT:
        return _f_sqrt(x)
    if operation == RAISE:
        return raised(program, x, y)
    if operation == GREATER:
        return _f_where(x > y, 1.0, 0.0)
    if operation == LESS:
        return _f_where(x < y, 1.0, 0.0)
    if operation == UNEQUAL:
        return _f_where(x != y, 1.0, 0.0)
    if operation == EQUAL:
        return _f_where(x == y, 1.0, 0.0)
    if operation == EITHER:
        return _f_where(x > y, x, y)
    if operation == BOTH:
        return _f_where(x > y, y, x)
    return _f_where(x != 0.0, y, z)


def run(program):
    """Do what a program says, and set the scalars that come of it in each row.

    Returns 1, and sets none, where a number would be an error in Python: one that is not finite, or
    too large for the type of the scalars. Else 0.
    """
    registers, narrow = float64_pointer(program[REGISTERS]), program[STORED_FLOAT32]
    operations, count = int64_pointer(program[OPERATIONS + 1]), program[OPERATIONS]
    for k in range(count):
        at = OPERATION * k
        x, y = registers[operations[at + 1]], registers[operations[at + 2]]
        found = computed(program, operations[at], x, y, registers[operations[at + 3]])
        if operations[at + 5]:
            found = float64(float32(found))
        if program[OF_PYTHON] and is_finite(found) == 0:
            return 1
        registers[operations[at + 4]] = found
    names, length = int64_pointer(program[NAMES + 1]), program[NAMES]
    if program[OF_PYTHON] & narrow:
        for k in range(length):
            if names[k] != NONE and _f_absolute(registers[names[k]]) > HIGHEST_FLOAT32:
                return 1
    for row in range(program[ROWS]):
        for k in range(length):
            register = names[k]
            if register != NONE:
                if narrow:
                    scalars = float32_pointer(program[ROWS + 1] + 4 * length * row)
                    scalars[k] = registers[register]
                else:
                    wide = float64_pointer(program[ROWS + 1] + 8 * length * row)
                    wide[k] = registers[register]
    return 0
