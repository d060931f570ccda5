"""`must_hold`: a condition that is checked at once, or in graph mode by each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thalweg._core.nest import leaves_of
from thalweg._graph.nodes import SymbolicTensor
from thalweg._graph.operation import operation
from thalweg.errors import InvalidArgumentError
from thalweg.variable import to_tensor


def must_hold(
    check: Callable[..., object],
    tensors: Sequence[object],
    message: str,
    data: Sequence[object] = (),
    summarize: int | None = None,
    name: str = "Assert",
) -> Any:
    """Raise InvalidArgumentError if a condition is false, now or in each run of a graph.

    Args:
        check: `check(*tensors)` returns a bool or a tensor of bools; all must be True.
        tensors: Arguments of `check`.
        message: Text of the error.
        data: Tensors and other objects for the text of the error; by default `tensors`.
        summarize: Number of elements per tensor in the text; 3 by default, all if negative.

    Returns:
        The checking operation if an argument is symbolic, otherwise None.
    """
    printed = list(data) or list(tensors)

    def check_values(values: Sequence[object], objects: Sequence[object]) -> None:
        if not to_tensor(check(*values)).all():
            texts = " ".join(f"[{excerpt(leaf, summarize)}]" for leaf in objects)
            raise InvalidArgumentError(f"{message} {texts}".strip())

    if any(isinstance(x, SymbolicTensor) for x in leaves_of([list(tensors), printed])):
        return operation(check_values, [list(tensors), printed], name, kind="pure")
    return check_values(tensors, printed)


def excerpt(value: object, summarize: int | None) -> str:
    """Return the first `summarize` elements of a value as text; all if negative."""
    if not isinstance(value, torch.Tensor):
        return str(value)
    limit = 3 if summarize is None else summarize
    flat = value.detach().reshape(-1)
    first = flat if limit < 0 else flat[:limit]
    end = "..." if len(first) < len(flat) else ""
    return " ".join(str(element) for element in first.tolist()) + end
