"""Tensors that are kept in slices, as TensorFlow keeps partitioned variables."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

from thalweg._formats.bundle.errors import CorruptFileError
from thalweg._formats.bundle.messages import Slice
from thalweg.errors import UnsupportedCheckpointError

if TYPE_CHECKING:
    import numpy as np

Box = tuple[tuple[int, ...], tuple[int, ...]]  # where it begins, its shape

_AXES = 32  # that an array of every NumPy may have


def key_of(name: str, extents: Slice) -> bytes:
    """Return the key under which a slice of a tensor has its entry.

    It is written in such a way that keys have the order of what they stand for: a 0, the name, the
    number of axes, and for each axis where the slice begins and its length, -1 for all of it
    (tensorflow/core/util/saved_tensor_slice_util.cc).
    """
    made = b"\0" + _encode_text(name.encode()) + _encode_count(len(extents))
    for begin, length in extents:
        made += _encode_signed(begin) + _encode_signed(-1 if length is None else length)
    return made


def _encode_text(data: bytes) -> bytes:
    """Bytes of UTF-8, which have no 255, with an end that no other text begins with."""
    return data.replace(b"\0", b"\0\xff") + b"\0\1"


def _encode_count(value: int) -> bytes:
    """A number without sign: how many bytes it has, and these, the highest first."""
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def _encode_signed(value: int) -> bytes:
    """A number whose first bits tell its length; all are inverted where it is negative."""
    size = (value if value >= 0 else ~value).bit_length() // 7 + 1
    made = value % (1 << (8 * size))
    head = ((1 << size) - 1) << (8 * size - size)
    return (made ^ head).to_bytes(size, "big")


def bounding_box(extents: Slice, shape: tuple[int, ...]) -> Box:
    """Return the box of a slice in a tensor of some shape.

    Raises:
        CorruptFileError: It does not lie inside.
    """
    if len(extents) != len(shape):
        raise CorruptFileError(f"a slice has {len(extents)} axes, the tensor {len(shape)}")
    begins: list[int] = []
    lengths: list[int] = []
    for (begin, given), whole in zip(extents, shape, strict=True):
        length = whole if given is None else given
        if begin < 0 or length < 0 or begin + length > whole or (given is None and begin):
            raise CorruptFileError(
                f"the slice {format_extents(extents)} does not lie in shape {shape}"
            )
        begins.append(begin)
        lengths.append(length)
    return tuple(begins), tuple(lengths)


def check_count(shapes: Iterable[tuple[int, ...]], whole: tuple[int, ...]) -> None:
    """Check that slices together have as many elements as the whole.

    Raises:
        CorruptFileError: They have not, or the whole has more axes than arrays have.
    """
    if len(whole) > _AXES:
        raise CorruptFileError(
            f"it has {len(whole)} axes and is kept in slices; that is read of tensors with"
            f" {_AXES} at most",
            UnsupportedCheckpointError,
        )
    count = sum(prod(shape) for shape in shapes)
    if count != prod(whole):
        raise CorruptFileError(
            f"its slices have {count} elements, its shape {whole} has {prod(whole)}"
        )


def check_tiling(boxes: Iterable[Box], shape: tuple[int, ...]) -> None:
    """Check that no two slices overlap; if there are enough of them, they then cover all.

    Memory is a byte for each element, so what slices are said to have must be there.

    Raises:
        CorruptFileError: They do.
    """
    import numpy as np

    covered = np.zeros(shape, np.bool_)
    for begins, lengths in boxes:
        part = covered[_slices_of_region(begins, lengths)]
        if part.any():
            raise CorruptFileError("its slices lie upon each other")
        part[...] = True


def join_parts(
    parts: Iterable[tuple[tuple[int, ...], tuple[int, ...], np.ndarray[Any, Any]]],
    shape: tuple[int, ...],
    width: int,
) -> np.ndarray[Any, Any]:
    """Return the bytes of a tensor from those of its slices.

    Args:
        parts: For each slice where it begins, its shape, and its bytes; each is asked for when the
            one before has been copied.
        shape: That of the tensor.
        width: Bytes of an element.
    """
    import numpy as np

    element = np.dtype(f"V{width}")
    whole = np.empty(shape, element)
    for begins, lengths, data in parts:
        whole[_slices_of_region(begins, lengths)] = data.view(element).reshape(lengths)
    return whole.reshape(-1).view(np.uint8)


def _slices_of_region(begins: tuple[int, ...], lengths: tuple[int, ...]) -> tuple[slice, ...]:
    """What an array of the whole is indexed with to have a slice."""
    return tuple(slice(b, b + n) for b, n in zip(begins, lengths, strict=True))


def format_extents(extents: Slice) -> str:
    """Return a slice as TensorFlow writes it: "0,2:-" for the first two rows."""
    return ":".join("-" if length is None else f"{begin},{length}" for begin, length in extents)
