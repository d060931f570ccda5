"""The header of our files: what safetensors reads, and in its metadata a manifest that tells more.

A file is 8 bytes with the header's length, the header, and the tensors without gaps in the order of
the header, little-endian. The header begins with `BEGIN`, which holds the version and the checksum
of length and header, these digits taken as zeros. The manifest is a JSON text: each tensor's dtype,
shape and CRC32C, and the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeGuard, cast

from thalweg._formats import json_text
from thalweg._formats.checksum import crc32c
from thalweg._formats.stored_tensor import ITEM_BYTES
from thalweg.errors import (
    CheckpointMismatchError,
    DataLossError,
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

_DAMAGED = 3  # bytes of `FIRST` that may be others in a file that was ours
_DIMENSIONS = 64
_LARGEST = 2**63
_ZEROS = b"0" * 8
_HIGHEST = 0xFFFFFFFF
# safetensors has no complex numbers, or not in all versions: they stand as pairs of these.
_PAIRS = {"C64": "F32", "C128": "F64"}


@dataclass(frozen=True)
class TensorHeader:
    """Description of a tensor in a file.

    Attributes:
        dtype: As in `StoredTensor`.
        shape: As in `StoredTensor`.
        checksum: The CRC32C of its bytes.
        begin: Where they begin in the file.
        bytes: Their number.
    """

    dtype: str
    shape: tuple[int, ...]
    checksum: int
    begin: int
    bytes: int


@dataclass(frozen=True)
class Description:
    """Description of a file.

    Attributes:
        document: The values saved beside the tensors.
        tensors: The description of each tensor.
        bytes: The file's size.
    """

    document: dict[str, Any]
    tensors: dict[str, TensorHeader]
    bytes: int


def decode_header(path: str, length: bytes, text: bytes, size: int) -> Description:
    """Check all of a header and return its description of the file.

    Args:
        path: The file, for messages.
        length: Its first 8 bytes.
        text: The header.
        size: The file's size.

    Raises:
        DataLossError: The header is damaged, or the file is not of the size that it tells.
        CheckpointMismatchError: Header and manifest do not say the same.
        InvalidConfigError: The manifest is no JSON that is read here.
        UnsupportedCheckpointError: The file is of a newer version.
    """
    begin = BEGIN.match(text)
    if begin is None:
        raise DataLossError(f"{path}: The beginning of its header is damaged.")
    stored = int(begin[2], 16)
    actual = crc32c(_replace_checksum(text, _ZEROS), crc32c(length))
    check_sum(path, "header", stored, actual)
    if int(begin[1]) != VERSION:
        raise UnsupportedCheckpointError(
            f"{path}: The file is of version {int(begin[1])}; this version of Thalweg reads"
            f" version {VERSION}."
        )
    header = _parse_header(path, text)
    manifest = _parse_manifest(path, header.pop("__metadata__"))
    tensors = _parse_tensors(path, header, manifest["tensors"], LENGTH + len(text), size)
    return Description(manifest["document"], tensors, size)


def begins_like_ours(start: bytes) -> bool:
    """Return True if a file begins as a thalweg file does, as far as its bytes go."""
    found = start[LENGTH : LENGTH + len(FIRST)]
    return bool(found) and FIRST.startswith(found)


def nearly_begins(start: bytes) -> bool:
    """Return True if a file begins as a thalweg file does but for a few bytes; others have other
    names.
    """
    found = start[LENGTH : LENGTH + len(FIRST)]
    differ = sum(one != other for one, other in zip(found, FIRST, strict=False))
    return len(found) == len(FIRST) and 0 < differ <= _DAMAGED


def check_sum(path: str, name: str, stored: int, actual: int) -> None:
    """Raise DataLossError if a checksum is not the stored one."""
    if stored != actual:
        raise DataLossError(
            f"{path}: {name}: Checksum does not match: stored {stored} vs. calculated on the"
            f" restored bytes {actual}"
        )


def seal_header(length: bytes, text: bytes) -> bytes:
    """Length and header, with their checksum in its place."""
    actual = crc32c(_replace_checksum(text, _ZEROS), crc32c(length))
    return length + _replace_checksum(text, f"{actual:08x}".encode())


def _replace_checksum(text: bytes, checksum: bytes) -> bytes:
    begin = BEGIN.match(text)
    return text if begin is None else text[: begin.start(2)] + checksum + text[begin.end(2) :]


def _parse_header(path: str, text: bytes) -> dict[str, Any]:
    try:
        found = json_text.loads(text)
    except json_text.DuplicateKeyError as error:
        raise CheckpointMismatchError(f"{path}: header: {error} Nothing was loaded.") from error
    except InvalidConfigError as error:
        raise DataLossError(f"{path}: header: {error}") from error
    return found  # an object with "__metadata__": it begins with it


def _parse_manifest(path: str, metadata: Any) -> dict[str, Any]:
    text = metadata.get("manifest")
    if metadata.keys() != {"format", "version", "checksum", "manifest"} or type(text) is not str:
        raise DataLossError(f"{path}: header: The metadata have no manifest.")
    try:
        found = json_text.loads(text)
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{path}: manifest: {error}") from error
    made = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    if set(made) != {"tensors", "document"} or not all(type(v) is dict for v in made.values()):
        raise InvalidConfigError(f"{path}: manifest: It has not the parts of a manifest.")
    return made


def _parse_tensors(
    path: str, header: dict[str, Any], manifest: dict[str, Any], start: int, size: int
) -> dict[str, TensorHeader]:
    found: dict[str, TensorHeader] = {}
    end = start
    for name, each in header.items():
        described = _parse_entry(path, name, each, start, end)
        found[name], end = described, described.begin + described.bytes
    if end != size:
        cut = "It is cut off: it" if size < end else "It"
        raise DataLossError(f"{path}: {cut} has {size} bytes; its header tells of {end}.")
    differences = list(_differences(found, manifest))
    if differences:
        shown = listed(differences, "\n")
        raise CheckpointMismatchError(
            f"{path}: Header and manifest differ:\n{shown}\nNothing was loaded."
        )
    return {
        name: TensorHeader(dtype, tuple(shape), checksum, found[name].begin, found[name].bytes)
        for name, (dtype, shape, checksum) in manifest.items()
    }


def _parse_entry(path: str, name: str, given: object, start: int, end: int) -> TensorHeader:
    """One entry of the header, whose bytes must begin where the last one's ended."""
    entry = cast(dict[str, Any], given) if isinstance(given, dict) else {}
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
    return TensorHeader(dtype, tuple(shape), 0, end, size)


def _is_whole_numbers(value: object) -> TypeGuard[list[int]]:
    if not isinstance(value, list):
        return False
    return all(type(each) is int and each >= 0 for each in cast(list[Any], value))


def is_shape(value: object) -> TypeGuard[list[int]]:
    """Return True if a value is a list of sizes, none of which is beyond all memory."""
    if not _is_whole_numbers(value) or len(value) > _DIMENSIONS:
        return False
    return prod(each for each in value if each) < _LARGEST


def _differences(header: dict[str, TensorHeader], manifest: dict[str, object]) -> Iterable[str]:
    for name in header.keys() - manifest.keys():
        yield f"{name[:200]!r} is in the header only"
    for name, given in manifest.items():
        if name not in header:
            yield f"{name[:200]!r} is in the manifest only"
        elif not _is_entry(given):
            yield f"{name[:200]!r} has an entry in the manifest that is not one of a tensor"
        else:
            wanted = kept_as(given[0], given[1])
            actual = header[name].dtype, list(header[name].shape)
            if wanted != actual:
                yield f"{name[:200]!r} is {actual!r:.200} in the header, not {wanted!r:.200}"


def _is_entry(given: object) -> TypeGuard[tuple[str, list[int], int]]:
    entry = cast(list[Any], given) if isinstance(given, list) else []
    if len(entry) != 3:
        return False
    dtype, shape, checksum = entry
    is_checksum = type(checksum) is int and 0 <= checksum <= _HIGHEST
    return isinstance(dtype, str) and dtype in ITEM_BYTES and is_shape(shape) and is_checksum


def kept_as(dtype: str, shape: Iterable[int]) -> tuple[str, list[int]]:
    """Dtype and shape as safetensors knows them."""
    if dtype in _PAIRS:
        return _PAIRS[dtype], [*shape, 2]
    return dtype, list(shape)
