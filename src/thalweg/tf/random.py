"""`tf.random`: random tensors. The numbers are torch's, not TensorFlow's."""

from __future__ import annotations

from typing import Any

import torch

from thalweg import graph
from thalweg.tf.convert import call, sizes, tensor
from thalweg.tf.missing import attribute_of

__all__ = [
    "normal",
    "set_seed",
    "shuffle",
    "truncated_normal",
    "uniform",
]


def set_seed(seed: int) -> None:
    """Make random numbers, in eager mode and in the default graph, depend on `seed`."""
    torch.manual_seed(seed)
    graph.set_random_seed(seed)


def normal(
    shape: Any,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = torch.float32,
    seed: int | None = None,
    name: str = "random_normal",
) -> Any:
    """Numbers from a normal distribution."""
    return graph.random_normal(sizes(shape), mean, stddev, dtype, seed, name)


def truncated_normal(
    shape: Any,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = torch.float32,
    seed: int | None = None,
    name: str = "truncated_normal",
) -> Any:
    """Numbers from a normal distribution, none further than two `stddev` from `mean`."""
    return graph.truncated_normal(sizes(shape), mean, stddev, dtype, seed, name)


def uniform(
    shape: Any,
    minval: float = 0,
    maxval: float | None = None,
    dtype: Any = torch.float32,
    seed: int | None = None,
    name: str = "random_uniform",
) -> Any:
    """Numbers from [minval, maxval); `maxval` is 1 by default."""
    return graph.random_uniform(sizes(shape), minval, maxval, dtype, seed, name)


def shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Any:
    """The rows in random order."""

    def mix(given: Any) -> Any:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        order = torch.randperm(given.shape[0], generator=generator)
        return given[order.to(given.device)]

    return call(mix, tensor(value), name=name or "RandomShuffle")


__getattr__ = attribute_of("random")
