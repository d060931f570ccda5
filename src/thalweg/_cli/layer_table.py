"""The layers of a step as a table for a terminal, the worst first."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from thalweg._base.terminal_tables import fitted
from thalweg.diagnostics.jsonl_reader import UNMEASURED

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = {
    "ratio": "update/weight", "gradient_norm": "gradient", "weight_norm": "weight",
    "unchanged": "unchanged", "zero": "zero", "nonfinite": "not finite",
}  # fmt: skip
# What a narrow terminal does without, first to last.
DROPPED = ("zero", "unchanged", "weight_norm", "nonfinite", "gradient_norm")
ORDERED_BY = {"ratio": "update beside weight", "gradient_norm": "gradient norm"}
EDGES = 4  # letters beside the cells
LEAST_NAME = 26  # letters of a name that no number takes away


class LayerTable(NamedTuple):
    """An order of layers.

    Attributes:
        places: Of the layers, the worst first.
        words: What the order is.
    """

    places: np.ndarray
    words: str


def rank_layers(rows: Mapping[str, np.ndarray]) -> LayerTable:
    """Rank layers: those that are not finite first, then by the largest number.

    The numbers are those of the first column of `ORDERED_BY` that is recorded.
    """
    key = next((each for each in ORDERED_BY if each in rows), next(iter(rows)))
    values = rows[key]
    bad = np.isnan(values) | (values == np.inf)
    for each in ("gradient_norm", "update_norm", "weight_norm"):
        if each in rows:
            bad |= np.isnan(rows[each]) | (rows[each] == np.inf)
    if "nonfinite" in rows:
        bad |= rows["nonfinite"] > 0
    order = np.lexsort((-np.nan_to_num(values, nan=np.inf), ~bad))
    words = ORDERED_BY.get(key, key.replace("_", " "))
    return LayerTable(order, f"not finite first, then the largest {words}")


def make_table(
    rows: Mapping[str, np.ndarray], names: Sequence[str], worst: LayerTable, most: int, width: int
) -> Table:
    """Return the first `most` layers, with as many columns as fit into the width of a terminal."""
    columns = [each for each in HEADINGS if each in rows]
    columns += [next(iter(rows))] if not columns else []
    made = partial(_lay_out, rows, names, worst.places[:most].tolist(), width)
    return fitted(made, columns, [each for each in DROPPED if each in columns], width)


def _lay_out(
    rows: Mapping[str, np.ndarray], names: Sequence[str], places: list[int], width: int,
    columns: list[str],
) -> Table:  # fmt: skip
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    longest = max((len(names[place]) for place in places), default=0)
    made.add_column("layer", no_wrap=True, min_width=min(LEAST_NAME, longest))
    cells = {
        each: [format_number(float(rows[each][place])) for place in places] for each in columns
    }
    widths = (max(map(len, (HEADINGS.get(each, each), *cells[each]))) for each in columns)
    taken = sum(3 + width for width in widths)
    room = max(LEAST_NAME, width - taken - EDGES)
    shared = find_shared(names)
    for each in columns:
        # No markup: a file names its columns as it likes.
        made.add_column(Text(HEADINGS.get(each, each)), justify="right", no_wrap=True)
    for row, place in enumerate(places):
        numbers = [cells[each][row] for each in columns]
        bad = any(each in ("NaN", "inf") for each in numbers)
        name = names[place]
        if longest > room:  # what all have in common tells nothing
            name = elide(name.removeprefix(shared), room)
        made.add_row(Text(name), *numbers, style="red" if bad else None)
    return made


def format_number(value: float) -> str:
    """Format a number with 3 digits; "-" if it was not measured."""
    if value == UNMEASURED:
        return "-"
    return "NaN" if np.isnan(value) else f"{value:.3g}"


def find_shared(names: Sequence[str]) -> str:
    """Return the prefix of all names, up to a dot."""
    found = os.path.commonprefix(list(names))  # noqa: RUF071, which is cut at a dot below
    return found[: found.rfind(".") + 1] if len(names) > 1 else ""


def elide(name: str, most: int) -> str:
    """Return a name of at most `most` letters; what is left out is in the middle."""
    if len(name) <= most:
        return name
    tail = (most - 1) // 2
    return f"{name[: most - 1 - tail]}…{name[-tail:]}" if tail else f"{name[: most - 1]}…"
