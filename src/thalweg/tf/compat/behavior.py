"""Eager mode or graph mode: what says so outright, and what a program means that says nothing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

import torch

from thalweg._base.execution_context import process
from thalweg._core.nest import leaves_of
from thalweg._graph.default_graph import (
    begin_graphs,
    disable_eager_execution,
    enable_eager_execution,
)

__all__ = [
    "control_flow_v2_enabled",
    "disable_control_flow_v2",
    "disable_resource_variables",
    "disable_tensor_equality",
    "disable_v2_behavior",
    "disable_v2_tensorshape",
    "enable_control_flow_v2",
    "enable_resource_variables",
    "enable_tensor_equality",
    "enable_v2_behavior",
    "enable_v2_tensorshape",
    "resource_variables_enabled",
]

F = TypeVar("F", bound=Callable[..., Any])


def disable_v2_behavior() -> None:
    """Graph mode from now on, in all threads, as `disable_eager_execution`, and no resource
    variables.
    """
    disable_eager_execution()
    disable_resource_variables()


def enable_v2_behavior() -> None:
    """Eager mode from now on, in all threads, as `enable_eager_execution`, and resource variables
    in graphs.
    """
    enable_eager_execution()
    enable_resource_variables()


def enable_resource_variables() -> None:
    """Have variables of graphs that are fetched beside an update be read before it, from now on."""
    process.resource_variables = True


def disable_resource_variables() -> None:
    """Have variables of graphs that are fetched beside an update be read after it, from now on."""
    process.resource_variables = False


def resource_variables_enabled() -> bool:
    """Return True if variables are resource variables, unless `use_resource` overrides it."""
    return process.resource_variables


def enable_v2_tensorshape() -> None:
    """Changes nothing: sizes are numbers, or None, as in TensorFlow 2."""


def disable_v2_tensorshape() -> None:
    """Changes nothing, as `enable_v2_tensorshape`."""


def enable_tensor_equality() -> None:
    """Changes nothing: `==` compares values in eager mode and identities in a graph."""


def disable_tensor_equality() -> None:
    """Changes nothing, as `enable_tensor_equality`."""


def enable_control_flow_v2() -> None:
    """Changes nothing: there is one kind of control flow."""


def disable_control_flow_v2() -> None:
    """Changes nothing, as `enable_control_flow_v2`."""


def control_flow_v2_enabled() -> bool:
    """False."""
    return False


def begins_graphs(function: F) -> F:
    """Return the function, which first begins graph mode where no mode was asked for or relied
    upon.

    Given a torch tensor, it leaves the mode as it is: such a program computes eagerly.
    """

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        if not process.settled:
            given = leaves_of((args, kwargs))
            if not any(isinstance(each, torch.Tensor) for each in given):
                begin_graphs()
        return function(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


def have_all_begin_graphs(module: MutableMapping[str, object]) -> None:
    """`begins_graphs` for the public functions of a module, but not for those of this one."""
    for name, value in module.items():
        if inspect.isfunction(value) and not name.startswith("_") and name not in _NEUTRAL:
            module[name] = begins_graphs(value)


_NEUTRAL = {
    *__all__,
    "disable_eager_execution",
    "enable_eager_execution",
    "get_logger",
    "is_tensor",
}
