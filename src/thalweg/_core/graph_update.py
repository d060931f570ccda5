"""Wrapper of `apply_gradients`: in graph mode, a call adds a single update to the graph."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from thalweg._base.execution_context import executing_eagerly, is_ours
from thalweg._base.tracing import untraced
from thalweg._core.graph_mode import graph_mode


def apply_as_one_update(cls: type[Any], base: type[object]) -> None:
    """Replace `cls.apply_gradients` by a wrapper that adds one update to a graph per call.

    In eager mode the wrapper only calls the method. Do nothing if `cls` inherits the method from
    `base` or from a subclass of `base`.

    Args:
        cls: A new subclass of `base`; changed.
        base: The base class of all optimizers.
    """
    owner = next(base_class for base_class in cls.__mro__ if "apply_gradients" in vars(base_class))
    method = vars(owner)["apply_gradients"]
    # A method of a mixin class is wrapped, too; the library's own mixins need no wrapper.
    is_mixin = not (issubclass(owner, base) or is_ours(method))
    if inspect.isfunction(method) and (owner is cls or is_mixin):
        cls.apply_gradients = _as_one_update(method)


def _as_one_update(method: Callable[..., object]) -> Callable[..., object]:
    """Return a wrapper of `method`; in graph mode each call adds one update to the graph."""

    @untraced
    def called(*args: object, **kwargs: object) -> Any:
        if executing_eagerly():
            return method(*args, **kwargs)
        return graph_mode().as_one_update(functools.partial(method, *args, **kwargs))

    return functools.wraps(method)(called)
