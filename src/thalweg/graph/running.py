"""What is under way in this thread: the graph being built, the session at hand, the node that runs.

The rest of the package asks here, so that this module knows nothing of graphs and sessions.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.graph.frame import Frame
    from thalweg.graph.graph import Graph
    from thalweg.graph.session import Session


class _Thread(threading.local):
    """One thread's stacks, the innermost last."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.sessions: list[Session] = []
        self.frames: list[Frame] = []
        self.eager_blocks = 0


thread = _Thread()


class _Process:
    """What all threads share."""

    def __init__(self) -> None:
        self.eager = True
        self.graph: Any = None  # the global graph, once there is a class of graphs


process = _Process()


def get_default_graph() -> Graph:
    """The graph that new operations go to: that of the innermost `as_default`, or a global one."""
    if thread.graphs:
        return thread.graphs[-1]
    return process.graph


def executing_eagerly() -> bool:
    """Whether calls compute at once; False where they add nodes to a graph.

    True inside a running node: what a node does, it does eagerly.
    """
    if thread.frames or thread.eager_blocks:
        return True
    return process.eager and not thread.graphs


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Have calls in the block compute at once, in this thread, also while a graph is built."""
    thread.eager_blocks += 1
    try:
        yield
    finally:
        thread.eager_blocks -= 1


def current_session() -> Session | None:
    """The session whose node runs in this thread, or None."""
    return thread.frames[-1].session if thread.frames else None


def get_default_session() -> Session | None:
    """The session that `eval` and `run` of tensors and operations use, or None."""
    return thread.sessions[-1] if thread.sessions else None


def resolve(x: Any) -> Any:
    """Inside a running node what `x` stands for in this session; otherwise `x` itself.

    A graph variable becomes the session's own leaf tensor, a symbolic tensor its value. A value
    that the run has not computed, or has let go, is computed now, from the run's feeds.

    Raises:
        FailedPreconditionError: A variable is not initialized, or computing the value would
            update variables.
    """
    return thread.frames[-1].resolve(x) if thread.frames else x
