"""Convolutions and pools of `tf.nn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from thalweg import _graph
from thalweg._base.static_shape import UNKNOWN
from thalweg._graph import sizes_of
from thalweg.errors import InvalidArgumentError
from thalweg.tf import conv_windows
from thalweg.tf.conv_windows import Windows
from thalweg.tf.convert import call, named_in_graphs, pair, set_static, sizes, tensor
from thalweg.tf.operators import name_function

__all__ = [
    "atrous_conv2d", "avg_pool", "avg_pool1d", "avg_pool2d", "conv1d", "conv2d", "conv2d_transpose",
    "conv3d", "depthwise_conv2d", "max_pool", "max_pool1d", "max_pool2d", "separable_conv2d",
]  # fmt: skip


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
    """Return `function(input, filters, windows)`, or in a graph an operation's output."""
    input, filters = pair(input, filters)
    if filters.shape is UNKNOWN:
        raise InvalidArgumentError(f"{name} needs filters whose number of dimensions is known.")
    windows = Windows.of(strides, padding, dilations, data_format, len(filters.shape) - 2)
    return call(function, input, filters, windows, name=name)


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
    """Return the convolution of images by filters (height, width, channels, outputs).

    Args:
        input: Images (batch, height, width, channels), or with "NCHW" channels before height.
        filters: The filters; `filter` is its older name.
        strides: A number, two numbers for height and width, or four numbers.
        padding: "SAME", "VALID", or a (before, after) pair for each dimension.
        data_format: "NHWC" or "NCHW".
        dilations: As `strides`.
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
    """Return the convolution of sequences (batch, width, channels); see `conv2d`.

    Filters are (width, channels, outputs).
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
    """Return the convolution of volumes (batch, depth, height, width, channels); see `conv2d`."""
    return convolution(input, filters, strides, padding, data_format, dilations, name or "Conv3D")


def atrous_conv2d(
    value: object, filters: object, rate: int, padding: object, name: str | None = None
) -> Tensor:
    """Compute `conv2d` by filters with elements `rate` apart."""
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
    """Convolve each channel with separate filters (height, width, channels, multiplier).

    `rate` is an older name of `dilations`.
    """
    dilations = rate if dilations is None else dilations
    label = name or "depthwise"
    options = (strides, padding, data_format, dilations)
    return convolution(input, filter, *options, label, conv_windows.depthwise)


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
    """Apply `depthwise_conv2d`, then `conv2d` with `pointwise_filter` (1, 1, channels, outputs)."""
    options = (strides, padding, data_format, dilations)
    depthwise_output = depthwise_conv2d(input, depthwise_filter, *options, rate=rate)
    label = name or "separable_conv2d"
    return convolution(depthwise_output, pointwise_filter, 1, "VALID", data_format, None, label)


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
    """Return the gradient of `conv2d` with respect to its input; `input` is the output gradient.

    Args:
        input: Tensor in the layout of outputs of `conv2d`; `value` is an older name.
        filters: (height, width, outputs, channels); `filter` is an older name.
        output_shape: The shape of the result: a list of numbers or scalars, or a tensor.
        strides: A number, two numbers for height and width, or four numbers.
        padding: "SAME" or "VALID".
        data_format: "NHWC" or "NCHW".

    Raises:
        InvalidArgumentError: `conv2d` does not turn `output_shape` into the shape of `input`.
    """
    input = value if input is None else input
    input, filters = pair(input, filter if filters is None else filters)
    windows = Windows.of(strides, padding, None, data_format, 2)
    return transposed(input, filters, output_shape, windows, name or "conv2d_transpose")


def transposed(
    input: Tensor, filters: Tensor, output_shape: object, windows: Windows, name: str
) -> Tensor:
    """Return the transposed convolution of `input`, see `conv_windows.spread`.

    Only the spatial sizes in `output_shape` are used; for None, `windows` determines the sizes.
    """
    target = None if output_shape is None else sizes_of(output_shape)
    inner = slice(2, None) if windows.channels_first else slice(1, -1)

    def spread(data: Tensor, kernel: Tensor, shape: Any) -> Tensor:
        spatial_sizes = None if shape is None else sizes(shape)[inner]
        return conv_windows.spread(data, kernel, windows, spatial_sizes)

    def static_shape() -> list[int | None]:
        *kernel, channels, _ = filters.shape
        unknown: list[int | None] = [None] * (len(kernel) + 2)
        data_shape = unknown if input.shape is UNKNOWN else list(input.shape)
        if target is None:
            data_sizes = data_shape[inner]
            defaults = conv_windows.spread_sizes([n or 0 for n in data_sizes], kernel, windows)
            pairs = zip(data_sizes, defaults, strict=True)
            spatial_sizes = [None if old is None else new for old, new in pairs]
        elif isinstance(target, _graph.SymbolicTensor):
            spatial_sizes = unknown[inner]
        else:
            fixed = [None if isinstance(x, _graph.SymbolicTensor) else int(x) for x in target]
            spatial_sizes = fixed[inner]
        if windows.channels_first:
            return [data_shape[0], channels, *spatial_sizes]
        return [data_shape[0], *spatial_sizes, channels]

    return set_static(call(spread, input, filters, target, name=name), shape=static_shape)


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
    """Return `function(input, kernel, windows)`, or in a graph an operation's output.

    `kernel` has the window sizes of `count` spatial dimensions, `windows` the strides and padding.
    """
    windows = Windows.of(strides, padding, None, data_format, count)
    kernel = conv_windows.spatial(ksize, count, windows.channels_first, "ksize")
    return call(function, tensor(input), kernel, windows, name=name)


def _pooling_function(
    function: Callable[..., Tensor], label: str, doc_start: str, count: int
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
        images = value if input is None else input
        return pool(function, images, ksize, strides, padding, data_format, name or label, count)

    images_text = "of images (batch, height, width, channels)" if count == 2 else "of sequences"
    doc = (
        f"The {doc_start} in each window {images_text}; `value` is an older name of `input`. Sizes"
        f" and strides are a number, {count}, or one for each dimension."
    )
    return name_function(apply, label, doc)


max_pool = _pooling_function(conv_windows.largest, "max_pool", "largest element", 2)
max_pool1d = _pooling_function(conv_windows.largest, "max_pool1d", "largest element", 1)
max_pool2d = _pooling_function(conv_windows.largest, "max_pool2d", "largest element", 2)
avg_pool = _pooling_function(conv_windows.mean, "avg_pool", "mean of the elements", 2)
avg_pool1d = _pooling_function(conv_windows.mean, "avg_pool1d", "mean of the elements", 1)
avg_pool2d = _pooling_function(conv_windows.mean, "avg_pool2d", "mean of the elements", 2)
