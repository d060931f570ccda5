"""Scalars of each variable in a replay, computed between a rule's measures and its kernels.

This file is compiled with `scalar_program.py` and `leaf_sums.py`.
"""

# Code for `compiler`.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821
from __future__ import annotations

# Words of the block, which serves the variables of one kernel. Word 0 is unused: a launch sets it.
LEAVES = 1  # the address of the measures of all leaves; those of a leaf are adjacent
MEASURES_OF_LEAF = 2  # the number of measures
VARIABLES = 3  # the number of variables
LEAF_COUNTS = 4  # the address of the number of leaves of each variable
INPUT_ROWS = 5  # the address of float64 scalars that the program reads, a row for each variable
PROGRAM_RECORD = 6  # the address of the program; its first registers are the measures
FIRST_ROW = 7  # the address of the scalars of a kernel, a row for each variable
ROW_BYTES = 8
SLOTS = 9  # the number of slots of shape () of each variable
SLOT_ADDRESSES = 10  # the address of the addresses of slots, variable after variable
SLOT_REGISTERS = 11  # the address of the registers with the new values of slots, or NONE
INPUT_COUNT = 12  # the number of scalars in a row of INPUT_ROWS


def set_rule_scalars(block):
    """Compute a row of kernel scalars and new values of slots for each variable, by a program.

    The program's first registers get the measures of the variable, each added up from leaves, the
    partial sums that kernels have stored. The next registers get the slots of shape (), then the
    scalars of INPUT_ROWS.
    """
    leaves, measures, slots = block[LEAVES], block[MEASURES_OF_LEAF], block[SLOTS]
    slot_addresses = int64_pointer(block[SLOT_ADDRESSES])
    result_registers = int64_pointer(block[SLOT_REGISTERS])
    counts, program = int64_pointer(block[LEAF_COUNTS]), int64_pointer(block[PROGRAM_RECORD])
    registers, inputs = float64_pointer(program[REGISTERS]), float64_pointer(block[INPUT_ROWS])
    slot_kind = FLOAT32 if program[IN_FLOAT32] else FLOAT64
    for i in range(block[VARIABLES]):
        for k in range(measures):
            numbers = float64_pointer(leaves + 8 * k)
            registers[k] = add_pairwise(numbers, counts[i], measures)
            # Another launch may add the numbers again; the sum is the first of them.
            for j in range(1, counts[i]):
                numbers[j * measures] = 0.0
        for k in range(slots):
            registers[measures + k] = load_number(slot_addresses[slots * i + k], slot_kind)
        for k in range(block[INPUT_COUNT]):
            registers[measures + slots + k] = inputs[block[INPUT_COUNT] * i + k]
        leaves = leaves + 8 * measures * counts[i]
        program[ROWS + 1] = block[FIRST_ROW] + block[ROW_BYTES] * i
        run(program)
        for k in range(slots):
            if result_registers[k] != NONE:
                number = registers[result_registers[k]]
                store_number(slot_addresses[slots * i + k], slot_kind, number)


def copy_words(block):
    """Copy words between addresses: block[1] pairs of source and target from block[2] on."""
    pairs = int64_pointer(block[2])
    for k in range(block[1]):
        int64_pointer(pairs[2 * k + 1])[0] = int64_pointer(pairs[2 * k])[0]
