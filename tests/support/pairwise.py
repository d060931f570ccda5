"""Covers: a few rows of a table in which values, or pairs of values, of its columns still occur."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, combinations
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


def cover_values(rows: Iterable[Row], times: int) -> list[Row]:
    """Return rows in which each value of each column that the table has occurs at least so often.

    For tables whose columns do not depend on one another, such as rules and options that both are
    graph functions. The rows are chosen greedily, so the same table gives the same rows.

    Args:
        rows: The table, as in `cover_pairs`.
        times: How often a value is to occur; a value of fewer rows occurs in all of them.

    Returns:
        The chosen rows, in the order of the table.
    """
    table = list(rows)
    cells_of = [set(enumerate(map(repr, row))) for row in table]
    counts = Counter(chain.from_iterable(cells_of))
    missing = Counter({cell: min(count, times) for cell, count in counts.items()})
    used: Counter[Any] = Counter()
    candidates, chosen = set(range(len(table))), []

    def gain(index: int) -> tuple[int, int, int]:
        cells = cells_of[index]
        # Among equal rows, those whose values occur least.
        return sum(missing[x] for x in cells), -sum(used[x] for x in cells), -index

    while any(missing.values()):
        best = max(candidates, key=gain)
        used.update(cells_of[best])
        for cell in cells_of[best]:
            missing[cell] = max(missing[cell] - 1, 0)
        candidates.remove(best)
        chosen.append(best)
    return [table[index] for index in sorted(chosen)]
