"""Factories of TensorFlow functions from torch functions of one or two tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from thalweg.tf.convert import call, pair, tensor

_DOC = "`{}` {}. In graph mode `name` names the node."


def unary(function: Callable[[Tensor], Tensor], label: str) -> Callable[..., Tensor]:
    """Return an elementwise function `(x, name=None)`."""

    def apply(x: object, name: str | None = None) -> Tensor:
        return call(function, tensor(x), name=name or label)

    return name_function(apply, label, _DOC.format(label, "of each element of `x`"))


def binary(function: Callable[[Tensor, Tensor], Tensor], label: str) -> Callable[..., Tensor]:
    """Return an elementwise function `(x, y, name=None)` with broadcasting."""

    def apply(x: object, y: object, name: str | None = None) -> Tensor:
        return call(function, *pair(x, y), name=name or label)

    description = "of the elements of `x` and `y`, which broadcast"
    return name_function(apply, label, _DOC.format(label, description))


def name_function(function: Callable[..., Any], label: str, doc: str) -> Callable[..., Any]:
    """Set the name and the docstring of a function that a factory made; return the function."""
    function.__name__ = function.__qualname__ = label
    function.__doc__ = doc
    return function
