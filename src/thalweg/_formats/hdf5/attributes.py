"""Attributes: small values beside a group or a dataset."""

from __future__ import annotations

import math

from thalweg._formats.hdf5 import types
from thalweg._formats.hdf5.headers import ATTRIBUTE, ATTRIBUTE_INFO, HeaderMessage
from thalweg._formats.hdf5.heaps import GlobalHeap, decode_name
from thalweg._formats.source import FilePart


class TextAttribute:
    """Text beside a group or a dataset.

    Args:
        body: The message.
        heap: Where texts of any length lie.

    Attributes:
        name: Its name.
    """

    def __init__(self, body: FilePart, heap: GlobalHeap) -> None:
        version = body.take_version((1, 2, 3), "attributes")
        flags = body.take_number(1)
        sizes = [body.take_number(2) for _ in range(3)]
        if version > 1 and flags & 3:
            raise body.source.unsupported_error(body.offset, "named types are not read")
        body.take(1 if version == 3 else 0)
        self._parts: list[FilePart] = []
        for size in sizes:
            self._parts.append(body.take_part(size))
            if version == 1:
                body.take(min(-size % 8, body.left))
        name = self._parts.pop(0)
        self.name = decode_name(name.source, name.offset, bytes(name.data).split(b"\0")[0])
        self._values, self._heap = body, heap
        self._texts: list[bytes] | None = None

    def read_texts(self) -> list[bytes]:
        """Return its elements, row by row; one for a single value.

        Raises:
            DataLossError: They are not there.
            UnsupportedCheckpointError: They are no text.
        """
        if self._texts is None:
            self._texts = self._read_texts()
        return self._texts

    def _read_texts(self) -> list[bytes]:
        body = self._values
        shape = types.parse_shape(self._parts[1])
        count = 0 if shape is None else math.prod(shape)
        if not count:  # of NumPy's default type, as it is for an empty list
            return []
        kind = types.parse_elements(self._parts[0])
        if kind.dtype not in ("string", "text"):
            raise body.source.unsupported_error(body.offset, f"{self.name!r} is no text")
        if count * kind.size > body.left:
            text = f"{self.name!r} has {count} elements in {body.left} bytes"
            raise body.source.data_loss_error(body.offset, text)
        parts = [body.take_part(kind.size) for _ in range(count)]
        if kind.dtype == "text":
            return [self._heap.text_at(part) for part in parts]
        return [bytes(part.data).rstrip(b"\0") for part in parts]


def attributes_of(messages: list[HeaderMessage], heap: GlobalHeap) -> dict[str, TextAttribute]:
    """Return the attributes of an object by name.

    Raises:
        DataLossError: A name is there twice.
        UnsupportedCheckpointError: There are so many that they lie in a heap.
    """
    found: dict[str, TextAttribute] = {}
    for kind, body in messages:
        if kind == ATTRIBUTE_INFO:
            begin = body.offset
            body.take_version((0,), "attributes")
            body.take(2 if body.take_number(1) & 1 else 0)
            if body.take_address() is not None:
                raise body.source.unsupported_error(
                    begin, "more than eight attributes are not read"
                )
        elif kind == ATTRIBUTE:
            begin, made = body.offset, TextAttribute(body, heap)
            if made.name in found:
                raise body.source.data_loss_error(begin, f"attribute {made.name!r} is there twice")
            found[made.name] = made
    return found
