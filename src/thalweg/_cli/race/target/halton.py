"""Halton sequence: points that fill a cube evenly at any number of points."""

from __future__ import annotations

from random import Random

_BASES = (2, 3, 5, 7, 11, 13, 17, 19)


def halton(count: int, dimensions: int, seed: int) -> list[tuple[float, ...]]:
    """Return the first `count` points of the sequence, shifted modulo 1 by a random vector.

    Args:
        dimensions: The number of dimensions, up to 8.
        seed: Decides the shift.

    Returns:
        Points with coordinates in [0, 1).

    Source: Halton 1960; the shift is that of Cranley and Patterson 1976.

    Example:
        >>> points = halton(4, 2, seed=0)
        >>> sorted(int(4 * x) for x, _ in points)  # one in each quarter
        [0, 1, 2, 3]
    """
    random = Random(seed)
    shifts = [random.random() for _ in _BASES[:dimensions]]
    return [
        tuple(
            (_mirror(index, base) + shift) % 1.0
            for base, shift in zip(_BASES, shifts, strict=False)
        )
        for index in range(count)
    ]


def _mirror(index: int, base: int) -> float:
    """Return the radical inverse of a number: its digits reversed behind the point."""
    fraction, weight = 0.0, 1.0
    while index:
        index, digit = divmod(index, base)
        weight /= base
        fraction += digit * weight
    return fraction
