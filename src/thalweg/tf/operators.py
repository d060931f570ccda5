"""Functions of TensorFlow made of torch's: of one tensor, or of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from thalweg.tf.convert import call, pair, tensor


def unary(function: Callable[[Tensor], Tensor], title: str) -> Callable[..., Tensor]:
    """Return a function `(x, name=None)`, element by element."""

    def apply(x: object, name: str | None = None) -> Tensor:
        return call(function, tensor(x), name=name or title)

    return _with_name(apply, title, "of each element of `x`")


def binary(function: Callable[[Tensor, Tensor], Tensor], title: str) -> Callable[..., Tensor]:
    """Return a function `(x, y, name=None)`, element by element, with broadcasting."""

    def apply(x: object, y: object, name: str | None = None) -> Tensor:
        return call(function, *pair(x, y), name=name or title)

    return _with_name(apply, title, "of the elements of `x` and `y`, which broadcast")


def _with_name(apply: Callable[..., object], title: str, what: str) -> Callable[..., Any]:
    apply.__name__ = apply.__qualname__ = title
    apply.__doc__ = f"`{title}` {what}. In graph mode `name` names the node."
    return apply
