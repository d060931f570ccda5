"""Header of thalweg files: a safetensors header with a JSON manifest in its metadata.

A file is 8 bytes with the header's length, the header, and the tensors without gaps in the order of
the header, little-endian. The header begins with `BEGIN`, which has the version and the checksum of
length and header, computed with zeros as checksum. The manifest is a JSON text: each tensor's
dtype, shape and CRC32C, and the document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard, cast

from thalweg._formats import json_text
from thalweg._formats.checksum import crc32c
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor
from thalweg.errors import (
    CheckpointMismatchError,
    DataLossError,
    InvalidArgumentError,
    InvalidConfigError,
    UnsupportedCheckpointError,
    listed,
)

VERSION = 1
LIMIT = 100_000_000  # bytes of a header, as in safetensors
LENGTH = 8  # bytes that hold the header's length
BEGIN = re.compile(
    rb'\{"__metadata__":\{"format":"thalweg","version":"([0-9]{1,9})","checksum":"([0-9a-f]{8})",'
)
FIRST = b'{"__metadata__":{"format":"thalweg",'

_DAMAGED = 3  # bytes of `FIRST` that may differ in a damaged thalweg file
_DIMENSIONS = 64
_LARGEST = 2**63
_ZEROS = b"0" * 8
_HIGHEST = 0xFFFFFFFF
# Complex numbers are saved as pairs, as older versions of safetensors lack them.
_PAIRS = {"C64": "F32", "C128": "F64"}


@dataclass(frozen=True)
class TensorHeader:
    """Description of a tensor in a file.

    Attributes:
        dtype: The dtype in safetensors' terms, as in `StoredTensor`.
        shape: The shape.
        checksum: The CRC32C of the tensor's bytes.
        begin: The offset of the tensor's bytes in the file.
        bytes: The number of bytes of the tensor.
    """

    dtype: str
    shape: tuple[int, ...]
    checksum: int
    begin: int
    bytes: int


@dataclass(frozen=True)
class Description:
    """Description of a thalweg file.

    Attributes:
        document: The document saved with the tensors.
        tensors: {name: description} of the tensors.
        bytes: The file's size.
    """

    document: dict[str, Any]
    tensors: dict[str, TensorHeader]
    bytes: int


def decode_header(path: str, length: bytes, text: bytes, size: int) -> Description:
    """Validate a header, and return the description of the file.

    Args:
        path: The file, for messages.
        length: The first 8 bytes of the file.
        text: The header.
        size: The file's size.

    Raises:
        DataLossError: The header is damaged, or `size` differs from the size in the header.
        CheckpointMismatchError: Header and manifest differ.
        InvalidConfigError: The manifest is not valid JSON.
        UnsupportedCheckpointError: The file has a newer version.
    """
    begin = BEGIN.match(text)
    if begin is None:
        raise DataLossError(f"{path}: The beginning of its header is damaged.")
    stored_checksum = int(begin[2], 16)
    actual = crc32c(_replace_checksum(text, _ZEROS), crc32c(length))
    check_sum(path, "header", stored_checksum, actual)
    # After the checksum, since a damaged version must not be reported as a new one.
    if int(begin[1]) != VERSION:
        raise UnsupportedCheckpointError(
            f"{path}: The file is of version {int(begin[1])}; this version of Thalweg reads"
            f" version {VERSION}."
        )
    header = _parse_header(path, text)
    manifest = _parse_manifest(path, header.pop("__metadata__"))
    tensors = _parse_tensors(path, header, manifest["tensors"], LENGTH + len(text), size)
    return Description(manifest["document"], tensors, size)


def begins_like_ours(first_bytes: bytes) -> bool:
    """Return True if the bytes after the length are the beginning of a thalweg header."""
    prefix = first_bytes[LENGTH : LENGTH + len(FIRST)]
    return bool(prefix) and FIRST.startswith(prefix)


def nearly_begins(first_bytes: bytes) -> bool:
    """Return True if one to three of the first bytes differ from those of a thalweg header."""
    prefix = first_bytes[LENGTH : LENGTH + len(FIRST)]
    differ = sum(byte != expected for byte, expected in zip(prefix, FIRST, strict=False))
    return len(prefix) == len(FIRST) and 0 < differ <= _DAMAGED


def check_sum(path: str, name: str, stored_checksum: int, actual: int) -> None:
    """Raise DataLossError if a checksum differs from the stored checksum."""
    if stored_checksum != actual:
        raise DataLossError(
            f"{path}: {name}: Checksum does not match: stored {stored_checksum} vs. calculated on"
            f" the restored bytes {actual}"
        )


def seal_header(length: bytes, text: bytes) -> bytes:
    """Return length and header with the checksum filled in."""
    actual = crc32c(_replace_checksum(text, _ZEROS), crc32c(length))
    return length + _replace_checksum(text, f"{actual:08x}".encode())


def _replace_checksum(text: bytes, checksum: bytes) -> bytes:
    """Return the header with `checksum` as the digits of its checksum."""
    begin = BEGIN.match(text)
    return text if begin is None else text[: begin.start(2)] + checksum + text[begin.end(2) :]


def _parse_header(path: str, text: bytes) -> dict[str, Any]:
    """Return the JSON object of a header; raise DataLossError if it is damaged."""
    # `BEGIN` matched, so the text is an object.
    try:
        return json_text.loads(text)
    except json_text.DuplicateKeyError as error:
        raise CheckpointMismatchError(f"{path}: header: {error} Nothing was loaded.") from error
    except InvalidConfigError as error:
        raise DataLossError(f"{path}: header: {error}") from error


def _parse_manifest(path: str, metadata: Any) -> dict[str, Any]:
    """Return the manifest in the metadata; raise if it is missing or invalid."""
    text = metadata.get("manifest")
    if metadata.keys() != {"format", "version", "checksum", "manifest"} or type(text) is not str:
        raise DataLossError(f"{path}: header: The metadata have no manifest.")
    try:
        decoded = json_text.loads(text)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{path}: manifest: {error}") from error
    manifest = cast(dict[str, Any], decoded) if isinstance(decoded, dict) else {}
    are_dicts = all(type(section) is dict for section in manifest.values())
    if set(manifest) != {"tensors", "document"} or not are_dicts:
        raise InvalidConfigError(f"{path}: manifest: It has not the parts of a manifest.")
    return manifest


def _parse_tensors(
    path: str, raw_header: dict[str, Any], manifest: dict[str, Any], start: int, size: int
) -> dict[str, TensorHeader]:
    """Return {name: description} of the tensors.

    Raise unless they fill the file from `start` to its end, `size`, and agree with the manifest.
    """
    tensors: dict[str, TensorHeader] = {}
    end = start
    for name, entry in raw_header.items():
        tensor_header = _parse_entry(path, name, entry, start, end)
        tensors[name], end = tensor_header, tensor_header.begin + tensor_header.bytes
    if end != size:
        cut = "It is cut off: it" if size < end else "It"
        raise DataLossError(f"{path}: {cut} has {size} bytes; its header tells of {end}.")
    differences = list(_differences(tensors, manifest))
    if differences:
        lines = listed(differences, "\n")
        raise CheckpointMismatchError(
            f"{path}: Header and manifest differ:\n{lines}\nNothing was loaded."
        )
    return {
        name: TensorHeader(dtype, tuple(shape), checksum, tensors[name].begin, tensors[name].bytes)
        for name, (dtype, shape, checksum) in manifest.items()
    }


def _parse_entry(path: str, name: str, encoded: object, start: int, end: int) -> TensorHeader:
    """Return the description of tensor `name` from its header entry `encoded`.

    `start` is the offset of the first tensor in the file; `end` is the end of the previous tensor.
    Raise DataLossError unless the tensor begins at `end`.
    """
    entry = cast(dict[str, Any], encoded) if isinstance(encoded, dict) else {}
    if entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise DataLossError(f"{path}: {name[:200]!r}: The header's entry is not one of a tensor.")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES or dtype in _PAIRS:
        raise DataLossError(f"{path}: {name[:200]!r}: {dtype!r:.80} is no dtype of a file.")
    if not is_shape(shape):
        raise DataLossError(f"{path}: {name[:200]!r}: {shape!r:.80} is no shape.")
    size = prod(shape) * ITEM_BYTES[dtype]
    if not _is_whole_numbers(offsets) or offsets != [end - start, end - start + size]:
        raise DataLossError(
            f"{path}: {name[:200]!r}: Its bytes are at {offsets!r:.80}; {size} from"
            f" {end - start} on were expected."
        )
    # The manifest, not the header, has the checksum; `_parse_tensors` adds it.
    return TensorHeader(dtype, tuple(shape), 0, end, size)


def _is_whole_numbers(encoded: object) -> TypeGuard[list[int]]:
    """Return True if JSON is a list of integers from 0 on."""
    if not isinstance(encoded, list):
        return False
    return all(type(integer) is int and integer >= 0 for integer in cast(list[Any], encoded))


def is_shape(encoded: object) -> TypeGuard[list[int]]:
    """Return True if JSON is a list of sizes whose product fits into memory."""
    if not _is_whole_numbers(encoded) or len(encoded) > _DIMENSIONS:
        return False
    # NumPy rejects a shape with large lengths even if another length is 0.
    return prod(length for length in encoded if length) < _LARGEST


def _differences(headers: dict[str, TensorHeader], manifest: dict[str, object]) -> Iterable[str]:
    """Yield one line per tensor that header and manifest describe differently."""
    for name in headers.keys() - manifest.keys():
        yield f"{name[:200]!r} is in the header only"
    for name, encoded in manifest.items():
        if name not in headers:
            yield f"{name[:200]!r} is in the manifest only"
        elif not _is_entry(encoded):
            yield f"{name[:200]!r} has an entry in the manifest that is not one of a tensor"
        else:
            expected = safetensors_form(encoded[0], encoded[1])
            actual = headers[name].dtype, list(headers[name].shape)
            if expected != actual:
                yield f"{name[:200]!r} is {actual!r:.200} in the header, not {expected!r:.200}"


def _is_entry(encoded: object) -> TypeGuard[tuple[str, list[int], int]]:
    """Return True if JSON is [dtype, shape, checksum] of a manifest."""
    entry = cast(list[Any], encoded) if isinstance(encoded, list) else []
    if len(entry) != 3:
        return False
    dtype, shape, checksum = entry
    is_checksum = type(checksum) is int and 0 <= checksum <= _HIGHEST
    return isinstance(dtype, str) and dtype in ITEM_BYTES and is_shape(shape) and is_checksum


def safetensors_form(dtype: str, shape: Iterable[int]) -> tuple[str, list[int]]:
    """Return (dtype, shape) for a safetensors header; complex numbers become pairs of floats."""
    if dtype in _PAIRS:
        return _PAIRS[dtype], [*shape, 2]
    return dtype, list(shape)


class Draft:
    """Header of a file to be written.

    Args:
        tensors: The tensors of the file.
        document: The document of the file.

    Attributes:
        order: The names of the tensors in the order of the file: the largest elements first, so all
            tensors are aligned.
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
        # Checksums are unknown until all bytes are written; the longest ones reserve enough space.
        manifest = self._manifest_of(dict.fromkeys(self._tensors, _HIGHEST))
        text = self._header_text(manifest)
        self.reserved = LENGTH + -(-len(text) // 8) * 8
        if self.reserved > LIMIT:
            raise InvalidArgumentError(
                f"Names and document take {len(text)} bytes; a file holds {LIMIT}."
            )
        # Anything that cannot be read must not be written.
        for piece in (text, manifest):
            json_text.loads(piece)

    def finish_header(self, checksums: Mapping[str, int]) -> bytes:
        """Return length and header with all checksums: `reserved` bytes, padded with spaces."""
        text = self._header_text(self._manifest_of(checksums)).ljust(self.reserved - LENGTH)
        return seal_header(len(text).to_bytes(LENGTH, "little"), text)

    def _manifest_of(self, checksums: Mapping[str, int]) -> str:
        """Return the manifest with these checksums as JSON text."""
        table = {
            name: [tensor.dtype, tensor.shape, checksums[name]]
            for name, tensor in self._tensors.items()
        }
        # `_document` is the text of an object: what follows its brace continues this object.
        return f'{{"tensors":{_compact_json(table)},{self._document[1:]}'

    def _header_text(self, manifest_text: str) -> bytes:
        """Return the unpadded JSON header with a manifest, and with zeros as checksum."""
        begin = {"format": "thalweg", "version": str(VERSION), "checksum": "0" * 8}
        entries: dict[str, Any] = {"__metadata__": {**begin, "manifest": manifest_text}}
        offset = 0
        for name in self.order:
            tensor = self._tensors[name]
            dtype, shape = safetensors_form(tensor.dtype, tensor.shape)
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
    if not is_shape(safetensors_form(tensor.dtype, tensor.shape)[1]):
        raise InvalidArgumentError(f"{name[:200]!r}: {tensor.shape!r:.200} is no shape of a file.")
    size = prod(tensor.shape) * ITEM_BYTES[tensor.dtype]
    if tensor.data.nbytes != size or tensor.data.ndim != 1 or tensor.data.itemsize != 1:
        raise InvalidArgumentError(
            f"{name[:200]!r} has {tensor.data.nbytes} bytes; {tensor.dtype} of shape {tensor.shape}"
            f" has {size}."
        )
