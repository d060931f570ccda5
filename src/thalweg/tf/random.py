"""`tf.random`: random tensors. The numbers are torch's, not TensorFlow's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import is_tensor, tensor
from thalweg.tf.elementwise import cast
from thalweg.tf.missing import attribute_of
from thalweg.variable import as_dtype

__all__ = [
    "categorical",
    "normal",
    "set_seed",
    "shuffle",
    "truncated_normal",
    "uniform",
]


def set_seed(seed: int) -> None:
    """Make random numbers, in eager mode and in the default graph, depend on `seed`."""
    torch.manual_seed(seed)
    _graph.set_random_seed(seed)


def normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = torch.float32,
    seed: int | None = None,
    name: str | None = "random_normal",
) -> Tensor:
    """Numbers from a normal distribution.

    `mean` and `stddev` may be tensors, through which gradients flow.
    """
    name = name or "random_normal"
    if is_tensor(mean) or is_tensor(stddev):
        return _graph.random_normal(shape, 0.0, 1.0, dtype, seed, name) * stddev + mean
    return _graph.random_normal(shape, mean, stddev, dtype, seed, name)


def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = torch.float32,
    seed: int | None = None,
    name: str | None = "truncated_normal",
) -> Tensor:
    """Numbers from a normal distribution, none further than two `stddev` from `mean`.

    These may be tensors, through which gradients flow.
    """
    name = name or "truncated_normal"
    if is_tensor(mean) or is_tensor(stddev):
        return _graph.truncated_normal(shape, 0.0, 1.0, dtype, seed, name) * stddev + mean
    return _graph.truncated_normal(shape, mean, stddev, dtype, seed, name)


def uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = torch.float32,
    seed: int | None = None,
    name: str | None = "random_uniform",
) -> Tensor:
    """Numbers from [minval, maxval); `maxval` is 1 by default, and required for integers.

    Both may be tensors, through which gradients flow.
    """
    name = name or "random_uniform"
    if not (is_tensor(minval) or is_tensor(maxval)):
        return _graph.random_uniform(shape, minval, maxval, dtype, seed, name)
    kind = as_dtype(dtype)
    if kind.is_floating_point:
        share = _graph.random_uniform(shape, 0.0, 1.0, kind, seed, name)
        return share * ((1 if maxval is None else maxval) - minval) + minval
    share = _graph.random_uniform(shape, 0.0, 1.0, torch.float64, seed, name)
    return cast(torch.floor(share * (maxval - minval)), kind) + cast(minval, kind)


def categorical(
    logits: object,
    num_samples: object,
    dtype: object = torch.int64,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Classes, `num_samples` for each row of logits, of shape (batch, num_samples).

    Args:
        logits: Unscaled logarithms of probabilities, of shape (batch, classes).
        num_samples: How many are drawn from each row, independently.
        dtype: int64 or int32.
        seed: Optional.
        name: Optional.

    Raises:
        InvalidArgumentError: The logits are no matrix.
    """
    generator, given, kind = _graph.numbers_of(seed), tensor(logits), as_dtype(dtype)

    def draw(given: Tensor, many: Any) -> Tensor:
        if given.dim() != 2 or not given.shape[1]:
            raise InvalidArgumentError(
                f"logits must have the shape (batch, classes), not {tuple(given.shape)}."
            )
        source = generator()
        shares = torch.softmax(given.detach().double(), -1).to("cpu" if source else given.device)
        found = torch.multinomial(shares, int(many), replacement=True, generator=source)
        return found.to(kind).to(given.device)

    if not any(isinstance(each, _graph.SymbolicTensor) for each in (given, num_samples)):
        return draw(given, num_samples)
    batch = given.shape[0] if given.shape else None
    known = _graph.Output(kind, (batch, _graph.known_size(num_samples)), ())
    arguments = ([given, num_samples], name or "Multinomial")
    return _graph.operation(draw, *arguments, kind="pure", outputs=known)


def shuffle(value: object, seed: int | None = None, name: str | None = None) -> Tensor:
    """Return the rows in random order, another one in each run."""
    generator = _graph.numbers_of(seed)

    def mix(given: Tensor) -> Tensor:
        order = torch.randperm(
            given.shape[0], generator=generator(), dtype=torch.int64, device="cpu"
        )
        return given[order.to(given.device)]

    given = tensor(value)
    if not isinstance(given, _graph.SymbolicTensor):
        return mix(given)
    known = _graph.Output(given.dtype, given.shape, (given,))
    return _graph.operation(mix, [given], name or "RandomShuffle", kind="pure", outputs=known)


__getattr__ = attribute_of("random")
