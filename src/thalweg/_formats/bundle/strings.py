"""Tensors of strings: lengths, their checksum, and the concatenated strings."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg._formats.bundle.errors import CorruptFileError, check_checksum
from thalweg._formats.bundle.proto import encode_varint, read_varint
from thalweg._formats.checksum import crc32c, mask_checksum

_MAX_SHORT = 1 << 32


def decode_strings(content: bytes, count: int) -> tuple[list[bytes], int]:
    """Return (strings of a tensor, checksum that its entry must have).

    Args:
        content: All bytes of the tensor.
        count: The number of strings.

    Raises:
        CorruptFileError: The lengths are damaged, or the number of bytes is wrong.
    """
    lengths: list[int] = []
    offset, end = 0, len(content)
    for _ in range(count):
        length, offset = read_varint(content, offset, end)
        lengths.append(length)
    begin = offset + 4
    if begin + sum(lengths) != end:
        raise CorruptFileError(
            f"{count} strings with {sum(lengths)} bytes do not fit into its {end} bytes"
        )
    calculated = _checksum_of_lengths(lengths)
    check_checksum(int.from_bytes(content[offset:begin], "little"), calculated)
    strings: list[bytes] = []
    position = begin
    for length in lengths:
        strings.append(content[position : position + length])
        position += length
    return strings, crc32c(memoryview(content)[offset:], calculated)


def encoded_strings(strings: Sequence[bytes]) -> tuple[bytes, int]:
    """Return (lengths, their checksum and the strings as one block; checksum of the block)."""
    lengths = [len(string) for string in strings]
    checksum = _checksum_of_lengths(lengths)
    tail = mask_checksum(checksum).to_bytes(4, "little") + b"".join(strings)
    return b"".join(map(encode_varint, lengths)) + tail, crc32c(tail, checksum)


def _checksum_of_lengths(lengths: Sequence[int]) -> int:
    """Return the checksum of lengths, each of four bytes, or of eight if necessary."""
    widths = [4 if length < _MAX_SHORT else 8 for length in lengths]
    return crc32c(b"".join(n.to_bytes(width, "little") for n, width in zip(lengths, widths)))
