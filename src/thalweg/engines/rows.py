"""Sparse gradients as work: which rows are named, by which entries, and which rows are left.

The functions with plain loops are compiled by Numba (see `cpu.jitted`) and also run as they are.
"""

from __future__ import annotations

import numpy as np


def group_rows(indices, rows, table, row_of, first, last, following):  # pyright: ignore
    """Group entries by row, rows in order of first appearance, entries in order of appearance.

    Args:
        indices: (n,) rows named by the entries, each in [0, rows).
        rows: Number of rows of the variable.
        table: (power of two >= 2 n,) scratch, for hashing.
        row_of, first, last: (n,) out: per group its row, first and last entry.
        following: (n,) out: the next entry of the same row, or -1.

    Returns:
        (number of groups, -1), or (0, position) of the first index that is out of range.
    """
    mask = len(table) - 1
    for i in range(len(table)):
        table[i] = -1
    groups = 0
    for entry in range(len(indices)):
        row = np.int64(indices[entry])
        if row < 0 or row >= rows:
            return 0, entry
        place = ((row * -7046029254386353131) >> 20) & mask
        while table[place] >= 0 and row_of[table[place]] != row:
            place = (place + 1) & mask
        group = table[place]
        following[entry] = -1
        if group < 0:
            table[place] = groups
            row_of[groups] = row
            first[groups] = entry
            last[groups] = entry
            groups += 1
        else:
            following[last[group]] = entry
            last[group] = entry
    return groups, -1


def summed_chunks(row_of, first, following, groups, width, shift, chunks, repeated):  # pyright: ignore
    """One chunk per group; a group of several entries reads its gradient from scratch row k.

    Args:
        shift: Distance from the gradient's first element to the scratch's, in elements.
        chunks: (groups, 4) out.
        repeated: (groups,) out: the groups with several entries.

    Returns:
        How many groups have several entries.
    """
    count = 0
    for group in range(groups):
        chunks[group, 0] = 0
        chunks[group, 1] = row_of[group] * width
        chunks[group, 2] = first[group] * width
        chunks[group, 3] = width
        if following[first[group]] >= 0:
            repeated[count] = group
            chunks[group, 2] = shift + count * width
            count += 1
    return count


def successive_chunks(row_of, first, following, groups, width, chunks, together):  # pyright: ignore
    """One chunk per entry, the entries of a row next to each other, in order of appearance."""
    position = 0
    for group in range(groups):
        entry = first[group]
        together[position] = False
        while entry >= 0:
            chunks[position, 0] = 0
            chunks[position, 1] = row_of[group] * width
            chunks[position, 2] = entry * width
            chunks[position, 3] = width
            position += 1
            entry = following[entry]
            if entry >= 0:
                together[position] = True
    return position


def gap_chunks(ordered, rows, width, limit, chunks):  # pyright: ignore
    """The runs of rows between the named ones, cut to `limit` rows.

    Args:
        ordered: (n,) the named rows, ascending, each once.
        chunks: out; long enough for n + 1 + rows // limit runs.

    Returns:
        How many chunks were written.
    """
    count = 0
    start = np.int64(0)
    for k in range(len(ordered) + 1):
        stop = ordered[k] if k < len(ordered) else rows
        while start < stop:
            length = min(stop - start, limit)
            chunks[count, 0] = 0
            chunks[count, 1] = start * width
            chunks[count, 2] = 0
            chunks[count, 3] = length * width
            count += 1
            start += length
        start = stop + 1
    return count
