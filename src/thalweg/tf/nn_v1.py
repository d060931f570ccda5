"""Functions of `tf.nn` whose arguments differ between TensorFlow 1 and 2."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from thalweg.tf import nn as newer
from thalweg.tf import signatures
from thalweg.tf.convert import call, tensor
from thalweg.tf.normalization import batch_moments, normalized

__all__ = [
    "conv1d", "conv2d", "conv2d_transpose", "crelu", "depthwise_conv2d", "depthwise_conv2d_native",
    "fused_batch_norm", "in_top_k", "l2_normalize", "log_softmax", "moments", "nce_loss",
    "relu_layer", "sampled_softmax_loss", "separable_conv2d", "softmax",
    "weighted_cross_entropy_with_logits",
]  # fmt: skip

with_older_arguments = partial(signatures.with_older_arguments, __name__)
_SAMPLING = (
    "weights biases labels inputs num_sampled num_classes num_true sampled_values"
    " remove_accidental_hits partition_strategy name"
)
_RATE = "`rate` is an older name of `dilations`"

softmax = with_older_arguments(newer.softmax, "logits axis name dim", {"dim": "axis"}, axis=None)
log_softmax = with_older_arguments(
    newer.log_softmax, "logits axis name dim", {"dim": "axis"}, axis=None
)
l2_normalize = with_older_arguments(
    newer.l2_normalize, "x axis epsilon name dim", {"dim": "axis"}, axis=None
)
crelu = with_older_arguments(newer.crelu, "features name axis")
conv1d = with_older_arguments(
    newer.conv1d,
    "value filters stride padding use_cudnn_on_gpu data_format name input dilations",
    {"value": "input"},
    **dict.fromkeys(("value", "filters", "stride", "padding", "data_format", "input")),
)
conv2d = with_older_arguments(
    newer.conv2d,
    "input filter strides padding use_cudnn_on_gpu data_format dilations name filters",
    {"filter": "filters"},
    note="`use_cudnn_on_gpu` is ignored",
    strides=None,
    padding=None,
    use_cudnn_on_gpu=True,
)
conv2d_transpose = with_older_arguments(
    newer.conv2d_transpose,
    "value filter output_shape strides padding data_format name input filters",
    {"value": "input", "filter": "filters"},
    input=None,
)
depthwise_conv2d = depthwise_conv2d_native = with_older_arguments(
    newer.depthwise_conv2d,
    "input filter strides padding rate name data_format dilations",
    note=_RATE,
)
separable_conv2d = with_older_arguments(
    newer.separable_conv2d,
    "input depthwise_filter pointwise_filter strides padding rate name data_format dilations",
    note=_RATE,
)
moments = with_older_arguments(
    newer.moments, "x axes shift name keep_dims keepdims", {"keep_dims": "keepdims"}, keepdims=None
)
in_top_k = with_older_arguments(newer.in_top_k, "predictions targets k name")
weighted_cross_entropy_with_logits = with_older_arguments(
    newer.weighted_cross_entropy_with_logits,
    "labels logits pos_weight name targets",
    {"targets": "labels"},
    **dict.fromkeys(("labels", "logits", "pos_weight")),
)
nce_loss = with_older_arguments(newer.nce_loss, _SAMPLING, partition_strategy="mod")
sampled_softmax_loss = with_older_arguments(
    newer.sampled_softmax_loss, f"{_SAMPLING} seed", partition_strategy="mod"
)


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
    """Return images normalized by batch moments in training, otherwise by `mean` and `variance`.

    Returns:
        (images, mean, variance). In training, mean and unbiased variance of the batch; without
        training, copies of the arguments. If `exponential_avg_factor` f is not 1, training returns
        f times the batch's moments plus (1 - f) times the arguments.
    """
    axis, fraction = 1 if data_format == "NCHW" else -1, exponential_avg_factor
    operands = [tensor(x), tensor(scale), tensor(offset)]
    operands += [None if moment is None else tensor(moment) for moment in (mean, variance)]

    def normalize(x: Tensor, scale: Any, offset: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
        if not is_training:
            outputs = normalized(x, scale, offset, mean, variance, epsilon, axis)
            return outputs, mean.clone(), variance.clone()
        batch = batch_moments(x, axis, unbiased=True)
        if fraction != 1.0:
            batch = [old + (new - old) * fraction for old, new in zip((mean, variance), batch)]
        return normalized(x, scale, offset, None, None, epsilon, axis), *batch

    return call(normalize, *operands, name=name or "FusedBatchNorm")


def relu_layer(x: object, weights: object, biases: object, name: str | None = None) -> Tensor:
    """Compute `relu` of `xw_plus_b`."""
    return newer.relu(newer.xw_plus_b(x, weights, biases), name=name or "relu_layer")
