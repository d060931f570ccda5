"""Our files as tests make them: good ones, and forged ones whose header has the right checksum."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from thalweg._formats import container, header
from thalweg._formats.checksum import crc32c
from thalweg._formats.stored_tensor import ITEM_BYTES, StoredTensor

Header = dict[str, Any]


def counting_tensor(dtype: str, shape: tuple[int, ...], start: int = 0) -> StoredTensor:
    """Return a tensor whose bytes count upwards; booleans alternate."""
    size = ITEM_BYTES[dtype]
    for length in shape:
        size *= length
    highest = 2 if dtype == "BOOL" else 256
    pattern = bytes((start + i) % highest for i in range(256))
    return StoredTensor(dtype, shape, memoryview((pattern * (size // 256 + 1))[:size]))


def a_few() -> dict[str, StoredTensor]:
    """Return tensors of several dtypes, an empty one and one of shape () among them."""
    return {
        "dec/kernel": counting_tensor("F32", (5, 7), 3),
        "dec/bias": counting_tensor("BF16", (3,), 1),
        "step": counting_tensor("I64", (), 9),
        "empty": counting_tensor("F16", (0, 4)),
        "flags": counting_tensor("BOOL", (3,)),
        "ü/\n": counting_tensor("U8", (9,), 200),
    }


DOCUMENT = {"rate": 0.1, "names": ["a", "ü"], "nothing": None, "inside": {"deep": [True, 2**63]}}


def have_equal_contents(first: container.Contents, second: container.Contents) -> bool:
    """Return whether two files have equal contents in the same order."""

    def plain(contents: container.Contents) -> Any:
        tensors = contents.tensors.items()
        return contents.document, [
            (name, tensor.dtype, tensor.shape, bytes(tensor.data)) for name, tensor in tensors
        ]

    return plain(first) == plain(second)


def parts(raw: bytes) -> tuple[Header, Header, bytes]:
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["manifest"]), raw[8 + length :]


def make_file(text: str | bytes, data: bytes) -> bytes:
    """Return a file with this header text; a header of this format gets a valid checksum."""
    raw = text.encode() if isinstance(text, str) else text
    length = len(raw).to_bytes(8, "little")
    return (header.seal_header(length, raw) if header.BEGIN.match(raw) else length + raw) + data


def packed(header: Header, manifest: Header | str, data: bytes) -> bytes:
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    metadata = {**header["__metadata__"], "manifest": text}
    encoded_header = json.dumps({**header, "__metadata__": metadata}, separators=(",", ":"))
    return make_file(encoded_header, data)


def forged(path: Path, change: Callable[[Header, Header], bytes | None]) -> bytes:
    """Return the file at `path` after `change` of header and manifest, which may return data."""
    header, manifest, data = parts(path.read_bytes())
    changed_content = change(header, manifest)
    return packed(header, manifest, data if changed_content is None else changed_content)


def resummed(path: Path) -> Callable[[Header, Header], None]:
    """Return a change that sets each tensor's checksum to that of the bytes at its offset."""
    raw = parts(path.read_bytes())[2]

    def change(header: Header, manifest: Header) -> None:
        for name, entry in manifest["tensors"].items():
            begin, end = header[name]["data_offsets"]
            entry[2] = crc32c(raw[begin:end])

    return change
