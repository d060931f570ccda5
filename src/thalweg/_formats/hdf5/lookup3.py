"""Checksum of HDF5's newer structures: the function "hashlittle" of lookup3, with initial value 0.

Reference: http://burtleburtle.net/bob/c/lookup3.c
"""

from __future__ import annotations

from thalweg._formats.source import FilePart

_MASK = 0xFFFFFFFF
_MIXING = ((0, 2, 4, 1), (1, 0, 6, 2), (2, 1, 8, 0), (0, 2, 16, 1), (1, 0, 19, 2), (2, 1, 4, 0))
_FINAL = ((2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24))


def lookup3(content: bytes | memoryview) -> int:
    """Return the lookup3 checksum of bytes, an int of 32 bits."""
    words = [(0xDEADBEEF + len(content)) & _MASK] * 3
    tail = max(0, (len(content) - 1) // 12 * 12)
    for begin in range(0, tail, 12):
        _add_words(words, content[begin : begin + 12])
        for target, operand, shift, third in _MIXING:
            words[target] = (words[target] - words[operand]) & _MASK ^ _rotate_left(
                words[operand], shift
            )
            words[operand] = (words[operand] + words[third]) & _MASK
    if not content:
        return words[2]
    _add_words(words, content[tail:])
    for target, operand, shift in _FINAL:
        words[target] = (
            (words[target] ^ words[operand]) - _rotate_left(words[operand], shift)
        ) & _MASK
    return words[2]


def check_sum(piece: FilePart, label: str) -> None:
    """Verify the checksum in the next four bytes of `piece`; raise DataLossError if it is wrong.

    The checksum is that of all earlier bytes of `piece`.
    """
    size = len(piece.data) - piece.left
    calculated, stored = lookup3(piece.data[:size]), piece.take_number(4)
    if stored != calculated:
        text = f"{label}: Checksum does not match: stored {stored} vs. calculated {calculated}"
        raise piece.source.data_loss_error(piece.offset - 4, text)


def _add_words(words: list[int], block: bytes | memoryview) -> None:
    """Add the little-endian words of a block to `words` in place, modulo 2**32."""
    for index in range(3):
        word = int.from_bytes(block[4 * index : 4 * index + 4], "little")
        words[index] = (words[index] + word) & _MASK


def _rotate_left(word: int, shift: int) -> int:
    """Return a 32-bit word, rotated left by `shift` bits."""
    return (word << shift | word >> 32 - shift) & _MASK
