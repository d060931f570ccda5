"""Execution mode of a thread (eager, building a graph, or running a node), and its strategy.

Lower layers use this module without importing `thalweg._graph` and `thalweg.distribute`, which fill
the stacks and subclass these classes.
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
    """Base class of graph tensors, variables and slices; only session runs have their values."""

    __slots__ = ()


class SymbolicRows(Symbolic):
    """Rows of a graph tensor: `values` at `indices`."""

    __slots__ = ()


class SymbolicVariable(Symbolic):
    """Graph variable, with one value per session."""

    __slots__ = ()

    def beside(
        self,
        initial: Callable[[], torch.Tensor],
        name: str,
        dtype: torch.dtype | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Any:
        """Return a new untrained variable in the graph of this variable.

        Args:
            initial: `initial()` returns the value, when a session initializes the variable. It may
                call `resolve`.
            name: The full name, outside of all name scopes. If it is in use, a suffix is added.
            dtype, shape: The dtype and the shape of the new variable; by default this variable's.
        """
        raise NotImplementedError


def is_symbolic(x: object) -> bool:
    """Return True if `x` is a tensor, variable or slices of a graph."""
    return type(x) is not torch.Tensor and isinstance(x, Symbolic)


class SessionVariable(Variable):
    """Value of a graph variable in one session; equal to the graph variable in sets and dicts."""

    _handle: SymbolicVariable | None = None

    def __hash__(self) -> int:
        return hash(self._handle) if self._handle is not None else id(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SymbolicVariable):
            return other is self._handle
        return super().__eq__(other)

    def _state(self) -> dict[str, object]:
        # A copy does not belong to a graph variable, and a graph cannot be pickled.
        return {key: value for key, value in super()._state().items() if key != "_handle"}


def handle_of(leaf: object) -> Any:
    """Return the graph variable of a session's variable; any other object unchanged."""
    handle = getattr(leaf, "_handle", None) if isinstance(leaf, SessionVariable) else None
    return leaf if handle is None else handle


class TensorReference:
    """Hashable reference to a tensor or variable, compared by identity.

    A session's value of a graph variable equals that variable.
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
    """Stacks of graphs, sessions, runs and strategies of one thread, innermost last."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.sessions: list[object] = []
        # Runs of sessions.
        self.frames: list[Any] = []
        # Contexts of `distribute.context`.
        self.strategies: list[Any] = []
        self.eager_blocks = 0


thread = _Thread()


class _Process:
    """State that all threads share.

    Attributes:
        eager: True if calls compute at once outside of any graph.
        is_mode_fixed: True after the mode was set, or reported as eager to a caller.
        resource_variables: True if graph variables are resource variables by default.
        default_graph: Returns the graph that calls add to; None if no graph exists.
    """

    def __init__(self) -> None:
        self.eager = True
        self.is_mode_fixed = False
        self.resource_variables = True
        self.default_graph: Callable[[], Any] = lambda: None


process = _Process()


def executing_eagerly() -> bool:
    """Return True if calls compute at once; False if they add nodes to a graph.

    Return True inside a running node, whose calls run eagerly. Outside of any graph, this call
    fixes the mode: the program can no longer switch to graphs, because the caller relies on the
    result.
    """
    if thread.frames or thread.eager_blocks:
        return True
    if thread.graphs:
        return False
    process.is_mode_fixed = True
    return process.eager


def eagerly() -> ContextSetting:
    """Return a context manager in which this thread computes at once, even within a graph."""
    return ContextSetting(_eagerly)


def _eagerly() -> Sections:
    depth = thread.eager_blocks
    change = partial(setattr, thread, "eager_blocks")
    return [partial(change, depth + 1)], [partial(change, depth)]


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
    """Return True if a call with these arguments adds to a graph; False inside a running node."""
    if not executing_eagerly():
        return True
    return not thread.frames and any(map(issubclass, set(map(type, parts)), repeat(Symbolic)))


def first_graph(values: Iterable[Any]) -> Any:
    """Return the graph of the first symbolic argument, or the default graph."""
    symbolic = next(filter(is_symbolic, values), None)
    return process.default_graph() if symbolic is None else symbolic.graph


def graph_of(*parts: object) -> Any:
    """Return the graph that a call with these arguments adds to; None if it computes at once."""
    return first_graph(parts) if is_deferred(*parts) else None


def resolve(x: object) -> Any:
    """Return the value of a symbolic tensor or variable in the session run of this thread.

    The value of a graph variable is the session's leaf tensor. If the run has not computed the
    value, compute it now. Return `x` itself if it is not symbolic, or if no node is running.

    Raises:
        FailedPreconditionError: A variable is not initialized, or computing the value would update
            variables.
    """
    return thread.frames[-1].resolve(x) if thread.frames else x


def is_ours(function: object) -> bool:
    """Return True if `function` is None or defined in this library."""
    # Unwrap a `functools.partial`.
    function = getattr(function, "func", function)
    return function is None or str(getattr(function, "__module__", "")).startswith("thalweg.")
