"""Time limits that grow with the load of the machine."""

from __future__ import annotations

import os


def scale_to_load(seconds: float) -> float:
    """Return a time limit, multiplied by the processes that share each processor now."""
    return seconds * max(1.0, read_load() / (os.cpu_count() or 1))


def read_load() -> float:
    """Return the number of processes that wait for processors, 0 where it is unknown."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
