"""Names of array types, and the numbers of the parts of things that lie one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # of a dtype that only the run knows
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


def numbered(counts: Int64) -> tuple[Int64, Int64]:
    """For runs of so many parts each: to which run each part belongs, and its number in it."""
    run = np.repeat(np.arange(len(counts)), counts)
    return run, np.arange(len(run)) - (np.cumsum(counts) - counts)[run]
