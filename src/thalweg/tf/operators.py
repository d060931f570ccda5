"""Factories of TensorFlow functions from torch functions of one or two tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from thalweg.tf.convert import call, pair, tensor

_DOC = "`{}` {}. In graph mode `name` names the node."


def unary(module: str, function: Callable[[Tensor], Tensor], label: str) -> Callable[..., Tensor]:
    """Return an elementwise function `(x, name=None)` that is defined in `module`."""

    def apply(x: object, name: str | None = None) -> Tensor:
        return call(function, tensor(x), name=name or label)

    return name_function(apply, label, _DOC.format(label, "of each element of `x`"), module)


def binary(
    module: str, function: Callable[[Tensor, Tensor], Tensor], label: str
) -> Callable[..., Tensor]:
    """Return a function `(x, y, name=None)` with broadcasting that is defined in `module`."""

    def apply(x: object, y: object, name: str | None = None) -> Tensor:
        return call(function, *pair(x, y), name=name or label)

    description = "of the elements of `x` and `y`, which broadcast"
    return name_function(apply, label, _DOC.format(label, description), module)


def name_function(
    function: Callable[..., Any], label: str, doc: str, module: str = ""
) -> Callable[..., Any]:
    """Set the name and the docstring of a function that a factory made; return the function.

    `module` is the function's new `__module__`, for pickles; "" leaves it unchanged.
    """
    function.__name__ = function.__qualname__ = label
    function.__module__ = module or function.__module__
    function.__doc__ = doc
    return function
