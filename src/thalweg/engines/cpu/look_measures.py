"""What `look.py` calls between a rule's measures and its kernels: scalars of each variable.

It is compiled with `program.py` and `adding.py`.
"""

# Code for `compiler`.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821
from __future__ import annotations

# Words of its block, of `look.MEASURED` bytes, which is that of a kernel's variables.
OWN_ROUTINE = 0  # the address of this, which the look calls
LEAVES = 1  # where the measures of all leaves are, those of a leaf side by side
MEASURES_OF_LEAF = 2  # how many
VARIABLES = 3
LEAVES_OF_EACH = 4  # where it says how many leaves each variable has
PLACES = 5  # and which program
OWN_PROGRAMS = 6  # whose first registers are the measures
FIRST_ROW = 7  # of the kernel's scalars, of which each variable has a row
ROW_SIZE = 8  # bytes


def set_own_scalars(own):
    """Make what a rule makes of the measures of each variable."""
    leaves, measures = own[LEAVES], own[MEASURES_OF_LEAF]
    counts, places = int64_pointer(own[LEAVES_OF_EACH]), int64_pointer(own[PLACES])
    for i in range(own[VARIABLES]):
        program = int64_pointer(own[OWN_PROGRAMS] + PROGRAM * places[i])
        registers = float64_pointer(program[REGISTERS])
        for k in range(measures):
            registers[k] = added_up(float64_pointer(leaves + 8 * k), counts[i], measures)
        leaves = leaves + 8 * measures * counts[i]
        program[ROWS + 1] = own[FIRST_ROW] + own[ROW_SIZE] * i
        run(program)
