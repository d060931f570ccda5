"""CRC32C, the checksum of TensorFlow's files and of ours (RFC 3720, appendix B.4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41, its bits in reverse
_MASK = 0xA282EAD8  # of tensorflow/core/lib/hash/crc32c.h
_FEW = 4096  # bytes for which it is not worth to wake LLVM

Buffer = bytes | bytearray | memoryview
Function = Callable[[memoryview, int], int]

_made: list[Function] = []  # the fast function, once it is needed


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the checksum of some bytes.

    Args:
        data: Contiguous memory of any shape.
        value: The checksum of what comes before, to go on from.

    Example:
        >>> crc32c(b"123456789") == crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
        True
    """
    view = flat_bytes(data)
    if not _made and len(view) <= _FEW:
        return _by_table(view, value)
    return _compiled_checksum()(view, value) if view else value


def combine_checksums(first: int, second: int, size: int) -> int:
    """Return the checksum of two parts of which each has been summed alone.

    Args:
        first: The checksum of the first part.
        second: The checksum of the second part.
        size: How many bytes the second part has.
    """
    return _gf2_product(first, _shift_matrix(size)) ^ second


def mask_checksum(value: int) -> int:
    """Return a checksum as TensorFlow stores it, so that one of bytes that hold one is still
    good.
    """
    return (((value >> 15) | (value << 17)) + _MASK) & 0xFFFFFFFF


def unmask_checksum(value: int) -> int:
    """Return the checksum that was stored as `value` by TensorFlow."""
    turned = (value - _MASK) & 0xFFFFFFFF
    return ((turned >> 17) | (turned << 15)) & 0xFFFFFFFF


def flat_bytes(data: Buffer) -> memoryview:
    """Return the bytes of contiguous memory of any shape and type."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


@cache
def byte_table() -> list[int]:
    """Return the checksum of each single byte, without the inversions at both ends."""
    found: list[int] = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        found.append(value)
    return found


def _by_table(view: memoryview, value: int) -> int:
    known, value = byte_table(), value ^ 0xFFFFFFFF
    for byte in view:
        value = known[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def _compiled_checksum() -> Function:
    if not _made:
        from thalweg._formats import checksum_compiled

        fast = checksum_compiled.by_instruction() or checksum_compiled.by_slices(byte_table())
        _made.append(fast or _by_table)
    return _made[0]


# Checksums are polynomials over two values, the coefficient of 1 in the highest bit. `size` zeros
# behind a text multiply its polynomial by x^(8 size).


def _gf2_product(one: int, other: int) -> int:
    found = 0
    for place in range(31, -1, -1):
        if one >> place & 1:
            found ^= other
        other = (other >> 1) ^ (_POLYNOMIAL if other & 1 else 0)
    return found


@lru_cache(maxsize=64)
def _shift_matrix(size: int) -> int:
    found, power = 1 << 31, 1 << 23  # 1, and x^8
    while size:
        if size & 1:
            found = _gf2_product(found, power)
        power, size = _gf2_product(power, power), size >> 1
    return found
