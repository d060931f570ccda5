"""Memory that a step allocates, and memory of the machine."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable
from typing import Any

from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]


def python_peak(step: Step) -> int:
    """Bytes that Python and NumPy held at most during a step, beyond what they held before it."""
    tracemalloc.start()
    try:
        step()
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        step()
        return max(tracemalloc.get_traced_memory()[1] - before, 0)
    finally:
        tracemalloc.stop()


def torch_peak(step: Step) -> int:
    """Bytes that torch's CPU allocator held at most during a step, beyond what it held before."""
    # The profiler would announce itself on standard error.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    results: Any = recorded.profiler.kineto_results  # pyright: ignore
    events = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def extra_bytes(step: Step) -> int:
    """Return the most memory that a steady step needs beyond what lies between steps."""
    step()
    return python_peak(step) + torch_peak(step)


def available_bytes() -> int | None:
    """Bytes of memory that may be taken without swapping; None where Linux does not tell."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def measure_growth(step: Step, steps: int) -> int:
    """Bytes by which steps raise what Python and NumPy hold afterwards."""
    tracemalloc.start()
    try:
        step()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(steps):
            step()
        return max(tracemalloc.get_traced_memory()[0] - before, 0)
    finally:
        tracemalloc.stop()
