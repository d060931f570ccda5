"""Types of NumPy arrays, and positions within consecutive runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# The dtype is not known to the type checker.
Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


def enumerate_runs(counts: Int64) -> tuple[Int64, Int64]:
    """Return, for consecutive runs of `counts` items, each item's run and index in the run."""
    run = np.repeat(np.arange(len(counts)), counts)
    return run, np.arange(len(run)) - (np.cumsum(counts) - counts)[run]
