"""Reduction of many steps to few columns: each bin keeps its largest number."""

from __future__ import annotations

import base64
from typing import NamedTuple

import numpy as np

MOST = 1000  # columns of a picture
# A number of 4 digits in 3 bytes, which are 4 letters: (exponent, digits, sign) behind the codes of
# what is none. The page has the same table.
UNMEASURED, ZERO, NAN, INFINITE, FIRST = range(5)
LEAST_EXPONENT = -330


class Bins(NamedTuple):
    """Equal spans of whole steps.

    Attributes:
        first: The first step of the first.
        width: How many steps each has.
        count: How many there are.
    """

    first: int
    width: int
    count: int

    def place(self, steps: np.ndarray) -> np.ndarray:
        """Return the bin of each step."""
        return (steps - self.first) // self.width


def make_bins(first: int, last: int, every: int) -> Bins:
    """At most `MOST`, each of whole records."""
    span = last - first + 1
    width = every * max(1, -(-span // (every * MOST)))
    return Bins(first, width, -(-span // width))


def keep_largest(bins: Bins, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the largest number in each bin, of a row per step; NaN is larger than all."""
    found = np.full((bins.count, values.shape[1]), -np.inf)
    if len(steps):
        places, begins = np.unique(bins.place(steps), return_index=True)
        found[places] = np.maximum.reduceat(values, begins)  # which hands NaN on
    return found


def encode(values: np.ndarray) -> str:
    """Numbers of 4 digits as text."""
    finite = np.isfinite(values) & (values != 0)
    size = np.abs(np.where(finite, values, 1.0))
    exponent = np.floor(np.log10(size)).astype(np.int64)
    lift = np.where(exponent < -290, 100, 0)  # a power of ten must not be a denormal
    digits = np.rint(size * 10.0**lift / 10.0 ** (exponent + lift) * 1000).astype(np.int64)
    digits, exponent = (
        np.where(digits >= 10_000, 1000, np.maximum(digits, 1000)),
        exponent + (digits >= 10_000),
    )
    codes = FIRST + 2 * (9000 * (exponent - LEAST_EXPONENT) + digits - 1000) + (values < 0)
    codes = np.where(finite, codes, ZERO)
    for code, holds in (
        (NAN, np.isnan(values)), (INFINITE, values == np.inf), (UNMEASURED, values == -np.inf)
    ):  # fmt: skip
        codes[holds] = code
    three = codes.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
    return base64.b64encode(three.tobytes()).decode()
