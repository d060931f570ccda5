"""Console to which commands write."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def make_console(stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return the output of a command, or where it tells errors and progress.

    With NO_COLOR in the environment it gets no escape codes: neither colors nor bold text, of which
    rich would drop the colors alone, nor bars, in place of which there are lines.
    """
    from rich.console import Console

    is_plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        stderr=stderr,
        soft_wrap=soft_wrap,
        color_system=None if is_plain else "auto",
        force_terminal=False if is_plain else None,
    )
