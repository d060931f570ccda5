"""Attributes: small values of a group or a dataset."""

from __future__ import annotations

import math

from thalweg._base.lazy import lazy
from thalweg._formats.hdf5 import types
from thalweg._formats.hdf5.headers import ATTRIBUTE, ATTRIBUTE_INFO, HeaderMessage
from thalweg._formats.hdf5.heaps import GlobalHeap, decode_name
from thalweg._formats.source import FilePart


class TextAttribute:
    """Text attribute of a group or a dataset.

    Args:
        payload: The message.
        heap: The heap of variable-length texts.

    Attributes:
        name: The name.
    """

    def __init__(self, payload: FilePart, heap: GlobalHeap) -> None:
        version = payload.take_version((1, 2, 3), "attributes")
        flags = payload.take_number(1)
        sizes = [payload.take_number(2) for _ in range(3)]
        if version > 1 and flags & 3:
            raise payload.source.unsupported_error(payload.offset, "named types are not read")
        payload.take(1 if version == 3 else 0)
        self._parts: list[FilePart] = []
        for size in sizes:
            self._parts.append(payload.take_part(size))
            if version == 1:
                payload.take(min(-size % 8, payload.left))
        name = self._parts.pop(0)
        self.name = decode_name(name.source, name.offset, bytes(name.data).split(b"\0")[0])
        self._values, self._heap = payload, heap

    @lazy
    def texts(self) -> list[bytes]:
        """Elements of the attribute as bytes, row by row; one for a single value.

        Raises:
            DataLossError: The elements are missing.
            UnsupportedCheckpointError: The elements are not text.
        """
        payload = self._values
        shape = types.parse_shape(self._parts[1])
        count = 0 if shape is None else math.prod(shape)
        # An empty list has NumPy's default dtype, not text.
        if not count:
            return []
        kind = types.parse_elements(self._parts[0])
        if kind.dtype not in ("string", "text"):
            raise payload.source.unsupported_error(payload.offset, f"{self.name!r} is no text")
        if count * kind.size > payload.left:
            text = f"{self.name!r} has {count} elements in {payload.left} bytes"
            raise payload.source.data_loss_error(payload.offset, text)
        parts = [payload.take_part(kind.size) for _ in range(count)]
        if kind.dtype == "text":
            return [self._heap.text_at(part) for part in parts]
        return [bytes(part.data).rstrip(b"\0") for part in parts]


def attributes_of(messages: list[HeaderMessage], heap: GlobalHeap) -> dict[str, TextAttribute]:
    """Return the attributes of an object by name.

    Raises:
        DataLossError: A name exists twice.
        UnsupportedCheckpointError: There are so many that they are in a heap.
    """
    attributes: dict[str, TextAttribute] = {}
    for kind, payload in messages:
        if kind == ATTRIBUTE_INFO:
            begin = payload.offset
            payload.take_version((0,), "attributes")
            payload.take(2 if payload.take_number(1) & 1 else 0)
            if payload.take_address() is not None:
                raise payload.source.unsupported_error(
                    begin, "more than eight attributes are not read"
                )
        elif kind == ATTRIBUTE:
            begin, attribute = payload.offset, TextAttribute(payload, heap)
            if attribute.name in attributes:
                text = f"attribute {attribute.name!r} is there twice"
                raise payload.source.data_loss_error(begin, text)
            attributes[attribute.name] = attribute
    return attributes
