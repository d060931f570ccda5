"""Initial values and penalties of weights in `tf.contrib.layers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._graph import GraphKeys
from thalweg._graph.initializers import fans
from thalweg.errors import InvalidArgumentError
from thalweg.tf.elementwise import add_n


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: object = torch.float32,
) -> Callable[..., Tensor]:
    """Return an initializer of random numbers with variance `factor` / n.

    Args:
        mode: n is the number of inputs for "FAN_IN", the number of outputs for "FAN_OUT", and the
            mean of inputs and outputs for "FAN_AVG".
        uniform: True for uniform numbers; False for normal numbers, redrawn beyond two deviations.
        dtype: The default dtype of a call.

    Raises:
        ValueError: The mode is unknown.
    """
    if mode.upper() not in ("FAN_IN", "FAN_OUT", "FAN_AVG"):
        raise InvalidArgumentError(
            f"mode must be FAN_IN, FAN_OUT or FAN_AVG, not {show_value(mode)}."
        )

    def initialize(
        shape: Sequence[int], dtype: object = dtype, partition_info: object = None
    ) -> Tensor:
        inputs, outputs = fans(tuple(shape))
        sizes = {"FAN_IN": inputs, "FAN_OUT": outputs, "FAN_AVG": (inputs + outputs) / 2}
        variance = factor / max(sizes[mode.upper()], 1.0)
        if uniform:
            limit = math.sqrt(3.0 * variance)
            return _graph.random_uniform(shape, -limit, limit, dtype, seed)
        # A normal distribution that is cut at two deviations has 1 / 1.3 of the variance.
        return _graph.truncated_normal(shape, 0.0, math.sqrt(1.3 * variance), dtype, seed)

    return initialize


def xavier_initializer(
    uniform: bool = True, seed: int | None = None, dtype: object = torch.float32
) -> Callable[..., Any]:
    """Return an initializer by the mean of inputs and outputs (Glorot & Bengio 2010)."""
    return variance_scaling_initializer(1.0, "FAN_AVG", uniform, seed, dtype)


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
    """Return a function that adds several penalties, or None if all regularizers are None.

    `scope` is ignored.
    """
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
