"""Wrapper that combines what one `apply_gradients` call adds to a graph to one update."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from thalweg._base.execution_context import executing_eagerly, is_ours
from thalweg._base.tracing import untraced
from thalweg._core.graph_mode import graph_mode


def apply_as_one_update(cls: type[Any], base: type[object]) -> None:
    """Replace `cls.apply_gradients` by a wrapper that combines its additions to a graph to one
    update.

    This happens if the class defines the method, or inherits it from a user's mixin. A method
    inherited from a subclass of `base` was wrapped when that class was made. In eager mode the
    wrapper only calls the method.

    Args:
        cls: A new subclass of `base`; changed.
        base: The base class of all optimizers, whose own method needs no wrapper.
    """
    owner = next(base_class for base_class in cls.__mro__ if "apply_gradients" in vars(base_class))
    method = vars(owner)["apply_gradients"]
    is_mixin = not (issubclass(owner, base) or is_ours(method))
    if inspect.isfunction(method) and (owner is cls or is_mixin):
        cls.apply_gradients = _as_one_update(method)


def _as_one_update(method: Callable[..., object]) -> Callable[..., object]:
    """Return a method each call of which adds one update to a graph."""

    @untraced
    def called(*args: object, **kwargs: object) -> Any:
        if executing_eagerly():
            return method(*args, **kwargs)
        return graph_mode().as_one_update(functools.partial(method, *args, **kwargs))

    return functools.wraps(method)(called)
