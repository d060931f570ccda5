"""The layers of a step as a table for a terminal, the worst first."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from thalweg._base.terminal_tables import fitted
from thalweg.diagnostics.jsonl_reader import UNMEASURED

HEADINGS = {
    "ratio": "update/weight", "gradient_norm": "gradient", "weight_norm": "weight",
    "unchanged": "unchanged", "zero": "zero", "nonfinite": "not finite",
}  # fmt: skip
# Columns that a narrow terminal omits, in this order.
OPTIONAL_COLUMNS = ("zero", "unchanged", "weight_norm", "nonfinite", "gradient_norm")
RANKINGS = {"ratio": "update beside weight", "gradient_norm": "gradient norm"}
# Width of the table's margins.
EDGES = 4
# Letters of a name that stay visible whatever the width of the numbers.
LEAST_NAME = 26


class LayerTable(NamedTuple):
    """Layers ranked by severity.

    Attributes:
        indices: Indices of the layers, the worst first.
        description: The order in words.
    """

    indices: np.ndarray
    description: str


def rank_layers(rows: Mapping[str, np.ndarray]) -> LayerTable:
    """Rank layers: first layers with NaN or infinity, then layers with large numbers.

    `rows` is {column: one number per layer}. The numbers are those of the column "ratio", else of
    "gradient_norm", else of the first column. For NaN and infinity, the columns "gradient_norm",
    "update_norm", "weight_norm" and "nonfinite" are searched, too.
    """
    key = next((name for name in RANKINGS if name in rows), next(iter(rows)))
    values = rows[key]
    bad = np.isnan(values) | (values == np.inf)
    for name in ("gradient_norm", "update_norm", "weight_norm"):
        if name in rows:
            bad |= np.isnan(rows[name]) | (rows[name] == np.inf)
    if "nonfinite" in rows:
        bad |= rows["nonfinite"] > 0
    # The last key of `lexsort` counts most.
    order = np.lexsort((-np.nan_to_num(values, nan=np.inf), ~bad))
    measure = RANKINGS.get(key, key.replace("_", " "))
    return LayerTable(order, f"not finite first, then the largest {measure}")


def make_table(
    rows: Mapping[str, np.ndarray],
    names: Sequence[str],
    ranking: LayerTable,
    max_layers: int,
    width: int,
) -> Table:
    """Return a table of the first `max_layers` layers of `ranking`, at most `width` wide."""
    columns = [name for name in HEADINGS if name in rows]
    columns += [next(iter(rows))] if not columns else []
    lay_out = partial(_lay_out, rows, names, ranking.indices[:max_layers].tolist(), width)
    return fitted(lay_out, columns, [name for name in OPTIONAL_COLUMNS if name in columns], width)


def _lay_out(
    rows: Mapping[str, np.ndarray], names: Sequence[str], indices: list[int], width: int,
    columns: list[str],
) -> Table:  # fmt: skip

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    longest = max((len(names[index]) for index in indices), default=0)
    table.add_column("layer", no_wrap=True, min_width=min(LEAST_NAME, longest))
    cells = {key: [format_number(float(rows[key][index])) for index in indices] for key in columns}
    widths = (max(map(len, (HEADINGS.get(key, key), *cells[key]))) for key in columns)
    total_width = sum(3 + width for width in widths)
    name_width = max(LEAST_NAME, width - total_width - EDGES)
    shared = find_shared(names)
    for key in columns:
        # No markup: a file names its columns as it likes.
        table.add_column(Text(HEADINGS.get(key, key)), justify="right", no_wrap=True)
    for row, index in enumerate(indices):
        row_cells = [cells[key][row] for key in columns]
        bad = any(cell in ("NaN", "inf") for cell in row_cells)
        name = names[index]
        if longest > name_width:
            # The prefix of all names distinguishes no layer.
            name = elide(name.removeprefix(shared), name_width)
        table.add_row(Text(name), *row_cells, style="red" if bad else None)
    return table


def format_number(value: float) -> str:
    """Format a number with 3 digits; "-" if it was not measured."""
    if value == UNMEASURED:
        return "-"
    return "NaN" if np.isnan(value) else f"{value:.3g}"


def find_shared(names: Sequence[str]) -> str:
    """Return the prefix of all names, up to a dot."""
    prefix = os.path.commonprefix(list(names))  # noqa: RUF071, which is cut at a dot below
    return prefix[: prefix.rfind(".") + 1] if len(names) > 1 else ""


def elide(name: str, max_length: int) -> str:
    """Shorten a name to at most `max_length` letters by an ellipsis in its middle."""
    if len(name) <= max_length:
        return name
    tail = (max_length - 1) // 2
    return (
        f"{name[: max_length - 1 - tail]}…{name[-tail:]}" if tail else f"{name[: max_length - 1]}…"
    )
