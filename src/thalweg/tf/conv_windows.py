"""Convolutions and pools with TensorFlow's layouts and padding.

Data are (batch, *sizes, channels), or (batch, channels, *sizes) where a `data_format` begins with
"NC"; filters are (*sizes, inputs, outputs).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError

_CONVOLVE = (functional.conv1d, functional.conv2d, functional.conv3d)
_SPREAD = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)
_LARGEST = (functional.max_pool1d, functional.max_pool2d, functional.max_pool3d)
_MEAN = (functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d)


@dataclass(frozen=True)
class Windows:
    """Stride, padding and dilation of windows over a tensor with spatial dimensions.

    Attributes:
        stride: Distance of successive windows, for each spatial dimension.
        padding: "SAME", "VALID", or a pair (before, after) for each spatial dimension.
        dilation: Distance of a filter's elements, for each spatial dimension.
        channels_first: True if channels come before the spatial dimensions.
    """

    stride: tuple[int, ...]
    padding: str | tuple[tuple[int, int], ...] = "VALID"
    dilation: tuple[int, ...] = ()
    channels_first: bool = False

    @staticmethod
    def of(
        strides: object, padding: object, dilations: object, data_format: str | None, count: int
    ) -> Windows:
        """Return the windows for the arguments of TensorFlow's functions.

        Args:
            strides: A number, or a list of numbers for the spatial dimensions or all dimensions.
            padding: "SAME" or "VALID" in upper or lower case, or a list with a pair (before, after)
                for each dimension of the tensor.
            dilations: As `strides`; None is 1.
            data_format: Such as "NHWC", "NCHW", "channels_last"; None is channels last.
            count: The number of spatial dimensions.
        """
        first = is_first(data_format)
        stride = spatial(strides, count, first, "strides")
        dilation = spatial(1 if dilations is None else dilations, count, first, "dilations")
        return Windows(stride, _parse_padding(padding, count, first), dilation, first)

    def margins(self, sizes: Sequence[int], kernel: Sequence[int]) -> list[tuple[int, int]]:
        """Return the padding (before, after) of each spatial dimension.

        `sizes` and `kernel` are the spatial sizes of the data and of the filters.
        """
        if not isinstance(self.padding, str):
            return list(self.padding)
        if self.padding == "VALID":
            return [(0, 0)] * len(kernel)
        spans = [(k - 1) * d + 1 for k, d in zip(kernel, self.dilation, strict=True)]
        totals = [
            max((-(-size // step) - 1) * step + span - size, 0)
            for size, step, span in zip(sizes, self.stride, spans, strict=True)
        ]
        # TensorFlow puts the surplus element of an odd padding at the end.
        return [(total // 2, total - total // 2) for total in totals]


def is_first(data_format: str | None) -> bool:
    """Return True if a data format has channels before the spatial dimensions.

    Raise InvalidArgumentError if the text is not a data format.
    """
    text = data_format or "channels_last"
    if not isinstance(text, str) or not (text.startswith(("N", "channels_"))):
        raise InvalidArgumentError(
            f"data_format must be one like 'NHWC', not {show_value(data_format)}."
        )
    return text.startswith("NC") or text == "channels_first"


def spatial(value: Any, count: int, channels_first: bool, argument: str) -> tuple[int, ...]:
    """Return a tuple with a number for each of `count` spatial dimensions.

    `value` is a number, or a list of numbers for the spatial dimensions or all dimensions. Raise
    InvalidArgumentError if the length is wrong, or a number for batch or channels is not 1.
    """
    entries = list(value) if isinstance(value, Sequence | torch.Size) else [value]
    if len(entries) == count + 2:
        inner = entries[2:] if channels_first else entries[1:-1]
        outer = entries[:2] if channels_first else [entries[0], entries[-1]]
        if [int(entry) for entry in outer] != [1, 1]:
            raise InvalidArgumentError(
                f"{argument} must be 1 along the batch and the channels, not {entries}."
            )
        entries = inner
    entries = entries * count if len(entries) == 1 else entries
    if len(entries) != count or any(int(entry) < 1 for entry in entries):
        raise InvalidArgumentError(
            f"{argument} must be a number of at least 1, or {count} or {count + 2} of them, not"
            f" {show_value(value)}."
        )
    return tuple(int(entry) for entry in entries)


def _parse_padding(padding: Any, count: int, first: bool) -> Any:
    if isinstance(padding, str) and padding.upper() in ("SAME", "VALID"):
        return padding.upper()
    is_pairs = isinstance(padding, Sequence) and not isinstance(padding, str)
    if is_pairs and len(padding) == count + 2:
        inner = padding[2:] if first else padding[1:-1]
        return tuple((int(leading), int(trailing)) for leading, trailing in inner)
    raise InvalidArgumentError(
        f"padding must be 'SAME' or 'VALID', or pairs for each dimension, not"
        f" {show_value(padding)}."
    )


def _in_torch_layout(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wrap a function of data (batch, channels, *sizes) to accept data with channels last, too.

    `function(operand, kernel, windows, ...)` takes and returns data with channels first. The
    wrapper takes and returns data with channels last if `windows.channels_first` is False.
    """

    @functools.wraps(function)
    def apply(operand: Tensor, kernel: object, windows: Windows, *options: object) -> Tensor:
        if windows.channels_first:
            return function(operand, kernel, windows, *options)
        return function(operand.movedim(-1, 1), kernel, windows, *options).movedim(1, -1)

    return apply


@_in_torch_layout
def convolve(
    operand: Tensor, filters: Tensor, windows: Windows, groups: int | None = None
) -> Tensor:
    """Return the convolution of data by filters (*kernel sizes, channels / groups, outputs).

    `groups`, the number of groups of channels, is by default derived from these shapes.
    """
    kernel = tuple(filters.shape[:-2])
    groups = _group_count(operand, filters) if groups is None else groups
    operand, padding = _pad_windows(operand, windows.margins(operand.shape[2:], kernel), 0.0)
    function: Callable[..., Any] = _CONVOLVE[len(kernel) - 1]
    return function(
        operand, _outputs_first(filters), None, windows.stride, padding, windows.dilation, groups
    )


def _group_count(operand: Tensor, filters: Tensor) -> int:
    channels, filter_channels = operand.shape[1], filters.shape[-2]
    if channels % filter_channels:
        raise InvalidArgumentError(
            f"The input has {channels} channels, which is no multiple of the"
            f" {filter_channels} that a"
            f" filter of shape {tuple(filters.shape)} takes."
        )
    return channels // filter_channels


def depthwise(operand: Tensor, filters: Tensor, windows: Windows) -> Tensor:
    """Convolve each channel with separate filters (*kernel sizes, channels, multiplier)."""
    *kernel, inputs, multiplier = filters.shape
    return convolve(operand, filters.reshape(*kernel, 1, inputs * multiplier), windows, inputs)


@_in_torch_layout
def spread(
    operand: Tensor, filters: Tensor, windows: Windows, sizes: Sequence[int] | None
) -> Tensor:
    """Return the gradient of `convolve` with respect to its data; `operand` is the output gradient.

    Filters are (*kernel sizes, channels of the result, channels of `operand`). `sizes` are the
    spatial sizes of the result, by default from `spread_sizes`. Raise InvalidArgumentError if
    `convolve` does not map `sizes` to the sizes of `operand`.
    """
    kernel, data_sizes = tuple(filters.shape[:-2]), tuple(operand.shape[2:])
    output_sizes = spread_sizes(data_sizes, kernel, windows) if sizes is None else tuple(sizes)
    margins = windows.margins(output_sizes, kernel)
    folded = tuple(
        (size + sum(margin) - span) // step + 1
        for size, margin, span, step in zip(
            output_sizes, margins, kernel, windows.stride, strict=True
        )
    )
    if folded != data_sizes:
        raise InvalidArgumentError(
            f"An output of sizes {output_sizes} does not fit an input of sizes {data_sizes}:"
            " a convolution"
            f" with strides {windows.stride} and padding {windows.padding!r} makes {folded} of it."
        )
    function: Callable[..., Any] = _SPREAD[len(kernel) - 1]
    # torch pads both ends alike, which TensorFlow's SAME does not: crop the whole result.
    uncropped = function(operand, _outputs_first(filters), stride=windows.stride)
    crops = [
        (-leading, size + leading - full)
        for (leading, _), size, full in zip(margins, output_sizes, uncropped.shape[2:], strict=True)
    ]
    return functional.pad(uncropped, _flatten_padding(crops)) if any(map(any, crops)) else uncropped


def spread_sizes(sizes: Sequence[int], kernel: Sequence[int], windows: Windows) -> tuple[int, ...]:
    """Return the default output sizes of `spread`."""
    free = windows.padding == "VALID"
    return tuple(
        size * step + (max(span - step, 0) if free else 0)
        for size, span, step in zip(sizes, kernel, windows.stride, strict=True)
    )


@_in_torch_layout
def largest(operand: Tensor, kernel: tuple[int, ...], windows: Windows) -> Tensor:
    """Return the largest element in each window."""
    margins = windows.margins(operand.shape[2:], kernel)
    # torch's pooling accepts paddings up to half the window only, so none is left to it.
    operand, _ = _pad_windows(operand, margins, -torch.inf, symmetric=False)
    return _LARGEST[len(kernel) - 1](operand, kernel, windows.stride)


@_in_torch_layout
def mean(operand: Tensor, kernel: tuple[int, ...], windows: Windows) -> Tensor:
    """Return the mean of the elements in each window; padding is not counted."""
    margins = windows.margins(operand.shape[2:], kernel)
    function = functools.partial(_MEAN[len(kernel) - 1], kernel_size=kernel, stride=windows.stride)
    if not any(map(any, margins)):
        return function(operand)
    # torch divides by the size of the window, which includes padding at the ends.
    ones = torch.ones_like(operand[:1, :1])
    sums, counts = (_pad_windows(x, margins, 0.0, symmetric=False)[0] for x in (operand, ones))
    return function(sums) / function(counts)


def _outputs_first(filters: Tensor) -> Tensor:
    count = filters.dim() - 2
    return filters.permute(count + 1, count, *range(count))


def _pad_windows(
    operand: Tensor, margins: list[tuple[int, int]], value: float, symmetric: bool = True
) -> tuple[Tensor, tuple[int, ...]]:
    """Return padded data and the padding left to torch, which pads both sides equally."""
    if symmetric and all(leading == trailing for leading, trailing in margins):
        return operand, tuple(leading for leading, _ in margins)
    if any(map(any, margins)):
        operand = functional.pad(operand, _flatten_padding(margins), value=value)
    return operand, (0,) * len(margins)


def _flatten_padding(pairs: list[tuple[int, int]]) -> list[int]:
    """Return padding in torch's order, the last size first."""
    return [amount for pair in reversed(pairs) for amount in pair]
