"""Header of a file before its checksums are known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any

from thalweg._formats import header, json_text
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor
from thalweg.errors import InvalidArgumentError

_MAX_CHECKSUM = 0xFFFFFFFF


class Draft:
    """Header of a file to be written.

    Args:
        tensors: The tensors of the file.
        document: The document of the file.

    Attributes:
        order: The names of the tensors in the order of the file: wide items first, so that all are
            aligned.
        reserved: The number of bytes of length and header.

    Raises:
        InvalidArgumentError: A name, a tensor or the document cannot be saved, or is too long.
        InvalidTypeError: The document has a type that cannot be saved.
    """

    def __init__(self, tensors: Mapping[str, StoredTensor], document: Mapping[str, object]) -> None:
        self._tensors = dict(tensors)
        for name, tensor in self._tensors.items():
            _check_tensor(name, tensor)
        self._document = json_text.dumps({"document": dict(document)})
        self.order = sorted(self._tensors, key=lambda name: -ITEM_BYTES[self._tensors[name].dtype])
        manifest = self._manifest_of(dict.fromkeys(self._tensors, _MAX_CHECKSUM))
        text = self._header_text(manifest)
        self.reserved = header.LENGTH + -(-len(text) // 8) * 8
        if self.reserved > header.LIMIT:
            raise InvalidArgumentError(
                f"Names and document take {len(text)} bytes; a file holds {header.LIMIT}."
            )
        # Anything that cannot be read must not be written.
        for json_part in (text, manifest):
            json_text.loads(json_part)

    def finish_header(self, checksums: Mapping[str, int]) -> bytes:
        """Return length and header with all checksums: `reserved` bytes, padded with spaces."""
        text = self._header_text(self._manifest_of(checksums)).ljust(self.reserved - header.LENGTH)
        return header.seal_header(len(text).to_bytes(header.LENGTH, "little"), text)

    def _manifest_of(self, checksums: Mapping[str, int]) -> str:
        """Return the manifest with these checksums as JSON text."""
        table = {
            name: [tensor.dtype, tensor.shape, checksums[name]]
            for name, tensor in self._tensors.items()
        }
        return f'{{"tensors":{_compact_json(table)},{self._document[1:]}'

    def _header_text(self, manifest_text: str) -> bytes:
        """Return the JSON header with this manifest and a checksum of zeros, not padded."""
        begin = {"format": "thalweg", "version": str(header.VERSION), "checksum": "0" * 8}
        entries: dict[str, Any] = {"__metadata__": {**begin, "manifest": manifest_text}}
        offset = 0
        for name in self.order:
            tensor = self._tensors[name]
            dtype, shape = header.safetensors_form(tensor.dtype, tensor.shape)
            end = offset + tensor.data.nbytes
            entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            offset = end
        return _compact_json(entries).encode()


def _compact_json(encoded: object) -> str:
    """Return JSON text without spaces."""
    return json.dumps(encoded, ensure_ascii=False, separators=(",", ":"))


def _check_tensor(name: str, tensor: StoredTensor) -> None:
    """Raise InvalidArgumentError if a name, dtype, shape or size cannot be saved."""
    if name == "__metadata__" or not json_text.is_unicode(name):
        raise InvalidArgumentError(f"No tensor can be called {name[:200]!r}.")
    if tensor.dtype not in ITEM_BYTES:
        raise InvalidArgumentError(f"{name[:200]!r}: {tensor.dtype!r} is no dtype of a file.")
    if not header.is_shape(header.safetensors_form(tensor.dtype, tensor.shape)[1]):
        raise InvalidArgumentError(f"{name[:200]!r}: {tensor.shape!r:.200} is no shape of a file.")
    size = prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
    if tensor.data.nbytes != size or tensor.data.ndim != 1 or tensor.data.itemsize != 1:
        raise InvalidArgumentError(
            f"{name[:200]!r} has {tensor.data.nbytes} bytes; {tensor.dtype} of shape {tensor.shape}"
            f" has {size}."
        )
