"""Scalar programs: operations that compute the scalars of a kernel in a replay.

The functions here are compiled with those of `replay_kernel.py`, which runs each program of a block
before the kernels. Registers are float64. The result of a float32 operation is rounded to float32,
which has the exact bits for `+ - * /` and square roots.
"""

# Code for `compiler`, which finds its types itself.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821
from __future__ import annotations

PROGRAM = 144  # bytes of a record
INPUT = 24  # bytes: a register, the address of its number, and the kind of that number

# Words of a record.
IN_FLOAT32 = 0  # 1 if powers are computed in float32
OPERATIONS = 1  # the number of operations, and the address of the first
REGISTERS = 3  # the address of the first register
NAMES = 4  # the number of the kernel's scalars, and the address of the indices of their registers
ROWS = 6  # the number of rows of scalars, and the address of the first
POWER = 8  # the address of C's power function
STORED_FLOAT32 = 9  # 1 if the scalars are stored as float32
OF_PYTHON = 10  # 1 for Python's arithmetic: powers are not flushed, and all scalars are finite
INPUTS = 11  # registers loaded before the operations: their number, and the address of records
# The state of a program that runs once for each step count; see `set_scalars_of_members` of
# `replay_kernel.py`.
LAST_ROW = 13  # the row with the latest scalars, or NONE
LAST_STEP = 14  # the step count, float64, of the latest scalars
ROW_COUNT = 15  # the address of the number of rows in use
# Numbers of each variable that a step replaces: their count, and the address of the indices of the
# registers with new values. The registers with old values follow that of the step count.
STATE_NUMBERS = 16

# Words of an operation: its code, the registers of three operands and of the result, flags.
OPERATION = 6
ROUNDS = 1  # flag: the result is rounded to float32
MAY_BE_ANY = 2  # flag: the result may be discarded, so that it need not be finite

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
AT_LEAST = 13

NONE = -1  # in place of a register: other code sets the scalar

# Kinds of numbers in memory; those of floats are their sizes in bytes.
FLOAT32 = 4
FLOAT64 = 8
INT64 = 0

# The least normal numbers.
TINY_FLOAT32 = 1.1754943508222875e-38
TINY_FLOAT64 = 2.2250738585072014e-308
HIGHEST_FLOAT32 = 3.4028234663852886e38
HIGHEST_FLOAT64 = 1.7976931348623157e308


def raise_power(program, x, y):
    """Return `x ** y`, computed in float32 if IN_FLOAT32 is set, else in float64.

    A denormal result becomes 0, unless OF_PYTHON is set.
    """
    power, tiny = 0.0, TINY_FLOAT64
    if program[IN_FLOAT32]:
        power = float64(call_float32(program[POWER], x, y))
        tiny = TINY_FLOAT32
    else:
        power = call_float64(program[POWER], x, y)
    if program[OF_PYTHON] == 0 and _f_absolute(power) < tiny:
        power = 0.0
    return power


def is_finite(x):
    """Return 1 if a number is neither infinite nor NaN, else 0."""
    return _f_absolute(x) <= HIGHEST_FLOAT64


def compare(operation, x, y):
    """Return 1 or 0 for a comparison, max(x, y) for EITHER, min(x, y) for BOTH."""
    if operation == GREATER:
        return _f_where(x > y, 1.0, 0.0)
    if operation == AT_LEAST:
        return _f_where(x >= y, 1.0, 0.0)
    if operation == LESS:
        return _f_where(x < y, 1.0, 0.0)
    if operation == UNEQUAL:
        return _f_where(x != y, 1.0, 0.0)
    if operation == EQUAL:
        return _f_where(x == y, 1.0, 0.0)
    if operation == EITHER:
        return _f_where(x > y, x, y)
    return _f_where(x > y, y, x)


def apply_operation(program, operation, x, y, z):
    """Return the result of an operation, such as ADD, on one, two or three operands."""
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
        return raise_power(program, x, y)
    if operation == CHOOSE:
        return _f_where(x != 0.0, y, z)
    return compare(operation, x, y)


def load_number(address, kind):
    """Return the number at an address as float64."""
    if kind == FLOAT32:
        return float64(float32_pointer(address)[0])
    if kind == INT64:
        return float64(int64_pointer(address)[0])
    return float64_pointer(address)[0]


def store_number(address, kind, number):
    """Store a float64 number at an address, converted to `kind`."""
    if kind == FLOAT32:
        float32_pointer(address)[0] = number
    elif kind == INT64:
        int64_pointer(address)[0] = int64(number)
    else:
        float64_pointer(address)[0] = number


def compute(program):
    """Load the inputs of a program into registers, then run its operations on the registers.

    Return 0. If OF_PYTHON is set and a result is not finite, stop and return 1, because Python
    would raise an error. Results of operations with MAY_BE_ANY are not checked.
    """
    registers = float64_pointer(program[REGISTERS])
    inputs = int64_pointer(program[INPUTS + 1])
    for k in range(program[INPUTS]):
        registers[inputs[3 * k]] = load_number(inputs[3 * k + 1], inputs[3 * k + 2])
    operations, count = int64_pointer(program[OPERATIONS + 1]), program[OPERATIONS]
    for k in range(count):
        word = OPERATION * k
        x, y = registers[operations[word + 1]], registers[operations[word + 2]]
        number = apply_operation(program, operations[word], x, y, registers[operations[word + 3]])
        flags = operations[word + 5]
        if flags & ROUNDS:
            number = float64(float32(number))
        if program[OF_PYTHON] and flags & MAY_BE_ANY == 0 and is_finite(number) == 0:
            return 1
        registers[operations[word + 4]] = number
    return 0


def store_rows(program, first, rows):
    """Store the scalars of a program in `rows` rows of a kernel's table, from address `first` on.

    A scalar without a register keeps its old value. Return 0; or store nothing and return 1 if
    OF_PYTHON is set and a scalar overflows float32.
    """
    registers, narrow = float64_pointer(program[REGISTERS]), program[STORED_FLOAT32]
    names, length = int64_pointer(program[NAMES + 1]), program[NAMES]
    if program[OF_PYTHON] & narrow:
        for k in range(length):
            if names[k] != NONE and _f_absolute(registers[names[k]]) > HIGHEST_FLOAT32:
                return 1
    kind = FLOAT32 if narrow else FLOAT64
    for row in range(rows):
        for k in range(length):
            if names[k] != NONE:
                store_number(first + kind * (length * row + k), kind, registers[names[k]])
    return 0


def run(program):
    """Compute the scalars of a program and store them in all rows of the program.

    Return 0; or store nothing and return 1 if `compute` or `store_rows` returns 1.
    """
    if compute(program):
        return 1
    return store_rows(program, program[ROWS + 1], program[ROWS])
