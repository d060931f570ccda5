"""Write how matrices that lie one after the other come to lie side by side, and how they are added.

Element k of matrix i lies at [k * LANES + i] of an array of lanes, so that a loop over i does the
same to many matrices at once.
"""

from __future__ import annotations

from collections.abc import Callable

from thalweg._base.rule_passes import Measure
from thalweg._engines.cpu.codegen_reduction import Reduction

SIDE = 8  # rows and columns at most: LLVM takes so many numbers apart that lie one after the other
LANES = 32  # matrices side by side


def take_apart(
    source: str, target: str, sides: tuple[int, int], load: str, spare: str
) -> list[str]:
    """Have lanes hold `count` matrices.

    Args:
        source: A pointer to the first one.
        target: The lanes.
        sides: Rows and columns; matrices of more than `SIDE` elements take a step for each.
        load: How a number is read.
        spare: Lanes for what is halfway, if there are two steps.
    """

    def move(lanes: str) -> Callable[[str, str], str]:
        return lambda lane, place: f"{lanes}[{lane}] = {load.format(f'{source}[{place}]')}"

    rows, columns = sides
    if rows * columns <= SIDE:
        return _move_numbers(rows * columns, LANES, "count", move(target))
    lines = _move_numbers(columns, rows * LANES, f"count * {rows}", move(spare))
    for column in range(columns):
        lines.append("for i in range(count):")
        lines += [
            f"    {target}[{lane_index}] = {spare}[{spare_index}]"
            for spare_index, lane_index in _list_indices(sides, column)
        ]
    return lines


def put_together(
    source: str, target: str, sides: tuple[int, int], save: str, spare: str
) -> list[str]:
    """The way back: `source` are the lanes."""

    def move(lanes: str) -> Callable[[str, str], str]:
        return lambda lane, place: f"{target}[{place}] = {save.format(f'{lanes}[{lane}]')}"

    rows, columns = sides
    if rows * columns <= SIDE:
        return _move_numbers(rows * columns, LANES, "count", move(source))
    lines: list[str] = []
    for column in range(columns):
        lines.append("for i in range(count):")
        lines += [
            f"    {spare}[{spare_index}] = {source}[{lane_index}]"
            for spare_index, lane_index in _list_indices(sides, column)
        ]
    return [*lines, *_move_numbers(columns, rows * LANES, f"count * {rows}", move(spare))]


def _list_indices(sides: tuple[int, int], column: int) -> list[tuple[str, str]]:
    """Where each row of a column of matrix i lies halfway, and where it lies in lanes."""
    rows, columns = sides
    return [
        (f"i * {rows} + {column * rows * LANES + row}", f"i + {(row * columns + column) * LANES}")
        for row in range(rows)
    ]


def _move_numbers(
    count: int, lanes: int, length: str, move: Callable[[str, str], str]
) -> list[str]:
    """Move `count` numbers of each matrix, of which each comes to lie `lanes` further on.

    Args:
        count, lanes: Both.
        length: Of the loop.
        move: Makes a statement of the place in lanes, and of that where matrices follow each other.
    """
    places = [(f"i + {k * lanes}", f"i * {count} + {k}") for k in range(count)]
    return [f"for i in range({length}):", *(f"    {move(*indices)}" for indices in places)]


def reduce_values(measure: Measure, values: str, sides: tuple[int, int]) -> list[str]:
    """What becomes of a matrix's values in each line.

    Args:
        measure: The measure.
        values: What the names of the values begin with; their numbers come after it.
        sides: Rows and columns.

    Returns:
        An expression for each row, or for each column, or one for the variable.
    """
    rows, columns = map(range, sides)
    reduction = Reduction(measure.reduce)
    if measure.over == "row":
        return [
            reduction.fold([f"{values}_{row * len(columns) + k}" for k in columns]) for row in rows
        ]
    column_texts: list[str] = []
    for column in columns:
        total = reduction.zero
        for row in rows:
            total = reduction.join(total, f"{values}_{row * len(columns) + column}")
        column_texts.append(total)
    return column_texts if measure.over == "column" else [reduction.fold(column_texts)]
