"""Sums of leaves in native code; this file is compiled with the files that call it."""

# Code for `compiler`.
# pyright: basic
from __future__ import annotations


def add_pairwise(numbers, count, step):
    """Return the sum of `count` numbers in the order of `reduction_order.Tree`; 0 for none.

    `step` is the distance between two numbers in the array. Partial sums overwrite the numbers.
    """
    while count > 1:
        half = count >> 1
        for i in range(half):
            numbers[i * step] = numbers[2 * i * step] + numbers[(2 * i + 1) * step]
        if count & 1:
            numbers[half * step] = numbers[(count - 1) * step]
        count = half + (count & 1)
    total = 0.0
    if count == 1:
        total = numbers[0]
    return total
