"""Kernel lines that interleave small matrices in a stack array, and reductions of their values.

Element k of matrix i is at index k * LANES + i of the stack array. A loop over i runs over many
matrices at once.
"""

from __future__ import annotations

from collections.abc import Callable

from thalweg._base.rule_passes import Measure
from thalweg._engines.codegen import nest
from thalweg._engines.cpu.codegen_reduction import ReductionText

SIDE = 8  # rows and columns at most: LLVM takes so many numbers apart that lie one after the other
LANES = 32  # matrices side by side


def load_into_lanes(
    source: str, target: str, shape: tuple[int, int], load: str, spare: str
) -> list[str]:
    """Return lines that copy `count` matrices from memory to a stack array, interleaved.

    Args:
        source: The name of a pointer to the first matrix.
        target: The name of the array.
        shape: (rows, columns) of a matrix.
        load: The template of an expression that converts a stored number.
        spare: The name of a second array, for matrices of more than `SIDE` elements.
    """

    def move(lanes: str) -> Callable[[str, str], str]:
        return lambda lane, place: f"{lanes}[{lane}] = {load.format(f'{source}[{place}]')}"

    rows, columns = shape
    if rows * columns <= SIDE:
        return _move_numbers(rows * columns, LANES, "count", move(target))
    return [
        *_move_numbers(columns, rows * LANES, f"count * {rows}", move(spare)),
        *_move_columns(shape, target + "[{lane}] = " + spare + "[{spare}]"),
    ]


def store_from_lanes(
    source: str, target: str, shape: tuple[int, int], save: str, spare: str
) -> list[str]:
    """Return lines that copy `count` interleaved matrices from a stack array to memory.

    Args:
        source: The name of the array.
        target: The name of a pointer to the first matrix.
        shape, spare: As for `load_into_lanes`.
        save: The template of an expression that converts a number to the stored type.
    """

    def move(lanes: str) -> Callable[[str, str], str]:
        return lambda lane, place: f"{target}[{place}] = {save.format(f'{lanes}[{lane}]')}"

    rows, columns = shape
    if rows * columns <= SIDE:
        return _move_numbers(rows * columns, LANES, "count", move(source))
    return [
        *_move_columns(shape, spare + "[{spare}] = " + source + "[{lane}]"),
        *_move_numbers(columns, rows * LANES, f"count * {rows}", move(spare)),
    ]


def _move_columns(shape: tuple[int, int], template: str) -> list[str]:
    """Return loops over matrices, one loop for each column, that move the column's numbers.

    Args:
        template: A statement that moves a number. The placeholders `lane` and `spare` are indices
            in the interleaved array and in the spare array.
    """
    (rows, columns), lines = shape, list[str]()
    for column in range(columns):
        moves = [
            template.format(
                lane=f"i + {(row * columns + column) * LANES}",
                spare=f"i * {rows} + {column * rows * LANES + row}",
            )
            for row in range(rows)
        ]
        lines += nest("for i in range(count):", moves)
    return lines


def _move_numbers(
    count: int, lanes: int, length: str, move: Callable[[str, str], str]
) -> list[str]:
    """Return a loop that moves `count` numbers, adjacent in memory, per iteration.

    Args:
        lanes: The distance of the `count` numbers in the interleaved array.
        length: An expression for the number of iterations.
        move: `move(lane, place)` returns a statement that moves a number between index `lane` of
            the array and index `place` of memory.
    """
    pairs = [(f"i + {k * lanes}", f"i * {count} + {k}") for k in range(count)]
    return nest(f"for i in range({length}):", [move(*indices) for indices in pairs])


def reduce_values(measure: Measure, values: str, shape: tuple[int, int]) -> list[str]:
    """Return expressions that reduce the values of a matrix by a measure.

    Args:
        values: The prefix of the names of values, before the index of the element.

    Returns:
        An expression for each row or each column, or [the expression for the whole matrix].
    """
    rows, columns = map(range, shape)
    reduction = ReductionText(measure.reduce)
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
