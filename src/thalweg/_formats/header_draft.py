"""The header of a file before its tensors are written: all but their checksums."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from thalweg._formats import header, json_text
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor
from thalweg.errors import InvalidArgumentError

_LONGEST = 0xFFFFFFFF


class Draft:
    """A header.

    Args:
        tensors: What will be in the file.
        document: Likewise.

    Attributes:
        order: The names of the tensors as their bytes follow each other: wide items first, so that
            all are aligned.
        room: How many bytes length and header take.

    Raises:
        InvalidArgumentError: No file holds such a name, tensor or document, or so much of it.
        InvalidTypeError: Likewise.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], document: Mapping[str, object]) -> None:
        self._tensors = dict(tensors)
        for name, each in self._tensors.items():
            _check_given(name, each)
        self._document = json_text.dumps({"document": dict(document)})
        self.order = sorted(self._tensors, key=lambda name: -ITEM_BYTES[self._tensors[name].dtype])
        manifest = self._manifest_of(dict.fromkeys(self._tensors, _LONGEST))
        text = self._header_text(manifest)
        self.room = header.LENGTH + -(-len(text) // 8) * 8
        if self.room > header.LIMIT:
            raise InvalidArgumentError(
                f"Names and document take {len(text)} bytes; a file holds {header.LIMIT}."
            )
        for each in (text, manifest):  # what cannot be read must not be written
            json_text.loads(each)

    def finish_header(self, checksums: Mapping[str, int]) -> bytes:
        """Length and header with the checksums of all tensors: `room` bytes, spaces at the end."""
        text = self._header_text(self._manifest_of(checksums)).ljust(self.room - header.LENGTH)
        return header.seal_header(len(text).to_bytes(header.LENGTH, "little"), text)

    def _manifest_of(self, checksums: Mapping[str, int]) -> str:
        table = {
            name: [each.dtype, each.shape, checksums[name]] for name, each in self._tensors.items()
        }
        return f'{{"tensors":{_compact_json(table)},{self._document[1:]}'

    def _header_text(self, manifest: str) -> bytes:
        begin = {"format": "thalweg", "version": str(header.VERSION), "checksum": "0" * 8}
        made: dict[str, Any] = {"__metadata__": {**begin, "manifest": manifest}}
        place = 0
        for name in self.order:
            each = self._tensors[name]
            dtype, shape = header.kept_as(each.dtype, each.shape)
            end = place + each.data.nbytes
            made[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, end]}
            place = end
        return _compact_json(made).encode()


def _compact_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _check_given(name: str, given: StoredTensor) -> None:
    if name == "__metadata__" or not json_text.is_unicode(name):
        raise InvalidArgumentError(f"No tensor can be called {name[:200]!r}.")
    if given.dtype not in ITEM_BYTES:
        raise InvalidArgumentError(f"{name[:200]!r}: {given.dtype!r} is no dtype of a file.")
    if not header.is_shape(header.kept_as(given.dtype, given.shape)[1]):
        raise InvalidArgumentError(f"{name[:200]!r}: {given.shape!r:.200} is no shape of a file.")
    size = prod(given.shape) * ITEM_BYTES[given.dtype]
    if given.data.nbytes != size or given.data.ndim != 1 or given.data.itemsize != 1:
        raise InvalidArgumentError(
            f"{name[:200]!r} has {given.data.nbytes} bytes; {given.dtype} of shape {given.shape}"
            f" has {size}."
        )
