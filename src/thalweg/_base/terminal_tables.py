"""Tables that fit a terminal by dropping optional columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_ENOUGH = 10_000


def fitted(
    make: Callable[[list[str]], Table], headings: Sequence[str], optional: Sequence[str], width: int
) -> Table:
    """Return a table; drop optional columns until it fits the terminal's width.

    If no table fits, return the table that has no optional columns.

    Args:
        make: `make(columns)` returns a table.
        headings: All columns.
        optional: Columns that may be dropped; the first is dropped first.
        width: The terminal's width.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=_ENOUGH)
    table = make(list(headings))
    for count in range(1, len(optional) + 1):
        if Measurement.get(console, console.options, table).maximum <= width:
            break
        table = make([heading for heading in headings if heading not in optional[:count]])
    return table
