"""The covering array has every pair of values and few rows."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

from pairwise import cover_pairs


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
