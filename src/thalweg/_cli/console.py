"""Console to which commands write."""

from __future__ import annotations

import os

from rich.console import Console


def make_console(stderr: bool = False, soft_wrap: bool = False) -> Console:
    """Return a rich console on standard output or, with `stderr`, on standard error.

    With NO_COLOR in the environment, the console writes no escape codes at all.
    """
    without_escape_codes = bool(os.environ.get("NO_COLOR"))
    return Console(
        stderr=stderr,
        soft_wrap=soft_wrap,
        color_system=None if without_escape_codes else "auto",
        force_terminal=False if without_escape_codes else None,
    )
