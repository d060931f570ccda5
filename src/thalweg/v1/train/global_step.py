"""The variable that counts steps: one per graph, and one in eager mode."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg.errors import FailedPreconditionError, InvalidTypeError
from thalweg.variable import Variable

# The global step of eager mode, once it was created.
_eager: list[object] = []


def create_global_step(graph: Any = None) -> Any:
    """Create the int64 variable `global_step` with value 0 and return it.

    Args:
        graph: The graph of the variable; None selects the default graph, or eager mode.

    Raises:
        ValueError: The variable exists already.
        FailedPreconditionError: The function is called during a run of a session.
    """
    if get_global_step(graph) is not None:
        raise ValueError('"global_step" already exists.')
    if graph is None and _graph.current_session() is not None:
        raise FailedPreconditionError(
            'A session runs, and its graph has no "global_step": create it when the graph is built.'
        )
    if graph is None and _graph.executing_eagerly():
        step: Any = Variable(np.int64(0), "global_step", trainable=False)
        _eager.append(step)
        return step
    with (graph or _graph.get_default_graph()).as_default():
        keys = [_graph.GraphKeys.GLOBAL_VARIABLES, _graph.GraphKeys.GLOBAL_STEP]
        return _graph.make_variable(np.int64(0), "global_step", collections=keys)


def get_global_step(graph: Any = None) -> Any:
    """Return the global step of `graph`, or None if the graph has no global step.

    Without `graph`, return the global step of the default graph or of eager mode. In a hook called
    by a session's run, return the session's tensor of the graph's global step.

    Raises:
        TypeError: The graph's `global_step` is not an integer scalar.
        ValueError: The collection GLOBAL_STEP has several variables.
    """
    session = _graph.current_session()
    if graph is None and session is not None:
        return _graph.resolve(get_global_step(session.graph))
    if graph is None and _graph.executing_eagerly():
        return _eager[0] if _eager else None
    graph = graph or _graph.get_default_graph()
    candidates = graph.get_collection(_graph.GraphKeys.GLOBAL_STEP)
    if len(candidates) > 1:
        raise ValueError(f"There are {len(candidates)} variables in the collection GLOBAL_STEP.")
    # A variable of this name counts, too, if it was not created by `create_global_step`.
    if not candidates:
        global_variables = graph.get_collection(_graph.GraphKeys.GLOBAL_VARIABLES)
        candidates = [var for var in global_variables if var.name == "global_step:0"]
    if not candidates:
        return None
    assert_global_step(candidates[0])
    return candidates[0]


def get_or_create_global_step(graph: object = None) -> Any:
    """Return the variable that counts steps; create it if missing."""
    step = get_global_step(graph)
    return create_global_step(graph) if step is None else step


def assert_global_step(global_step_tensor: Any) -> None:
    """Raise TypeError unless `global_step_tensor` is an integer scalar."""
    step = global_step_tensor
    if not isinstance(step, Tensor) and not _graph.is_symbolic(step):
        raise InvalidTypeError(
            f'Existing "global_step" must be a Variable or Tensor: {show_value(step)}.'
        )
    if step.dtype not in (torch.int64, torch.int32):
        raise InvalidTypeError(f'Existing "global_step" does not have integer type: {step.dtype}')
    # An unknown static shape is accepted.
    if tuple(step.shape or ()) != ():
        raise InvalidTypeError(f'Existing "global_step" is not scalar: {tuple(step.shape)}')


def global_step(sess: Any, global_step_tensor: Any) -> int:
    """Return the value of a global step as an int; `sess` is a session, or None in eager mode."""
    if sess is None:
        return int(global_step_tensor)
    return int(sess.run(global_step_tensor))


_READ = "global_step_read_op_cache"


def _get_or_create_global_step_read(graph: Any = None) -> object:
    """Return a symbolic tensor: the global step's value before a run increments the global step.

    The first call creates the tensor; later calls return the same tensor. Return None if the graph
    has no global step.
    """
    graph = graph or _graph.get_default_graph()
    cached_reads = graph.get_collection(_READ)
    step = get_global_step(graph)
    if cached_reads or step is None:
        return cached_reads[0] if cached_reads else None
    # Without the caller's dependencies, which may include the increment.
    with graph.as_default(), graph.control_dependencies(None):
        read = step.read_value()
    graph.add_to_collection(_READ, read)
    return read


def _increment_global_step(increment: int, graph: Any = None) -> object:
    """Return a symbolic tensor: a run adds `increment` to the global step, and returns the sum.

    The addition waits for the tensor of `_get_or_create_global_step_read`. Raise ValueError if the
    graph has no global step.
    """
    graph = graph or _graph.get_default_graph()
    step = get_global_step(graph)
    if step is None:
        raise ValueError("Global step tensor should be created by create_global_step().")
    with graph.as_default(), graph.control_dependencies([_get_or_create_global_step_read(graph)]):
        return step.assign_add(increment)


__all__ = [
    "assert_global_step", "create_global_step", "get_global_step", "get_or_create_global_step",
    "global_step",
]  # fmt: skip
