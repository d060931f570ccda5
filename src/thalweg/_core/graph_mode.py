"""Access to graph mode for packages that do not import `thalweg._graph`.

In graph mode calls become operations of a graph, which sessions run. `thalweg._graph` registers
its module `graph_mode_backend`, whose functions these packages call, when it is imported. Without
it nothing is symbolic, and calls compute at once.
"""

from __future__ import annotations

from typing import Any

from thalweg.errors import FailedPreconditionError

_modes: list[object] = []


def register(mode: object) -> None:
    """Set the implementation of graph mode: an object with the functions of graph mode."""
    _modes[:] = [mode]


def has_graphs() -> bool:
    """Return True if graph mode is available: `register` was called."""
    return bool(_modes)


def graph_mode() -> Any:
    """Return the registered implementation of graph mode.

    Raises:
        FailedPreconditionError: `register` was not called.
    """
    if not _modes:
        raise FailedPreconditionError(
            "There are no graphs in this process. Import what makes them first: thalweg.tf,"
            " thalweg.v1 or thalweg._graph."
        )
    return _modes[0]
