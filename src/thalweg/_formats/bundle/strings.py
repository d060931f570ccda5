"""Tensors of strings: their lengths, a checksum of these, and the strings one after another."""

from __future__ import annotations

from collections.abc import Sequence

from thalweg._formats.bundle.errors import CorruptFileError, checksum_flaw
from thalweg._formats.bundle.proto import encode_varint, read_varint
from thalweg._formats.checksum import crc32c, mask_checksum, unmask_checksum

_SHORT = 1 << 32


def decode_strings(data: bytes, count: int) -> tuple[list[bytes], int]:
    """Return the strings of a tensor, and the checksum that its entry must have.

    Args:
        data: All bytes of the tensor.
        count: How many strings there are.

    Raises:
        CorruptFileError: The lengths are damaged, or there are more or fewer bytes.
    """
    lengths: list[int] = []
    at, end = 0, len(data)
    for _ in range(count):
        length, at = read_varint(data, at, end)
        lengths.append(length)
    begin = at + 4
    if begin + sum(lengths) != end:
        raise CorruptFileError(
            f"{count} strings with {sum(lengths)} bytes do not fit into its {end} bytes"
        )
    stored, calculated = int.from_bytes(data[at:begin], "little"), _of_lengths(lengths)
    if unmask_checksum(stored) != calculated:
        raise checksum_flaw(unmask_checksum(stored), calculated)
    found: list[bytes] = []
    place = begin
    for length in lengths:
        found.append(data[place : place + length])
        place += length
    return found, crc32c(memoryview(data)[at:], calculated)


def encoded_strings(values: Sequence[bytes]) -> tuple[bytes, int]:
    """Return a tensor's bytes, and their checksum."""
    lengths = [len(value) for value in values]
    checksum = _of_lengths(lengths)
    tail = mask_checksum(checksum).to_bytes(4, "little") + b"".join(values)
    return b"".join(map(encode_varint, lengths)) + tail, crc32c(tail, checksum)


def _of_lengths(lengths: Sequence[int]) -> int:
    """The checksum of lengths, each a number of four bytes, or of eight where it needs them."""
    return crc32c(b"".join(each.to_bytes(4 if each < _SHORT else 8, "little") for each in lengths))
