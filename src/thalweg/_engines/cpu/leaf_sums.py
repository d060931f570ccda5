"""Sums of leaves in native code; compiled with those who call it."""

# Code for `compiler`.
# pyright: basic
from __future__ import annotations


def added_up(numbers, count, step):
    """The sum of every `step`-th number in the order of `measuring.Tree`, in the first's place."""
    while count > 1:
        half = count >> 1
        for i in range(half):
            numbers[i * step] = numbers[2 * i * step] + numbers[(2 * i + 1) * step]
        if count & 1:
            numbers[half * step] = numbers[(count - 1) * step]
        count = half + (count & 1)
    found = 0.0
    if count == 1:
        found = numbers[0]
    return found
