"""Reduction of many steps to few bins, each with the largest number of its steps."""

from __future__ import annotations

import base64
from typing import NamedTuple

import numpy as np

# Maximum columns of a strip.
MAX_BINS = 1000
# Codes of values that are not ordinary numbers; those of (exponent, 4 digits, sign) follow them.
# Each takes 3 bytes, 4 letters of base64. numbers.js has the same codes.
UNMEASURED, ZERO, NAN, INFINITE, FIRST = range(5)
LEAST_EXPONENT = -330


class Bins(NamedTuple):
    """Equal spans of whole steps.

    Attributes:
        first: The first step of the first bin.
        width: The number of steps per bin.
        count: The number of bins.
    """

    first: int
    width: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]

    def bin_of(self, steps: np.ndarray) -> np.ndarray:
        """Return the bin of each step."""
        return (steps - self.first) // self.width


def make_bins(initial: int, final: int, interval: int) -> Bins:
    """Return at most `MAX_BINS` bins whose width is a multiple of the record interval."""
    span = final - initial + 1
    width = interval * max(1, -(-span // (interval * MAX_BINS)))
    return Bins(initial, width, -(-span // width))


def keep_largest(bins: Bins, steps: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the largest number per bin and column of a row per step; NaN counts as largest."""
    largest = np.full((bins.count, values.shape[1]), -np.inf)
    if len(steps):
        indices, starts = np.unique(bins.bin_of(steps), return_index=True)
        # np.maximum propagates NaN.
        largest[indices] = np.maximum.reduceat(values, starts)
    return largest


def encode(values: np.ndarray) -> str:
    """Return numbers, rounded to 4 digits, as base64 text for the page's script."""
    finite = np.isfinite(values) & (values != 0)
    size = np.abs(np.where(finite, values, 1.0))
    exponent = np.floor(np.log10(size)).astype(np.int64)
    # Avoids powers of ten that are denormal.
    lift = np.where(exponent < -290, 100, 0)
    digits = np.rint(size * 10.0**lift / 10.0 ** (exponent + lift) * 1000).astype(np.int64)
    # Rounding may reach the next power of ten.
    digits, exponent = (
        np.where(digits >= 10_000, 1000, np.maximum(digits, 1000)),
        exponent + (digits >= 10_000),
    )
    codes = FIRST + 2 * (9000 * (exponent - LEAST_EXPONENT) + digits - 1000) + (values < 0)
    codes = np.where(finite, codes, ZERO)
    for code, mask in (
        (NAN, np.isnan(values)), (INFINITE, values == np.inf), (UNMEASURED, values == -np.inf)
    ):  # fmt: skip
        codes[mask] = code
    three = codes.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
    return base64.b64encode(three.tobytes()).decode()
