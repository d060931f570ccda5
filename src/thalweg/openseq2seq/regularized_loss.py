"""Losses with the penalties of a config's regularizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thalweg._base.showing import show_value
from thalweg._graph import is_symbolic
from thalweg.errors import InvalidTypeError
from thalweg.openseq2seq.optimizers.mp_wrapper import mp_regularizer_wrapper
from thalweg.openseq2seq.optimizers.optimizers import get_regularization_loss
from thalweg.variable import to_tensor

Regularizer = Callable[[Any], Any]


def made_regularizer(regularizer: object, params: Mapping[str, object]) -> Regularizer | None:
    """Return a config's penalty function of weights, or None without a regularizer.

    Raises:
        TypeError: The regularizer cannot be called with these parameters, or makes no function.
    """
    if regularizer is None:
        return None
    if not callable(regularizer):
        raise InvalidTypeError(
            f"regularizer must be a function that makes a regularizer, not"
            f" {show_value(regularizer)}."
        )
    function = regularizer(**params)
    if not callable(function):
        raise InvalidTypeError(
            "regularizer must make a function of weights;"
            f" with {dict(params)} it made {function!r}."
        )
    return function


def with_penalties(
    loss: Any, regularizer: Regularizer | None, weights: Sequence[object], is_mixed: bool
) -> Any:
    """Return a loss in float32 plus the penalties of weights.

    In mixed precision the penalties of float16 and bfloat16 weights are left to the optimizer. A
    symbolic loss also gets the penalties of its graph's collection.

    Args:
        loss: A callable without arguments, or a symbolic tensor.
        regularizer: Called with a weight; returns its penalty or None.
        weights: The weights to penalize.
        is_mixed: True in mixed precision.

    Returns:
        A callable without arguments, or a symbolic tensor, like `loss`.
    """
    penalize = regularizer
    if penalize is not None and is_mixed:
        penalize = mp_regularizer_wrapper(penalize)

    def total() -> Any:
        penalties = [penalize(weight) for weight in weights] if penalize else []
        return sum((penalty.to(torch.float32) for penalty in penalties if penalty is not None), 0.0)

    if is_symbolic(loss):
        with loss.graph.as_default():
            return loss.to(torch.float32) + (total() + get_regularization_loss())
    return lambda: to_tensor(loss()).to(torch.float32) + total()
