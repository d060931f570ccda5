"""Loops over rows with entries in a sparse gradient, and over all other rows.

The functions are compiled (see `launch.jit_loop`), and also run as Python.
"""

# Source for `compiler`, which infers types.
# pyright: basic
from __future__ import annotations

import numpy as np


def group_rows(indices, rows, table, row_of, first, next_entry):  # pyright: ignore
    """Group the entries of a sparse gradient by row, as linked lists.

    Rows are in order of first appearance, the entries of a row in order of appearance.

    Args:
        indices: (n,) the row of each entry.
        rows: Number of rows of the variable.
        table: (power of two >= 2 n,) scratch, for hashing.
        row_of, first: (n,) out: the row and the first entry of each group.
        next_entry: (n + 1,) out: for each entry the row's next entry, or -1; element n is scratch.

    Returns:
        (number of groups, -1), or (0, position) of the first index that is not in [0, rows).
    """
    mask = len(table) - 1
    for i in range(len(table)):
        table[i] = -1
    groups = 0
    count = len(indices)
    for entry in range(count):
        row = np.int64(indices[entry])
        if row < 0 or row >= rows:
            return 0, entry
        # The table holds the last entry of each row so far.
        place = ((row * -7046029254386353131) >> 40) & mask
        last_entry = np.int64(table[place])
        while last_entry >= 0 and indices[last_entry] != row:
            place = (place + 1) & mask
            last_entry = np.int64(table[place])
        next_entry[entry] = -1
        # These are written for rows that are not new, too: processors cannot predict a branch here.
        next_entry[count if last_entry < 0 else last_entry] = entry
        table[place] = entry
        row_of[groups] = row
        first[groups] = entry
        groups += last_entry < 0
    return groups, -1


def gap_chunks(named_rows, rows, width, limit, chunks):  # pyright: ignore
    """Write chunks of all rows without entries, of up to `limit` rows each, into `chunks`.

    Args:
        named_rows: (n,) the rows with entries, ascending, each once.
        rows, width: Rows of the variable, and elements of a row.
        chunks: out: (>= n + 1 + rows // limit, 4), as in `work_table.Table`.

    Returns:
        The number of chunks.
    """
    count = 0
    start = np.int64(0)
    for k in range(len(named_rows) + 1):
        stop = named_rows[k] if k < len(named_rows) else rows
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
