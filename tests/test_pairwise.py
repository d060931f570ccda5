"""Covers have every value, or every pair of values, and few rows."""

from __future__ import annotations

from collections import Counter
from itertools import chain, combinations, product
from typing import Any

from pairwise import cover_pairs, cover_values


def pairs_of(rows: Any) -> set[Any]:
    return {pair for row in rows for pair in combinations(enumerate(map(repr, row)), 2)}


def test_each_pair_of_the_table_is_covered_by_few_rows() -> None:
    table = [
        row for row in product("abcd", range(5), ({}, {"x": 1}, {"y": 2})) if row != ("a", 0, {})
    ]
    cover = cover_pairs(table)
    assert pairs_of(cover) == pairs_of(table)
    # No fewer than 20 can have each pair of the two longest columns.
    assert 20 <= len(cover) <= 24
    assert [table.index(row) for row in cover] == sorted(table.index(row) for row in cover)


def test_pairs_of_two_columns_are_the_whole_table() -> None:
    table = list(product("abc", range(3)))
    assert cover_pairs(table) == table
    assert cover_pairs([]) == []


def test_each_value_of_the_table_occurs_twice_in_few_rows() -> None:
    table = [*product("abcdefgh", range(4), (True, False)), ("once", 0, True)]
    cover = cover_values(table, 2)
    counts = Counter(chain.from_iterable(map(enumerate, cover)))
    assert counts.keys() == set(chain.from_iterable(map(enumerate, table)))
    assert [cell for cell, count in counts.items() if count < 2] == [(0, "once")]
    assert len(cover) == 17
    assert counts[1, 0] <= 6
    assert cover_values([], 2) == []
