"""Functions, scopes and order: what is of use in graphs alone does nothing in eager mode."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.context_managers import enable_grad
from thalweg._graph import case, cond, foldl, foldr, map_fn, scan, while_loop
from thalweg._graph.unique_names import node_name_from
from thalweg.tf.convert import call, tensor

__all__ = [
    "case",
    "colocate_with",
    "cond",
    "control_dependencies",
    "custom_gradient",
    "foldl",
    "foldr",
    "function",
    "group",
    "init_scope",
    "map_fn",
    "name_scope",
    "no_op",
    "scan",
    "while_loop",
]


def function(
    func: Callable[..., object] | None = None,
    input_signature: object = None,
    autograph: bool = True,
    jit_compile: object = None,
    reduce_retracing: bool = False,
    **options: object,
) -> Any:
    """Returns the function as it is: nothing is traced or compiled.

    The function runs as Python at each call, with the values of that call. What TensorFlow would
    do while tracing alone, such as printing or making variables, is done each time. All arguments
    but the first are ignored.
    """
    if func is None:
        return lambda wrapped: wrapped
    return func


def group(*inputs: object, name: str | None = None) -> Any:
    """Return an operation that is done when all inputs are; None in eager mode, where they are."""
    return None if _graph.executing_eagerly() else _graph.group(*inputs, name=name)


def no_op(name: str | None = None) -> Any:
    """Return an operation that does nothing; None in eager mode."""
    return None if _graph.executing_eagerly() else _graph.no_op(name or "NoOp")


def name_scope(
    name: str | None, default_name: str | None = None, values: object = None
) -> contextlib.AbstractContextManager[str]:
    """Enter a prefix for the names of nodes, by default `default_name`; no effect in eager mode.

    `values` is ignored.
    """
    if _graph.executing_eagerly():
        return contextlib.nullcontext(name or default_name or "")
    return _graph.name_scope(name, default_name)


def control_dependencies(control_inputs: Any) -> contextlib.AbstractContextManager[None]:
    """Make operations of a `with` block wait for these operations; no effect in eager mode."""
    if _graph.executing_eagerly():
        return contextlib.nullcontext()
    return _graph.control_dependencies(control_inputs)


def colocate_with(
    op: object, ignore_existing: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Return a context manager for a block that changes nothing: operations run where their tensors
    are.
    """
    return contextlib.nullcontext()


def init_scope() -> contextlib.AbstractContextManager[None]:
    """Leads out of the functions of conditions and loops, and of control dependencies; no effect in
    eager mode.
    """
    if _graph.executing_eagerly():
        return contextlib.nullcontext()
    return _graph.control_dependencies(None)


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Has a function differentiated by another one, which it returns besides its result.

    Args:
        f: Takes tensors; returns a tensor, or a tuple of tensors, and a function that takes a
            gradient for each of these and returns one for each argument. It is called with values,
            in graph mode whenever it runs, and reads variables as constants.
    """

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            found, ctx.backward_function = f(*args)
            return found

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            with enable_grad():
                return ctx.backward_function(*gradients)

    @functools.wraps(f)
    def apply(*args: object) -> Any:
        return call(
            Function.apply, *(tensor(each) for each in args), name=node_name_from(f.__name__)
        )

    return apply
