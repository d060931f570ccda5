"""Tables for a terminal: a narrow one gets fewer columns, and names stay whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_ENOUGH = 10_000


def fitted(
    make: Callable[[list[str]], Table], headings: Sequence[str], dropped: Sequence[str], width: int
) -> Table:
    """Return the first table that fits: with all columns, or without some of those in `dropped`.

    Args:
        make: Makes the table with these columns.
        headings: All columns.
        dropped: Those that may be left out, the first of them first.
        width: Of the terminal. Where the rest does not fit either, it is returned as it is.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=_ENOUGH)
    made = make(list(headings))
    for count in range(1, len(dropped) + 1):
        if Measurement.get(console, console.options, made).maximum <= width:
            break
        made = make([heading for heading in headings if heading not in dropped[:count]])
    return made
