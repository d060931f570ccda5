"""Execution mode: eager, building a graph, or running a node of a session in this thread, and
strategy.

The core asks here, so that it knows nothing of graphs and sessions; `thalweg._graph` and
`thalweg.distribute` fill the stacks and derive classes from those here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import Any

import torch

from thalweg._base.context_managers import ContextSetting, Sections
from thalweg.variable import Variable


class Symbolic:
    """Base class of tensors, variables and slices of a graph, which have values in runs of a
    session only.
    """

    __slots__ = ()


class SymbolicRows(Symbolic):
    """Some rows of a tensor of a graph: `values` at `indices`."""

    __slots__ = ()


class SymbolicVariable(Symbolic):
    """A variable of a graph, of which each session keeps a value."""

    __slots__ = ()

    def beside(
        self,
        initial: Callable[[], torch.Tensor],
        name: str,
        dtype: torch.dtype | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Any:
        """Return a new variable of the same graph, which is not trained.

        Args:
            initial: Called when a session initializes the variable, and may then use `resolve`.
            name: The whole name, outside of all name scopes; made unique.
            dtype, shape: Those of the new variable; those of this one if None.
        """
        raise NotImplementedError


def is_symbolic(x: object) -> bool:
    """Return True if `x` has a value in runs only: a symbolic tensor, variable or slices."""
    return type(x) is not torch.Tensor and isinstance(x, Symbolic)


class SessionVariable(Variable):
    """The value that one session has of a graph variable.

    In sets and dicts it is found where the graph's variable is.
    """

    _handle: SymbolicVariable | None = None

    def __hash__(self) -> int:
        return hash(self._handle) if self._handle is not None else id(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicVariable):
            return other is self._handle
        return super().__eq__(other)

    def _state(self) -> dict[str, object]:
        # A copy is a variable of nobody's, and a graph cannot be pickled.
        return {key: value for key, value in super()._state().items() if key != "_handle"}


def handle_of(leaf: object) -> Any:
    """Return the graph variable to which a session's leaf belongs; `leaf` itself if there is
    none.
    """
    handle = getattr(leaf, "_handle", None) if isinstance(leaf, SessionVariable) else None
    return leaf if handle is None else handle


class TensorReference:
    """A tensor or variable as a key: equal to another of the same one, whatever its elements.

    What a session has of a graph's variable is, to those who compare, that variable.
    """

    __slots__ = ("_tensor",)

    def __init__(self, tensor: object) -> None:
        self._tensor = tensor

    def deref(self) -> Any:
        """Return the tensor."""
        return self._tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorReference) and handle_of(self._tensor) is handle_of(
            other._tensor
        )

    def __hash__(self) -> int:
        return id(handle_of(self._tensor))


class _Thread(threading.local):
    """One thread's stacks, the innermost last."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.sessions: list[object] = []
        self.frames: list[Any] = []  # runs of sessions
        self.strategies: list[Any] = []  # what `distribute.context` notes of each
        self.eager_blocks = 0


thread = _Thread()


class _Process:
    """What all threads share.

    Attributes:
        eager: Whether calls compute at once outside of any graph.
        settled: Whether the mode was asked for, or somebody was told that it is eager.
        resource_variables: Whether variables of graphs are resource variables unless they are made
            otherwise.
        default_graph: Gives the graph that calls add to, or None as long as there are no graphs.
    """

    def __init__(self) -> None:
        self.eager = True
        self.settled = False
        self.resource_variables = True
        self.default_graph: Callable[[], Any] = lambda: None


process = _Process()


def executing_eagerly() -> bool:
    """Return True if calls compute at once; False where they add nodes to a graph.

    True inside a running node, whose calls run eagerly.

    Outside of any graph the call fixes the mode, as its caller relies on it: a program can begin
    with graphs without asking for them only before the first such call.
    """
    if thread.frames or thread.eager_blocks:
        return True
    if thread.graphs:
        return False
    process.settled = True
    return process.eager


def eagerly() -> ContextSetting:
    """Have calls in the block compute at once, in this thread, also while a graph is built."""
    return ContextSetting(_eagerly)


def _eagerly() -> Sections:
    outside = thread.eager_blocks
    change = partial(setattr, thread, "eager_blocks")
    return [partial(change, outside + 1)], [partial(change, outside)]


def replicas() -> int:
    """Return the number of replicas of this thread's strategy; 1 outside of any."""
    return thread.strategies[-1].strategy.ranks.size if thread.strategies else 1


def current_session() -> Any:
    """Return the session whose node runs in this thread, or None."""
    return thread.frames[-1].session if thread.frames else None


def get_default_session() -> Any:
    """Return the session that `eval` and `run` of tensors and operations use, or None."""
    return thread.sessions[-1] if thread.sessions else None


def is_deferred(*parts: object) -> bool:
    """Return True if a call with these arguments belongs in a graph; False inside a running
    node.
    """
    if not executing_eagerly():
        return True
    return not thread.frames and any(map(issubclass, set(map(type, parts)), repeat(Symbolic)))


def first_graph(parts: Iterable[Any]) -> Any:
    """Return the graph of the first of these that is symbolic, or the default graph."""
    found = next(filter(is_symbolic, parts), None)
    return process.default_graph() if found is None else found.graph


def graph_of(*parts: object) -> Any:
    """Return the graph that a call with these arguments belongs in; None if it computes at once."""
    return first_graph(parts) if is_deferred(*parts) else None


def resolve(x: object) -> Any:
    """Inside a running node what `x` stands for in this session; otherwise `x` itself.

    A graph variable becomes the session's own leaf tensor, a symbolic tensor its value. A value
    that the run has not computed, or has let go, is computed now, from the run's feeds.

    Raises:
        FailedPreconditionError: A variable is not initialized, or computing the value would
            update variables.
    """
    return thread.frames[-1].resolve(x) if thread.frames else x


def is_ours(function: object) -> bool:
    """Return True if a function is the library's, or None, so that no other code runs in it."""
    function = getattr(function, "func", function)  # of a `functools.partial`
    return function is None or str(getattr(function, "__module__", "")).startswith("thalweg.")
