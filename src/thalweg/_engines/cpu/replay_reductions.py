"""Scalars of each variable in a replay, computed between a rule's measures and its kernels.

It is compiled with `scalar_program.py` and `leaf_sums.py`.
"""

# Code for `compiler`.
# pyright: basic, reportUndefinedVariable=false
# ruff: noqa: F821
from __future__ import annotations

# Words of its block, of `replay_kernel.MEASURED` bytes, which is that of a kernel's variables.
OWN_ROUTINE = 0  # the address of this, which the look calls
LEAVES = 1  # where the measures of all leaves are, those of a leaf side by side
MEASURES_OF_LEAF = 2  # how many
VARIABLES = 3
LEAVES_OF_EACH = 4  # where it says how many leaves each variable has
PLACES = 5  # and which program
OWN_PROGRAMS = 6  # whose first registers are the measures
FIRST_ROW = 7  # of the kernel's scalars, of which each variable has a row
ROW_SIZE = 8  # bytes
SLOTS = 9  # of shape (), how many each variable has
SLOT_PLACES = 10  # where those of all variables lie, one variable after the other
SLOT_REGISTERS = 11  # which register has what each becomes, or NONE


def load_slot(program, place):
    """A slot, which has the type of the scalars."""
    if program[IN_FLOAT32]:
        return float64(float32_pointer(place)[0])
    return float64_pointer(place)[0]


def store_slot(program, place, number):
    """Write one."""
    if program[IN_FLOAT32]:
        narrow = float32_pointer(place)
        narrow[0] = number
    else:
        wide = float64_pointer(place)
        wide[0] = number


def set_own_scalars(own):
    """Make what a rule makes of the measures of each variable."""
    leaves, measures, slots = own[LEAVES], own[MEASURES_OF_LEAF], own[SLOTS]
    slot_places, results = int64_pointer(own[SLOT_PLACES]), int64_pointer(own[SLOT_REGISTERS])
    counts, places = int64_pointer(own[LEAVES_OF_EACH]), int64_pointer(own[PLACES])
    for i in range(own[VARIABLES]):
        program = int64_pointer(own[OWN_PROGRAMS] + PROGRAM * places[i])
        registers = float64_pointer(program[REGISTERS])
        for k in range(measures):
            registers[k] = added_up(float64_pointer(leaves + 8 * k), counts[i], measures)
        for k in range(slots):
            registers[measures + k] = load_slot(program, slot_places[slots * i + k])
        leaves = leaves + 8 * measures * counts[i]
        program[ROWS + 1] = own[FIRST_ROW] + own[ROW_SIZE] * i
        run(program)
        for k in range(slots):
            if results[k] != NONE:
                store_slot(program, slot_places[slots * i + k], registers[results[k]])
