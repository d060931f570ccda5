"""A loss with the penalties of a config's regularizer."""

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
    """Return the function of weights that a config means; None if it has no regularizer.

    Raises:
        TypeError: It cannot be called, does not take these parameters, or makes no function.
    """
    if regularizer is None:
        return None
    if not callable(regularizer):
        raise InvalidTypeError(
            f"regularizer must be a function that makes a regularizer, not"
            f" {show_value(regularizer)}."
        )
    made = regularizer(**params)
    if not callable(made):
        raise InvalidTypeError(
            f"regularizer must make a function of weights; with {dict(params)} it made {made!r}."
        )
    return made


def with_penalties(
    loss: Any, regularizer: Regularizer | None, weights: Sequence[object], is_mixed: bool
) -> Any:
    """Return a loss in float32, with the penalties of weights added to it.

    In mixed precision the penalties of float16 and bfloat16 weights are left to the optimizer. A
    symbolic loss gets those of its graph's collection, too.

    Args:
        loss: A callable without arguments, or a symbolic tensor.
        regularizer: Takes weights, returns their penalty or None.
        weights: What it is for.
        is_mixed: Whether there is mixed precision.
    """
    penalize = regularizer
    if penalize is not None and is_mixed:
        penalize = mp_regularizer_wrapper(penalize)

    def total() -> Any:
        penalties = [penalize(each) for each in weights] if penalize else []
        return sum((each.to(torch.float32) for each in penalties if each is not None), 0.0)

    if is_symbolic(loss):
        with loss.graph.as_default():
            return loss.to(torch.float32) + (total() + get_regularization_loss())
    return lambda: to_tensor(loss()).to(torch.float32) + total()
