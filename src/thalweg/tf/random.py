"""`tf.random`: random tensors; random numbers come from torch's generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import is_tensor, tensor
from thalweg.tf.elementwise import cast
from thalweg.tf.missing import attribute_of
from thalweg.variable import as_dtype

__all__ = ["categorical", "normal", "set_seed", "shuffle", "truncated_normal", "uniform"]


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
    """Return a tensor of normal random numbers; gradients flow to `mean` and `stddev`."""
    return _draw_normal(_graph.random_normal, mean, stddev, shape, dtype, seed, name)


def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = torch.float32,
    seed: int | None = None,
    name: str | None = "truncated_normal",
) -> Tensor:
    """Return a tensor of normal random numbers, redrawn beyond two `stddev` from `mean`.

    Gradients flow to `mean` and `stddev`.
    """
    return _draw_normal(_graph.truncated_normal, mean, stddev, shape, dtype, seed, name)


def _draw_normal(draw: Callable[..., Any], mean: Any, stddev: Any, shape: Any, *args: Any) -> Any:
    """Return `draw(shape, mean, stddev, *args)`, with gradients to a mean or deviation."""
    # No gradient flows through the random operation, but through scale and shift.
    if is_tensor(mean) or is_tensor(stddev):
        return draw(shape, 0.0, 1.0, *args) * stddev + mean
    return draw(shape, mean, stddev, *args)


def uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = torch.float32,
    seed: int | None = None,
    name: str | None = "random_uniform",
) -> Tensor:
    """Return a tensor of random numbers in [minval, maxval).

    `maxval` is 1 by default, and required for integers. Gradients flow to bounds that are tensors.
    """
    if not (is_tensor(minval) or is_tensor(maxval)):
        return _graph.random_uniform(shape, minval, maxval, dtype, seed, name)
    kind = as_dtype(dtype)
    if kind.is_floating_point:
        uniform_numbers = _graph.random_uniform(shape, 0.0, 1.0, kind, seed, name)
        return uniform_numbers * ((1 if maxval is None else maxval) - minval) + minval
    uniform_numbers = _graph.random_uniform(shape, 0.0, 1.0, torch.float64, seed, name)
    return cast(torch.floor(uniform_numbers * (maxval - minval)), kind) + cast(minval, kind)


def categorical(
    logits: object,
    num_samples: object,
    dtype: object = torch.int64,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return random class numbers of shape (batch, num_samples), drawn for each row of `logits`.

    Args:
        logits: Unscaled logarithms of probabilities, of shape (batch, classes).
        num_samples: Number of independent samples per row.
        dtype: int64 or int32.

    Raises:
        InvalidArgumentError: The logits are not a matrix.
    """
    generator, logit_rows, kind = _graph.numbers_of(seed), tensor(logits), as_dtype(dtype)

    def draw(logit_rows: Tensor, count: Any) -> Tensor:
        if logit_rows.dim() != 2 or not logit_rows.shape[1]:
            raise InvalidArgumentError(
                f"logits must have the shape (batch, classes), not {tuple(logit_rows.shape)}."
            )
        source = generator()
        probabilities = torch.softmax(logit_rows.detach().double(), -1).to(
            "cpu" if source else logit_rows.device
        )
        classes = torch.multinomial(probabilities, int(count), replacement=True, generator=source)
        return classes.to(kind).to(logit_rows.device)

    if not any(isinstance(operand, _graph.SymbolicTensor) for operand in (logit_rows, num_samples)):
        return draw(logit_rows, num_samples)
    batch = logit_rows.shape[0] if logit_rows.shape else None
    output = _graph.Output(kind, (batch, _graph.known_size(num_samples)), ())
    arguments = ([logit_rows, num_samples], name or "Multinomial")
    return _graph.operation(draw, *arguments, kind="pure", outputs=output)


def shuffle(value: object, seed: int | None = None, name: str | None = None) -> Tensor:
    """Return the rows of a tensor in random order; in a graph each run has a new order."""
    generator = _graph.numbers_of(seed)

    def mix(operand: Tensor) -> Tensor:
        order = torch.randperm(
            operand.shape[0], generator=generator(), dtype=torch.int64, device="cpu"
        )
        return operand[order.to(operand.device)]

    source = tensor(value)
    if not isinstance(source, _graph.SymbolicTensor):
        return mix(source)
    output = _graph.Output(source.dtype, source.shape, (source,))
    return _graph.operation(mix, [source], name or "RandomShuffle", kind="pure", outputs=output)


__getattr__ = attribute_of("random")
