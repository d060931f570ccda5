"""The checksum of HDF5's newer structures: Bob Jenkins' lookup3, "hashlittle" with 0.

Reference: http://burtleburtle.net/bob/c/lookup3.c
"""

from __future__ import annotations

from thalweg._formats.source import FilePart

_MASK = 0xFFFFFFFF
_MIXING = ((0, 2, 4, 1), (1, 0, 6, 2), (2, 1, 8, 0), (0, 2, 16, 1), (1, 0, 19, 2), (2, 1, 4, 0))
_FINAL = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


def lookup3(data: bytes | memoryview) -> int:
    """Return the checksum of some bytes."""
    words = [(0xDEADBEEF + len(data)) & _MASK] * 3
    last = max(0, (len(data) - 1) // 12 * 12)
    for begin in range(0, last, 12):
        _add_words(words, data[begin : begin + 12])
        for to, other, shift, third in _MIXING:
            words[to] = (words[to] - words[other]) & _MASK ^ _rotate_left(words[other], shift)
            words[other] = (words[other] + words[third]) & _MASK
    if not data:
        return words[2]
    _add_words(words, data[last:])
    for to, other, shift in _FINAL:
        words[to] = ((words[to] ^ words[other]) - _rotate_left(words[other], shift)) & _MASK
    return words[2]


def check_sum(part: FilePart, what: str) -> None:
    """Take a checksum of all bytes before it.

    Raises:
        DataLossError: It is not that of the bytes.
    """
    size = len(part.data) - part.left
    calculated, stored = lookup3(part.data[:size]), part.take_number(4)
    if stored != calculated:
        text = f"{what}: Checksum does not match: stored {stored} vs. calculated {calculated}"
        raise part.source.data_loss_error(part.offset - 4, text)


def _add_words(words: list[int], data: bytes | memoryview) -> None:
    for number in range(3):
        word = int.from_bytes(data[4 * number : 4 * number + 4], "little")
        words[number] = (words[number] + word) & _MASK


def _rotate_left(word: int, shift: int) -> int:
    return (word << shift | word >> 32 - shift) & _MASK
