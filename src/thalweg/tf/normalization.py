"""Moments and normalizations of `tf.nn`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg.tf.convert import call, named_in_graphs, pair, sizes, tensor

__all__ = [
    "batch_norm_with_global_normalization", "batch_normalization", "local_response_normalization",
    "lrn", "moments",
]  # fmt: skip


@named_in_graphs(3, "name")
def moments(
    x: object,
    axes: object,
    shift: object = None,
    keepdims: bool = False,
    name: str | None = None,
    *,
    keep_dims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (mean, biased variance) along `axes`.

    `shift` is ignored, as in TensorFlow; `keep_dims` is an older name of `keepdims`.
    """
    moment_axes, keep = sizes(axes), bool(keepdims or keep_dims)

    def measure(operand: Tensor) -> tuple[Tensor, Tensor]:
        variance, mean = torch.var_mean(operand, moment_axes, correction=0, keepdim=keep)
        return mean, variance

    return call(measure, tensor(x), name=name or "moments")


def batch_normalization(
    x: object,
    mean: object,
    variance: object,
    offset: object,
    scale: object,
    variance_epsilon: float,
    name: str | None = None,
) -> Tensor:
    """Return (x - mean) / sqrt(variance + variance_epsilon) * scale + offset, broadcast.

    `scale` and `offset` may be None.
    """
    operands = [tensor(x), *(None if y is None else pair(x, y)[1] for y in (mean, variance))]
    operands += [None if y is None else pair(x, y)[1] for y in (offset, scale)]

    def normalize(
        x: Tensor, mean: Tensor, variance: Tensor, offset: Tensor | None, scale: Tensor | None
    ) -> Tensor:
        factor = torch.rsqrt(variance + variance_epsilon)
        factor = factor if scale is None else factor * scale
        shift = -mean * factor if offset is None else offset - mean * factor
        return x * factor + shift

    return call(normalize, *operands, name=name or "batchnorm")


def batch_norm_with_global_normalization(
    input: object,
    mean: object,
    variance: object,
    beta: object,
    gamma: object,
    variance_epsilon: float,
    scale_after_normalization: bool,
    name: str | None = None,
) -> Tensor:
    """Return `batch_normalization`; `gamma` is ignored if `scale_after_normalization` is False."""
    scale = gamma if scale_after_normalization else None
    return batch_normalization(input, mean, variance, beta, scale, variance_epsilon, name)


def local_response_normalization(
    input: object,
    depth_radius: int = 5,
    bias: float = 1.0,
    alpha: float = 1.0,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Return images divided by (bias + alpha s)^beta; channels are the last dimension.

    s is the sum of squares over channels at a distance of at most `depth_radius`.
    """
    width = 2 * depth_radius + 1

    def normalize(images: Tensor) -> Tensor:
        # torch takes the mean of the squares, and channels first.
        outputs = torch.nn.functional.local_response_norm(
            images.movedim(-1, 1), width, alpha * width, beta, bias
        )
        return outputs.movedim(1, -1)

    return call(normalize, tensor(input), name=name or "LRN")


lrn = local_response_normalization


def normalized(
    operand: Tensor,
    scale: Tensor,
    offset: Tensor,
    mean: Any,
    variance: Any,
    epsilon: float,
    axis: int,
) -> Tensor:
    """Normalize a tensor by `mean` and `variance`, vectors along `axis`; return the result.

    If `mean` is None, use moments over all axes but `axis`. `scale` and `offset` may be None.
    """
    if mean is None:
        outputs = torch.batch_norm(
            operand.movedim(axis, 1), scale, offset, None, None, True, 0.0, epsilon, False
        )
        return outputs.movedim(1, axis)
    factor = torch.rsqrt(variance + epsilon)
    factor = factor if scale is None else factor * scale
    shift = -mean * factor if offset is None else offset - mean * factor
    shape = [1] * operand.dim()
    shape[axis] = -1
    return (operand * factor.reshape(shape) + shift.reshape(shape)).to(operand.dtype)


def batch_moments(operand: Tensor, axis: int, unbiased: bool) -> tuple[Tensor, Tensor]:
    """Return (mean, variance) over all axes but `axis`, without gradients."""
    operand = operand.detach()
    reduced_axes = [
        dimension for dimension in range(operand.dim()) if dimension != axis % operand.dim()
    ]
    variance, mean = torch.var_mean(operand, reduced_axes, correction=0)
    count = operand.numel() // max(mean.numel(), 1)
    if unbiased and count > 1:
        variance = variance * (count / (count - 1))
    return mean, variance
