"""Penalties of `tf.contrib.layers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from thalweg import _graph
from thalweg._graph import GraphKeys
from thalweg.errors import InvalidArgumentError
from thalweg.tf.elementwise import add_n


def l1_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Any]:
    """Return a function: `penalty(weights)` returns scale * sum(|weights|), or None for scale 0.

    `scope` is ignored. Raise ValueError if `scale` is negative.
    """
    if scale < 0:
        raise InvalidArgumentError(f"scale must be at least 0, not {scale}.")
    return lambda weights: None if scale == 0 else abs(weights).sum() * float(scale)


def sum_regularizer(
    regularizer_list: Sequence[Any], scope: str | None = None
) -> Callable[[Any], Any] | None:
    """Return a function that adds several penalties, or None without any; `scope` is ignored."""
    regularizers = [regularizer for regularizer in regularizer_list if regularizer is not None]
    if not regularizers:
        return None

    def penalty(weights: Any) -> Any:
        penalties = [regularizer(weights) for regularizer in regularizers]
        penalties = [penalty_term for penalty_term in penalties if penalty_term is not None]
        return add_n(penalties) if penalties else None

    return penalty


def apply_regularization(regularizer: Callable[[Any], Any], weights_list: Any = None) -> Any:
    """Return the sum of `regularizer(weights)` over a list, by default the collection WEIGHTS.

    Add the sum to REGULARIZATION_LOSSES. Return a constant 0 if there are no penalties.
    """
    weights = _graph.get_collection(GraphKeys.WEIGHTS) if weights_list is None else weights_list
    penalties = [penalty for penalty in map(regularizer, weights) if penalty is not None]
    total = add_n(penalties) if penalties else _graph.constant(0.0)
    if penalties:
        _graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, total)
    return total
