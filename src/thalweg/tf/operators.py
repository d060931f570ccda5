"""Factories of TensorFlow functions from torch functions of one or two tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from thalweg.tf.convert import call, pair, tensor


def unary(function: Callable[[Tensor], Tensor], title: str) -> Callable[..., Tensor]:
    """Return an elementwise function `(x, name=None)`."""

    def apply(x: object, name: str | None = None) -> Tensor:
        return call(function, tensor(x), name=name or title)

    return _with_name(apply, title, "of each element of `x`")


def binary(function: Callable[[Tensor, Tensor], Tensor], title: str) -> Callable[..., Tensor]:
    """Return an elementwise function `(x, y, name=None)` with broadcasting."""

    def apply(x: object, y: object, name: str | None = None) -> Tensor:
        return call(function, *pair(x, y), name=name or title)

    return _with_name(apply, title, "of the elements of `x` and `y`, which broadcast")


def _with_name(apply: Callable[..., object], title: str, description: str) -> Callable[..., Any]:
    apply.__name__ = apply.__qualname__ = title
    apply.__doc__ = f"`{title}` {description}. In graph mode `name` names the node."
    return apply
