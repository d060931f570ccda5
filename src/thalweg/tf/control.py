"""Functions, scopes and order: what is of use in graphs alone does nothing in eager mode."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from thalweg import graph

__all__ = [
    "control_dependencies",
    "function",
    "group",
    "init_scope",
    "name_scope",
    "no_op",
]


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Any = None,
    autograph: bool = True,
    jit_compile: Any = None,
    reduce_retracing: bool = False,
    **options: Any,
) -> Any:
    """Returns the function as it is: nothing is traced or compiled.

    The function runs as Python at each call, with the values of that call. What TensorFlow would
    do while tracing alone, such as printing or making variables, is done each time. All arguments
    but the first are ignored.
    """
    if func is None:
        return lambda wrapped: wrapped
    return func


def group(*inputs: Any, name: str | None = None) -> Any:
    """An operation that is done when all inputs are; None in eager mode, where they are."""
    return None if graph.executing_eagerly() else graph.group(*inputs, name=name)


def no_op(name: str = "NoOp") -> Any:
    """An operation that does nothing; None in eager mode."""
    return None if graph.executing_eagerly() else graph.no_op(name)


def name_scope(name: str) -> contextlib.AbstractContextManager[str]:
    """A prefix for the names of nodes; no effect in eager mode."""
    if graph.executing_eagerly():
        return contextlib.nullcontext(name)
    return graph.name_scope(name)


def control_dependencies(control_inputs: Any) -> contextlib.AbstractContextManager[None]:
    """What is made inside waits for these operations; no effect in eager mode."""
    if graph.executing_eagerly():
        return contextlib.nullcontext()
    return graph.control_dependencies(control_inputs)


def init_scope() -> contextlib.AbstractContextManager[None]:
    """No effect: there is no tracing to leave."""
    return contextlib.nullcontext()
