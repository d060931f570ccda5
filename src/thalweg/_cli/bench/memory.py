"""Memory that a step allocates, and memory of the machine."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


def python_peak(step: Step) -> int:
    """Call `step` twice; return the peak bytes of Python and NumPy in the second call."""
    tracemalloc.start()
    try:
        # The first step may fill caches, which later steps reuse.
        step()
        tracemalloc.reset_peak()
        base = tracemalloc.get_traced_memory()[0]
        step()
        return max(tracemalloc.get_traced_memory()[1] - base, 0)
    finally:
        tracemalloc.stop()


def torch_peak(step: Step) -> int:
    """Call `step` once; return the peak bytes that torch's CPU allocator allocates in the call."""
    # The profiler writes a start message to standard error at lower log levels.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    results: Any = profiler.profiler.kineto_results  # pyright: ignore
    events = [event for event in results.events() if event.name() == "[memory]"]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak


def extra_bytes(step: Step) -> int:
    """Return the peak bytes that a step after the first one allocates temporarily."""
    step()
    return python_peak(step) + torch_peak(step)


def available_bytes() -> int | None:
    """Return the bytes that can be allocated without swapping; None without /proc/meminfo."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
