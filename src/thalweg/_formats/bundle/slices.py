"""Tensors stored in slices, as TensorFlow stores partitioned variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod
from typing import TYPE_CHECKING, Any

from thalweg._formats.bundle.errors import CorruptFileError
from thalweg._formats.bundle.messages import Slice
from thalweg.errors import UnsupportedCheckpointError

if TYPE_CHECKING:
    import numpy as np

Box = tuple[tuple[int, ...], tuple[int, ...]]  # origin and shape

_AXES = 32  # the limit of NumPy 1


def key_of(name: str, extents: Slice) -> bytes:
    """Return the table's key for a slice of a tensor.

    A key consists of a zero byte, the name, the number of axes, and the begin and the length of the
    slice along each axis. The length is -1 for a full axis. Keys sort like these values
    (tensorflow/core/util/saved_tensor_slice_util.cc).
    """
    # An end mark, so that no encoded name is the beginning of another.
    text = name.encode().replace(b"\0", b"\0\xff") + b"\0\1"
    # The number of axes: a byte with the length of the number, and then its bytes.
    size = (len(extents).bit_length() + 7) // 8
    key = b"\0" + text + bytes([size]) + len(extents).to_bytes(size, "big")
    for begin, length in extents:
        key += _encode_signed(begin) + _encode_signed(-1 if length is None else length)
    return key


def _encode_signed(integer: int) -> bytes:
    """Return a number in an order-preserving encoding, whose first bits give its length.

    All bits of a negative number are inverted.
    """
    size = (integer if integer >= 0 else ~integer).bit_length() // 7 + 1
    bits = integer % (1 << (8 * size))
    head = ((1 << size) - 1) << (8 * size - size)
    return (bits ^ head).to_bytes(size, "big")


def bounding_box(extents: Slice, shape: tuple[int, ...]) -> Box:
    """Return (origin, lengths) of the slice `extents` of a tensor with this shape.

    Raise CorruptFileError if the slice is not inside the shape.
    """
    if len(extents) != len(shape):
        raise CorruptFileError(f"a slice has {len(extents)} axes, the tensor {len(shape)}")
    origin: list[int] = []
    lengths: list[int] = []
    for (begin, slice_length), axis_length in zip(extents, shape, strict=True):
        length = axis_length if slice_length is None else slice_length
        is_inside = 0 <= begin <= begin + length <= axis_length
        if not is_inside or (slice_length is None and begin):
            raise CorruptFileError(
                f"the slice {format_extents(extents)} does not lie in shape {shape}"
            )
        origin.append(begin)
        lengths.append(length)
    return tuple(origin), tuple(lengths)


def check_count(shapes: Iterable[tuple[int, ...]], shape: tuple[int, ...]) -> None:
    """Raise CorruptFileError unless slices of `shapes` together have the elements of `shape`.

    Only the counts are compared. Also raise it if `shape` has more axes than NumPy supports.
    """
    if len(shape) > _AXES:
        raise CorruptFileError(
            f"it has {len(shape)} axes and is kept in slices; that is read of tensors with"
            f" {_AXES} at most",
            UnsupportedCheckpointError,
        )
    count = sum(prod(shape) for shape in shapes)
    if count != prod(shape):
        raise CorruptFileError(
            f"its slices have {count} elements, its shape {shape} has {prod(shape)}"
        )


def _check_tiling(boxes: Iterable[Box], shape: tuple[int, ...]) -> None:
    """Raise CorruptFileError if two of the slices `boxes` overlap.

    Temporarily allocate one byte per element of `shape`.
    """
    import numpy as np

    covered = np.zeros(shape, np.bool_)
    for origin, lengths in boxes:
        region = covered[_slices_of_region(origin, lengths)]
        if region.any():
            raise CorruptFileError("its slices lie upon each other")
        region[...] = True


def join_parts(
    boxes: Collection[Box],
    contents: Iterable[np.ndarray[Any, Any]],
    shape: tuple[int, ...],
    width: int,
) -> np.ndarray[Any, Any]:
    """Join the slices of a tensor; return the tensor's bytes as a one-dimensional uint8 array.

    Args:
        boxes: (origin, shape) of each slice; `check_count` must have accepted the shapes. A single
            slice is the whole tensor, and is returned without a copy.
        contents: The bytes of each slice, requested one at a time after all boxes were compared.
        shape: The shape of the tensor.
        width: The number of bytes of an element.

    Raises:
        CorruptFileError: Two slices overlap.
    """
    import numpy as np

    if len(boxes) == 1:
        return next(iter(contents))
    _check_tiling(boxes, shape)
    element = np.dtype(f"V{width}")
    joined = np.empty(shape, element)
    for (origin, lengths), content in zip(boxes, contents, strict=True):
        joined[_slices_of_region(origin, lengths)] = content.view(element).reshape(lengths)
    return joined.reshape(-1).view(np.uint8)


def _slices_of_region(origin: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the index tuple that selects a slice in an array of the tensor's shape."""
    return tuple(slice(i, i + length) for i, length in zip(origin, lengths, strict=True))


def format_extents(extents: Slice) -> str:
    """Return a slice as TensorFlow writes it: "0,2:-" for the first two rows."""
    return ":".join("-" if length is None else f"{begin},{length}" for begin, length in extents)
