"""What the look does between a rule's measures and its kernels: scalars of each variable.

The functions here are compiled with those of `look.py`, `program.py` and `adding.py`.
"""

# Code for `compiler`.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821
from __future__ import annotations

MEASURED = 64  # bytes of a record

# Words of a record, of a kernel's variables.
LEAVES = 0  # where the measures of all leaves are, those of a leaf side by side
MEASURES_OF_LEAF = 1  # how many
VARIABLES = 2
LEAVES_OF_EACH = 3  # where it says how many leaves each variable has
PLACES = 4  # and which program
RULE_PROGRAMS = 5  # whose first registers are the measures
FIRST_ROW = 6  # of the kernel's scalars, of which each variable has a row
ROW_SIZE = 7  # bytes


def set_own_scalars(record):
    """Make what a rule makes of the measures of each variable."""
    leaves, measures = record[LEAVES], record[MEASURES_OF_LEAF]
    counts, places = int64_pointer(record[LEAVES_OF_EACH]), int64_pointer(record[PLACES])
    for i in range(record[VARIABLES]):
        program = int64_pointer(record[RULE_PROGRAMS] + PROGRAM * places[i])
        registers = float64_pointer(program[REGISTERS])
        for k in range(measures):
            registers[k] = added_up(float64_pointer(leaves + 8 * k), counts[i], measures)
        leaves = leaves + 8 * measures * counts[i]
        program[ROWS + 1] = record[FIRST_ROW] + record[ROW_SIZE] * i
        run(program)
