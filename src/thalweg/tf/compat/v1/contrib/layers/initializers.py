"""Initial values of `tf.contrib.layers`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._graph.initializers import fans
from thalweg.errors import InvalidArgumentError


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
