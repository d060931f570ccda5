"""Functions of `tf.nn` whose arguments differ between TensorFlow 1 and 2."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from thalweg.tf import convolution
from thalweg.tf import nn as newer
from thalweg.tf.convert import call, tensor
from thalweg.tf.normalization import batch_moments, normalized

__all__ = [
    "conv1d", "conv2d", "conv2d_transpose", "crelu", "depthwise_conv2d", "depthwise_conv2d_native",
    "fused_batch_norm", "in_top_k", "l2_normalize", "log_softmax", "moments", "nce_loss",
    "relu_layer", "sampled_softmax_loss", "separable_conv2d", "softmax",
    "weighted_cross_entropy_with_logits",
]  # fmt: skip


def softmax(
    logits: object, axis: int | None = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """Compute `tf.nn.softmax`; `dim` is an older name of `axis`."""
    return newer.softmax(logits, _axis_given(axis, dim, -1), name)


def log_softmax(
    logits: object, axis: int | None = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """Compute `tf.nn.log_softmax`; `dim` is an older name of `axis`."""
    return newer.log_softmax(logits, _axis_given(axis, dim, -1), name)


def l2_normalize(
    x: object,
    axis: object = None,
    epsilon: float = 1e-12,
    name: str | None = None,
    dim: object = None,
) -> Tensor:
    """Compute `tf.nn.l2_normalize`; `dim` is an older name of `axis`."""
    return newer.l2_normalize(x, _axis_given(axis, dim, None), epsilon, name)


def _axis_given(axis: object, dim: object, default: object) -> Any:
    return next((choice for choice in (axis, dim) if choice is not None), default)


def crelu(features: object, name: str | None = None, axis: int = -1) -> Tensor:
    """Compute `tf.nn.crelu`."""
    return newer.crelu(features, axis, name)


def conv2d(
    input: object,
    filter: object = None,
    strides: object = None,
    padding: object = None,
    use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC",
    dilations: object = None,
    name: str | None = None,
    filters: object = None,
) -> Tensor:
    """Compute `tf.nn.conv2d`; `use_cudnn_on_gpu` is ignored."""
    kernel = filter if filters is None else filters
    return newer.conv2d(
        input, kernel, strides, padding, data_format=data_format, dilations=dilations, name=name
    )


def conv1d(
    value: object = None,
    filters: object = None,
    stride: object = None,
    padding: object = None,
    use_cudnn_on_gpu: object = None,
    data_format: str | None = None,
    name: str | None = None,
    input: object = None,
    dilations: object = None,
) -> Tensor:
    """Compute `tf.nn.conv1d`; `use_cudnn_on_gpu` is ignored."""
    source = value if input is None else input
    title = name or "conv1d"
    return convolution.convolution(source, filters, stride, padding, data_format, dilations, title)


def conv2d_transpose(
    value: object = None,
    filter: object = None,
    output_shape: object = None,
    strides: object = None,
    padding: object = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
    input: object = None,
    filters: object = None,
) -> Tensor:
    """Compute `tf.nn.conv2d_transpose`."""
    source, kernel = (value if input is None else input), (filter if filters is None else filters)
    return newer.conv2d_transpose(source, kernel, output_shape, strides, padding, data_format, name)


def depthwise_conv2d(
    input: object,
    filter: object,
    strides: object,
    padding: object,
    rate: object = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: object = None,
) -> Tensor:
    """Compute `tf.nn.depthwise_conv2d`; `rate` is an older name of `dilations`."""
    spacing = rate if dilations is None else dilations
    return newer.depthwise_conv2d(input, filter, strides, padding, data_format, spacing, name)


depthwise_conv2d_native = depthwise_conv2d


def separable_conv2d(
    input: object,
    depthwise_filter: object,
    pointwise_filter: object,
    strides: object,
    padding: object,
    rate: object = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: object = None,
) -> Tensor:
    """Compute `tf.nn.separable_conv2d`; `rate` is an older name of `dilations`."""
    kernels = depthwise_filter, pointwise_filter
    spacing = rate if dilations is None else dilations
    return newer.separable_conv2d(input, *kernels, strides, padding, data_format, spacing, name)


def moments(
    x: object,
    axes: object,
    shift: object = None,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute `tf.nn.moments`."""
    return newer.moments(x, axes, keepdims=bool(keepdims or keep_dims), name=name)


def fused_batch_norm(
    x: object,
    scale: object,
    offset: object,
    mean: object = None,
    variance: object = None,
    epsilon: float = 0.001,
    data_format: str = "NHWC",
    is_training: bool = True,
    name: str | None = None,
    exponential_avg_factor: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize images by moments of the batch, or, if not `is_training`, by the given moments.

    Returns:
        The images, mean and variance. In training the moments of the batch, the variance
        unbiased; if `exponential_avg_factor` is not 1, the given moments moved towards them
        by this fraction. Otherwise the given moments.
    """
    axis, share = 1 if data_format == "NCHW" else -1, exponential_avg_factor
    parts = [tensor(x), tensor(scale), tensor(offset)]
    parts += [None if moment is None else tensor(moment) for moment in (mean, variance)]

    def normalize(x: Tensor, scale: Any, offset: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
        if not is_training:
            outputs = normalized(x, scale, offset, mean, variance, epsilon, axis)
            return outputs, mean.clone(), variance.clone()
        batch = batch_moments(x, axis, unbiased=True)
        if share != 1.0:
            batch = [old + (new - old) * share for old, new in zip((mean, variance), batch)]
        return normalized(x, scale, offset, None, None, epsilon, axis), *batch

    return call(normalize, *parts, name=name or "FusedBatchNorm")


def in_top_k(predictions: object, targets: object, k: int, name: str | None = None) -> Tensor:
    """Compute `tf.nn.in_top_k`, with the predictions first."""
    return newer.in_top_k(targets, predictions, k, name)


def weighted_cross_entropy_with_logits(
    labels: object = None,
    logits: object = None,
    pos_weight: object = None,
    name: str | None = None,
    targets: object = None,
) -> Tensor:
    """Compute `tf.nn.weighted_cross_entropy_with_logits`; `targets` is an older name of
    `labels`.
    """
    labels = targets if labels is None else labels
    return newer.weighted_cross_entropy_with_logits(labels, logits, pos_weight, name)


def nce_loss(
    weights: object,
    biases: object,
    labels: object,
    inputs: object,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: object = None,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str = "nce_loss",
) -> Tensor:
    """Compute `tf.nn.nce_loss` with TensorFlow 1's order of arguments."""
    args = (weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values)
    return newer.nce_loss(
        *args, remove_accidental_hits, name=name, partition_strategy=partition_strategy
    )


def sampled_softmax_loss(
    weights: object,
    biases: object,
    labels: object,
    inputs: object,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: object = None,
    remove_accidental_hits: bool = True,
    partition_strategy: str = "mod",
    name: str = "sampled_softmax_loss",
    seed: int | None = None,
) -> Tensor:
    """Compute `tf.nn.sampled_softmax_loss` with TensorFlow 1's order of arguments."""
    args = (weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values)
    return newer.sampled_softmax_loss(
        *args, remove_accidental_hits, seed=seed, name=name, partition_strategy=partition_strategy
    )


def relu_layer(x: object, weights: object, biases: object, name: str | None = None) -> Tensor:
    """Compute `relu` of `xw_plus_b`."""
    return newer.relu(newer.xw_plus_b(x, weights, biases), name=name or "relu_layer")
