"""CRC32C, the checksum of TensorFlow and thalweg files (RFC 3720, appendix B.4)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41, its bits in reverse
_MASK = 0xA282EAD8  # of tensorflow/core/lib/hash/crc32c.h
_SMALL = 4096  # bytes that are not worth compiling the function

Buffer = bytes | bytearray | memoryview
Function = Callable[[memoryview, int], int]

_fast_functions: list[Function] = []  # empty, or the compiled function


def crc32c(buffer: Buffer, initial: int = 0) -> int:
    """Return the checksum of a buffer.

    Args:
        buffer: Contiguous memory of any shape.
        initial: The checksum of the bytes before the buffer.

    Example:
        >>> crc32c(b"123456789") == crc32c(b"6789", crc32c(b"12345")) == 0xE3069283
        True
    """
    view = flat_bytes(buffer)
    if not _fast_functions and len(view) <= _SMALL:
        return _by_table(view, initial)
    return _compiled_checksum()(view, initial) if view else initial


def combine_checksums(first: int, second: int, size: int) -> int:
    """Return the checksum of two consecutive buffers from their checksums.

    Args:
        first: The checksum of the first buffer.
        second: The checksum of the second buffer.
        size: The number of bytes of the second buffer.
    """
    return _gf2_product(first, _shift_matrix(size)) ^ second


def mask_checksum(checksum: int) -> int:
    """Return a checksum in the form that TensorFlow stores, which differs from a plain CRC."""
    return (((checksum >> 15) | (checksum << 17)) + _MASK) & 0xFFFFFFFF


def unmask_checksum(masked: int) -> int:
    """Return the checksum that TensorFlow stored as `masked`."""
    rotated = (masked - _MASK) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def flat_bytes(buffer: Buffer) -> memoryview:
    """Return the bytes of contiguous memory of any shape and type."""
    view = memoryview(buffer)
    return view.cast("B") if view.nbytes else memoryview(b"")


@cache
def byte_table() -> list[int]:
    """Return the checksums of the 256 single bytes, without the initial and final inversion."""
    table: list[int] = []
    for remainder in range(256):
        for _ in range(8):
            remainder = (remainder >> 1) ^ (_POLYNOMIAL if remainder & 1 else 0)
        table.append(remainder)
    return table


def _by_table(view: memoryview, checksum: int) -> int:
    """Return the checksum, computed byte by byte in Python."""
    table, checksum = byte_table(), checksum ^ 0xFFFFFFFF
    for byte in view:
        checksum = table[(checksum ^ byte) & 0xFF] ^ (checksum >> 8)
    return checksum ^ 0xFFFFFFFF


def _compiled_checksum() -> Function:
    """Return the fastest checksum function of this machine."""
    if not _fast_functions:
        from thalweg._formats import checksum_compiled

        fast = checksum_compiled.by_instruction() or checksum_compiled.by_slices(byte_table())
        _fast_functions.append(fast or _by_table)
    return _fast_functions[0]


# Checksums are polynomials over GF(2), with the coefficient of 1 in the highest bit. Appending
# `size` zeros to a text multiplies its polynomial by x^(8 size).


def _gf2_product(first: int, second: int) -> int:
    """Return the product of two polynomials over GF(2), modulo the CRC32C polynomial."""
    product = 0
    for bit in range(31, -1, -1):
        if first >> bit & 1:
            product ^= second
        second = (second >> 1) ^ (_POLYNOMIAL if second & 1 else 0)
    return product


@lru_cache(maxsize=64)
def _shift_matrix(size: int) -> int:
    """Return the factor that shifts a checksum by `size` bytes of zeros."""
    product, power = 1 << 31, 1 << 23  # 1, and x^8
    while size:
        if size & 1:
            product = _gf2_product(product, power)
        power, size = _gf2_product(power, power), size >> 1
    return product
