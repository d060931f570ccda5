"""Switches of eager and graph mode, and the default mode of programs without a switch."""

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
    "control_flow_v2_enabled", "disable_control_flow_v2", "disable_resource_variables",
    "disable_tensor_equality", "disable_v2_behavior", "disable_v2_tensorshape",
    "enable_control_flow_v2", "enable_resource_variables", "enable_tensor_equality",
    "enable_v2_behavior", "enable_v2_tensorshape", "resource_variables_enabled",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


def disable_v2_behavior() -> None:
    """Switch all threads to graph mode, without resource variables."""
    disable_eager_execution()
    disable_resource_variables()


def enable_v2_behavior() -> None:
    """Switch all threads to eager mode, and use resource variables in graphs."""
    enable_eager_execution()
    enable_resource_variables()


def enable_resource_variables() -> None:
    """Read variables of graphs that are fetched with an update before that update."""
    process.resource_variables = True


def disable_resource_variables() -> None:
    """Read variables of graphs that are fetched with an update after that update."""
    process.resource_variables = False


def resource_variables_enabled() -> bool:
    """Return True if variables are resource variables, unless `use_resource` overrides it."""
    return process.resource_variables


def enable_v2_tensorshape() -> None:
    """Do nothing: sizes are numbers or None, as in TensorFlow 2."""


def disable_v2_tensorshape() -> None:
    """Do nothing; see `enable_v2_tensorshape`."""


def enable_tensor_equality() -> None:
    """Do nothing: `==` compares values in eager mode and identities in a graph."""


def disable_tensor_equality() -> None:
    """Do nothing; see `enable_tensor_equality`."""


def enable_control_flow_v2() -> None:
    """Do nothing: there is one implementation of control flow."""


def disable_control_flow_v2() -> None:
    """Do nothing; see `enable_control_flow_v2`."""


def control_flow_v2_enabled() -> bool:
    """Return False."""
    return False


def begins_graphs(function: F) -> F:
    """Wrap a function: a call begins graph mode, unless a mode was chosen or used before.

    A call with a torch tensor among the arguments leaves the mode unchanged.
    """

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        if not process.is_mode_fixed:
            arguments = leaves_of((args, kwargs))
            if not any(isinstance(argument, torch.Tensor) for argument in arguments):
                begin_graphs()
        return function(*args, **kwargs)

    return call  # pyright: ignore[reportReturnType]


def have_all_begin_graphs(module: MutableMapping[str, object]) -> None:
    """Wrap the public functions of a module, other than mode switches, by `begins_graphs`."""
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
