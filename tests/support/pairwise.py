"""Pairwise covering arrays: a few rows of a table in which values of two columns still meet."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any, TypeVar

Row = TypeVar("Row", bound=tuple[Any, ...])


def cover_pairs(rows: Iterable[Row]) -> list[Row]:
    """Return rows that have together each pair of values of two columns that the table has.

    Faults depend on one value, or on two that meet, far more often than on three. Every value of a
    column occurs, too. The rows are chosen greedily, so the same table gives the same rows.

    Args:
        rows: The table: tuples of equal length. Values are equal if their `repr` is.

    Returns:
        The chosen rows, in the order of the table.
    """
    table = list(rows)
    missing_of = [set(combinations(enumerate(map(repr, row)), 2)) for row in table]
    candidates, chosen = range(len(table)), []
    while candidates:
        best = max(candidates, key=lambda index: len(missing_of[index]))
        covered = missing_of[best].copy()
        for index in candidates:
            missing_of[index] -= covered
        candidates = [index for index in candidates if missing_of[index]]
        chosen.append(best)
    return [table[index] for index in sorted(chosen)]
