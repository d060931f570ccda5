"""Summary values of tensors, computed as TensorFlow's kernels do."""

from __future__ import annotations

import functools
import io
import sys
from typing import Any

import numpy as np
import torch

from thalweg.errors import InvalidArgumentError
from thalweg.v1.summary.protos import message


def scalar(tensor: torch.Tensor, tag: str) -> Any:
    """Return a `Summary.Value` of a tensor with one element."""
    if tensor.numel() != 1:
        raise InvalidArgumentError(
            f"The summary of {tag!r} is of a scalar, not of shape {tuple(tensor.shape)}."
        )
    return message("Summary").Value(tag=tag, simple_value=tensor.item())


@functools.cache
def _bucket_limits() -> np.ndarray:
    """Return the upper limits of all buckets, ascending; each is 1.1 times the previous one."""
    positive_limits, limit = [], 1e-12
    while limit < 1e20:
        positive_limits.append(limit)
        limit *= 1.1
    positive_limits.append(sys.float_info.max)
    return np.array([-bound for bound in reversed(positive_limits)] + [0.0] + positive_limits)


def histogram(values: torch.Tensor, tag: str) -> Any:
    """Return a `Summary.Value` with a histogram of the elements, in TensorFlow's buckets.

    Raises:
        InvalidArgumentError: An element is not finite.
    """
    array = values.detach().to("cpu", torch.float64, copy=True).reshape(-1).numpy()
    if not np.isfinite(array).all():
        raise InvalidArgumentError(f"An element is NaN or infinite in the summary of {tag!r}.")
    limits = _bucket_limits()
    # "right": a value that equals a limit belongs to the next bucket.
    counts = np.bincount(np.searchsorted(limits, array, "right"), minlength=len(limits))
    # Only the last of successive empty buckets is written.
    bucket_mask = (counts > 0) | np.append(counts[1:] > 0, True)
    extent = (array.min(), array.max()) if array.size else (sys.float_info.max, -sys.float_info.max)
    proto = message("HistogramProto")(
        min=extent[0],
        max=extent[1],
        num=array.size,
        sum=array.sum(),
        sum_squares=array @ array,
        bucket_limit=limits[bucket_mask].tolist(),
        bucket=counts[bucket_mask].astype("f8").tolist(),
    )
    return message("Summary").Value(tag=tag, histo=proto)


def images(batch: torch.Tensor, tag: str, count: int) -> list[Any]:
    """Return a list with a `Summary.Value` (a PNG) for each of the first `count` images.

    Args:
        batch: A tensor (batch, height, width, channels) of 1, 3 or 4 channels. uint8 images are
            unchanged; float images are scaled by `_scale_to_bytes`.
        tag: The tag; "/image" is appended, with a number if `count` is not 1.
        count: Maximum number of images.

    Raises:
        InvalidArgumentError: The batch has another shape.
    """
    if batch.dim() != 4 or batch.shape[-1] not in (1, 3, 4):
        raise InvalidArgumentError(
            f"The summary of {tag!r} is of images (batch, height, width, 1, 3 or 4), not of shape"
            f" {tuple(batch.shape)}."
        )
    summary = message("Summary")
    image_values = []
    for index, image in enumerate(batch[:count].detach().cpu()):
        height, width, depth = image.shape
        encoded_image = summary.Image(
            height=height, width=width, colorspace=depth, encoded_image_string=_encode_png(image)
        )
        name = f"{tag}/image" if count == 1 else f"{tag}/image/{index}"
        image_values.append(summary.Value(tag=name, image=encoded_image))
    return image_values


def _encode_png(image: torch.Tensor) -> bytes:
    from PIL import Image

    pixels = image if image.dtype == torch.uint8 else _scale_to_bytes(image.float())
    array = pixels.numpy()
    buffer = io.BytesIO()
    Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array).save(buffer, "PNG")
    return buffer.getvalue()


def _scale_to_bytes(image: torch.Tensor) -> torch.Tensor:
    """Return a uint8 image of a float image (height, width, channels).

    Map [0, maximum] to [0, 255]. In an image with negative values, map [-m, m] to [1, 255] instead,
    where m is the largest magnitude. Pixels with an infinite or NaN channel become red.
    """
    is_finite = image.isfinite()
    finite = image[is_finite]
    low, high = (finite.min(), finite.max()) if finite.numel() else (image.new_zeros(()),) * 2
    largest, span, offset = (high, 255.0, 0.0) if low >= 0 else (
        torch.maximum(low.abs(), high.abs()), 127.0, 128.0
    )  # fmt: skip
    scale = 0.0 if largest < 1e-6 else span / largest
    pixels = torch.where(is_finite, image, 0) * scale + offset
    red = torch.tensor([255.0, 0.0, 0.0, 255.0], dtype=torch.float32, device=image.device)
    bad = red[: image.shape[-1]]
    return torch.where(is_finite.all(-1, keepdim=True), pixels, bad).to(torch.uint8)


def text(strings: object, tag: str) -> Any:
    """Return a `Summary.Value` of strings; TensorBoard shows strings as Markdown."""
    array = np.asarray(strings, dtype=object)
    proto = message("TensorProto")(dtype="DT_STRING")
    proto.tensor_shape.CopyFrom(
        message("TensorShapeProto")(dim=[{"size": size} for size in array.shape])
    )
    proto.string_val.extend(
        cell if isinstance(cell, bytes) else str(cell).encode() for cell in array.reshape(-1)
    )
    metadata = message("SummaryMetadata")()
    metadata.plugin_data.plugin_name = "text"
    return message("Summary").Value(tag=tag, tensor=proto, metadata=metadata)
