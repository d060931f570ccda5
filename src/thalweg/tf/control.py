"""Functions, scopes and control flow of `tf`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch

from thalweg import _graph
from thalweg._base.context_managers import enable_grad
from thalweg._graph import case, cond, foldl, foldr, map_fn, scan, while_loop
from thalweg._graph.node_names import node_name_from
from thalweg.tf.convert import call, tensor

__all__ = [
    "case", "colocate_with", "cond", "control_dependencies", "custom_gradient", "foldl", "foldr",
    "function", "group", "init_scope", "map_fn", "name_scope", "no_op", "scan", "while_loop",
]  # fmt: skip


def function(
    func: Callable[..., object] | None = None,
    input_signature: object = None,
    autograph: bool = True,
    jit_compile: object = None,
    reduce_retracing: bool = False,
    **options: object,
) -> Any:
    """Return `func` unchanged: nothing is traced or compiled. Without `func`, return a decorator.

    Unlike in TensorFlow, each call has the side effects of the Python function, such as printing.
    All arguments but `func` are ignored.
    """
    return (lambda wrapped: wrapped) if func is None else func


def group(*inputs: object, name: str | None = None) -> Any:
    """Return an operation that waits for all inputs; None in eager mode."""
    return None if _graph.executing_eagerly() else _graph.group(*inputs, name=name)


def no_op(name: str | None = None) -> Any:
    """Return an operation that does nothing; None in eager mode."""
    return None if _graph.executing_eagerly() else _graph.no_op(name or "NoOp")


def name_scope(
    name: str | None, default_name: str | None = None, values: object = None
) -> contextlib.AbstractContextManager[str]:
    """Return a context manager that adds a prefix to names of nodes, and yields the prefix.

    The prefix is `name`, or `default_name` if `name` is None. The context manager has no effect in
    eager mode. `values` is ignored.
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
    """Return a context manager without effect: operations run where their tensors are."""
    return contextlib.nullcontext()


def init_scope() -> contextlib.AbstractContextManager[None]:
    """Leave functions of conditions and loops, and control dependencies, within a block.

    No effect in eager mode.
    """
    return control_dependencies(None)


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a custom gradient.

    Args:
        f: `f(*tensors)` returns (tensor or tuple of tensors, `grad`). `grad(*output_gradients)`
            returns the gradient of each argument. In graph mode each run calls `f` with values.
            Variables that `f` reads have no gradient.
    """

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            outputs, ctx.backward_function = f(*args)
            return outputs

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            # Autograd calls this without recording, and the function of `f` may differentiate.
            with enable_grad():
                return ctx.backward_function(*gradients)

    @functools.wraps(f)
    def apply(*args: object) -> Any:
        return call(
            Function.apply,
            *(tensor(argument) for argument in args),
            name=node_name_from(f.__name__),
        )

    return apply
