"""Convolutions and pools of `tf.nn`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.static_shape import UNKNOWN
from thalweg.errors import InvalidArgumentError
from thalweg.tf import conv_windows
from thalweg.tf.conv_windows import Windows
from thalweg.tf.convert import call, named_in_graphs, pair, tensor

__all__ = [
    "atrous_conv2d",
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "conv1d",
    "conv2d",
    "conv2d_transpose",
    "conv3d",
    "depthwise_conv2d",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "separable_conv2d",
]


def convolution(
    input: object,
    filters: object,
    strides: object,
    padding: object,
    data_format: str | None,
    dilations: object,
    name: str,
    function: Callable[..., Tensor] = conv_windows.convolve,
) -> Tensor:
    """Return a convolution by filters, as an operation."""
    input, filters = pair(input, filters)
    if filters.shape is UNKNOWN:
        raise InvalidArgumentError(f"{name} needs filters whose number of dimensions is known.")
    how = Windows.of(strides, padding, dilations, data_format, len(filters.shape) - 2)
    return call(function, input, filters, how, name=name)


@named_in_graphs(4, "use_cudnn_on_gpu")
def conv2d(
    input: object,
    filters: object = None,
    strides: object = 1,
    padding: object = "VALID",
    data_format: str = "NHWC",
    dilations: object = None,
    name: str | None = None,
    *,
    filter: object = None,
    use_cudnn_on_gpu: object = None,
) -> Tensor:
    """Return the convolution of images (batch, height, width, channels) by filters (height, width,
    channels, outputs).

    Args:
        input: The images; with `data_format="NCHW"` their channels come first.
        filters: The filters; `filter` is its older name.
        strides: A number, two, or four.
        padding: "SAME", "VALID", or pairs for each dimension.
        data_format: "NHWC" or "NCHW".
        dilations: As `strides`.
        name: Optional.
        filter: `filters`.
        use_cudnn_on_gpu: Ignored.
    """
    filters = filter if filters is None else filters
    return convolution(input, filters, strides, padding, data_format, dilations, name or "Conv2D")


@named_in_graphs(4, "use_cudnn_on_gpu")
def conv1d(
    input: object,
    filters: object,
    stride: object,
    padding: object,
    data_format: str = "NWC",
    dilations: object = None,
    name: str | None = None,
) -> Tensor:
    """Return the convolution of sequences (batch, width, channels) by filters (width, channels,
    outputs); otherwise as `conv2d`.
    """
    return convolution(input, filters, stride, padding, data_format, dilations, name or "conv1d")


def conv3d(
    input: object,
    filters: object,
    strides: object,
    padding: object,
    data_format: str = "NDHWC",
    dilations: object = None,
    name: str | None = None,
) -> Tensor:
    """Return the convolution of volumes; otherwise as `conv2d`."""
    return convolution(input, filters, strides, padding, data_format, dilations, name or "Conv3D")


def atrous_conv2d(
    value: object, filters: object, rate: int, padding: object, name: str | None = None
) -> Tensor:
    """`conv2d` by filters whose elements are `rate` apart."""
    return convolution(value, filters, 1, padding, None, rate, name or "convolution")


def depthwise_conv2d(
    input: object,
    filter: object,
    strides: object,
    padding: object,
    data_format: str | None = None,
    dilations: object = None,
    name: str | None = None,
    *,
    rate: object = None,
) -> Tensor:
    """`conv2d` of each channel by filters of its own, (height, width, channels, outputs of each).

    `rate` is an older name of `dilations`.
    """
    dilations = rate if dilations is None else dilations
    title = name or "depthwise"
    how = (strides, padding, data_format, dilations)
    return convolution(input, filter, *how, title, conv_windows.depthwise)


def separable_conv2d(
    input: object,
    depthwise_filter: object,
    pointwise_filter: object,
    strides: object,
    padding: object,
    data_format: str | None = None,
    dilations: object = None,
    name: str | None = None,
    *,
    rate: object = None,
) -> Tensor:
    """`depthwise_conv2d`, and then `conv2d` by filters of one point."""
    how = (strides, padding, data_format, dilations)
    found = depthwise_conv2d(input, depthwise_filter, *how, rate=rate)
    title = name or "separable_conv2d"
    return convolution(found, pointwise_filter, 1, "VALID", data_format, None, title)


def conv2d_transpose(
    input: object,
    filters: object = None,
    output_shape: object = None,
    strides: object = None,
    padding: object = "SAME",
    data_format: str = "NHWC",
    name: str | None = None,
    *,
    filter: object = None,
    value: object = None,
) -> Tensor:
    """Return the gradient of `conv2d` by its input, given that of its output.

    Args:
        input: As what `conv2d` makes; `value` is its older name.
        filters: (height, width, outputs, channels); `filter` is its older name.
        output_shape: The shape of the result, as numbers, tensors, or a tensor of four.
        strides: A number, two, or four.
        padding: "SAME" or "VALID".
        data_format: "NHWC" or "NCHW".
        name: Optional.
        filter: `filters`.
        value: `input`.

    Raises:
        InvalidArgumentError: `conv2d` would not make the input's sizes of the result's.
    """
    input = value if input is None else input
    input, filters = pair(input, filter if filters is None else filters)
    how = Windows.of(strides, padding, None, data_format, 2)
    return transposed(input, filters, output_shape, how, name or "conv2d_transpose")


def transposed(
    input: Tensor, filters: Tensor, output_shape: object, how: Windows, name: str
) -> Tensor:
    """`windows.spread` as an operation; `output_shape` may be None."""
    asked = _shape_argument(output_shape)
    inner = slice(2, None) if how.channels_first else slice(1, -1)

    def spread(data: Tensor, by: Tensor, shape: Any) -> Tensor:
        sizes = None if shape is None else [int(each) for each in shape][inner]
        return conv_windows.spread(data, by, sizes, how)

    found = call(spread, input, filters, asked, name=name)
    if isinstance(found, _graph.SymbolicTensor):
        found.set_shape(_known_shape(input, filters, asked, how))
    return found


def _shape_argument(output_shape: Any) -> Any:
    """A shape as it goes to an operation: a list of sizes, a tensor of them, or None."""
    if output_shape is None or isinstance(output_shape, torch.Tensor | _graph.SymbolicTensor):
        return output_shape
    if isinstance(output_shape, Sequence):
        return [tensor(x) if isinstance(x, _graph.SymbolicTensor) else x for x in output_shape]
    return [int(each) for each in output_shape]


def _known_shape(input: Tensor, filters: Tensor, asked: object, how: Windows) -> list[int | None]:
    """What is known of a result's shape before a run."""
    *kernel, outputs, _ = filters.shape
    given = [None] * (len(kernel) + 2) if input.shape is UNKNOWN else list(input.shape)
    sizes: list[int | None] = [None] * len(kernel)
    if isinstance(asked, list):
        fixed = [None if isinstance(x, _graph.SymbolicTensor) else int(x) for x in asked]
        sizes = fixed[2:] if how.channels_first else fixed[1:-1]
    elif asked is None:
        inner = given[2:] if how.channels_first else given[1:-1]
        whole = conv_windows.spread_sizes([each or 0 for each in inner], kernel, how)
        sizes = [None if old is None else new for old, new in zip(inner, whole, strict=True)]
    return [given[0], outputs, *sizes] if how.channels_first else [given[0], *sizes, outputs]


def pool(
    function: Callable[..., Tensor],
    input: object,
    ksize: object,
    strides: object,
    padding: object,
    data_format: str | None,
    name: str,
    count: int = 2,
) -> Tensor:
    """Return a pool over windows of `count` sizes, as an operation."""
    how = Windows.of(strides, padding, None, data_format, count)
    kernel = conv_windows.spatial(ksize, count, how.channels_first, "ksize")
    return call(function, tensor(input), kernel, how, name=name)


def _pooling_function(
    function: Callable[..., Tensor], title: str, what: str, count: int
) -> Callable[..., Tensor]:
    def apply(
        input: object = None,
        ksize: object = None,
        strides: object = None,
        padding: object = None,
        data_format: str | None = None,
        name: str | None = None,
        *,
        value: object = None,
    ) -> Tensor:
        given = value if input is None else input
        return pool(function, given, ksize, strides, padding, data_format, name or title, count)

    shown = "of images (batch, height, width, channels)" if count == 2 else "of sequences"
    apply.__name__ = apply.__qualname__ = title
    apply.__doc__ = (
        f"The {what} in each window {shown}; `value` is an older name of `input`. Sizes and strides"
        f" are a number, {count}, or one for each dimension."
    )
    return apply


max_pool = _pooling_function(conv_windows.largest, "max_pool", "largest element", 2)
max_pool1d = _pooling_function(conv_windows.largest, "max_pool1d", "largest element", 1)
max_pool2d = _pooling_function(conv_windows.largest, "max_pool2d", "largest element", 2)
avg_pool = _pooling_function(conv_windows.mean, "avg_pool", "mean of the elements", 2)
avg_pool1d = _pooling_function(conv_windows.mean, "avg_pool1d", "mean of the elements", 1)
avg_pool2d = _pooling_function(conv_windows.mean, "avg_pool2d", "mean of the elements", 2)
