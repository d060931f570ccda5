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
    """Return a function of weights that returns their penalty, scale sum(|weights|); None if
    `scale` is 0. `scope` is ignored.

    Raises:
        ValueError: `scale` is negative.
    """
    if scale < 0:
        raise InvalidArgumentError(f"scale must be at least 0, not {scale}.")
    return lambda weights: None if scale == 0 else abs(weights).sum() * float(scale)


def sum_regularizer(
    regularizer_list: Sequence[Any], scope: str | None = None
) -> Callable[[Any], Any] | None:
    """Return a function that returns the sum of several penalties; None of none. `scope` is
    ignored.
    """
    given = [each for each in regularizer_list if each is not None]
    if not given:
        return None

    def penalty(weights: Any) -> Any:
        found = [each(weights) for each in given]
        found = [each for each in found if each is not None]
        return add_n(found) if found else None

    return penalty


def apply_regularization(regularizer: Callable[[Any], Any], weights_list: Any = None) -> Any:
    """Return the sum of the penalties of weights, by default of those in the collection WEIGHTS.

    It goes to REGULARIZATION_LOSSES; it is 0 if there are none.
    """
    weights = _graph.get_collection(GraphKeys.WEIGHTS) if weights_list is None else weights_list
    found = [each for each in map(regularizer, weights) if each is not None]
    total = add_n(found) if found else _graph.constant(0.0)
    if found:
        _graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, total)
    return total
