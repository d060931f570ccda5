"""The first seconds: importing, and the first step of each rule, compiled or from the disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from statistics import median

from figure import Figure

from thalweg.bench import catalogue

IMPORT = """
import time
import torch
start = time.perf_counter()
import thalweg
print(time.perf_counter() - start)
"""
FIRST = """
import sys, time
import torch
{warm}
from thalweg.bench import catalogue, problem, shapes
step = problem.thalweg_step(
    catalogue.entry({rule!r}), problem.make(shapes.of("one", [(1000,)]))
)
start = time.perf_counter()
step()
print(time.perf_counter() - start)
"""


def _run(program: str, folder: str) -> float:
    environment = {**os.environ, "THALWEG_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def importing() -> list[Figure]:
    """Seconds that `import thalweg` adds to `import torch`."""
    with tempfile.TemporaryDirectory() as folder:
        times = [_run(IMPORT, folder) for _ in range(5)]
    return [Figure("import", median(times), 0.1, unit="s", note="beyond import torch")]


def first_steps() -> list[Figure]:
    """Seconds of the first step: with nothing compiled, and from the disk after `import numba`."""
    cold, warm = [], []
    for rule in catalogue.ENTRIES:
        fresh, cached = [], []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                fresh.append(_run(FIRST.format(rule=rule, warm=""), folder))
                cached.append(_run(FIRST.format(rule=rule, warm="import numba"), folder))
        cold.append(
            Figure(
                f"cold_{rule}", median(fresh), 1.5, unit="s", note="with import numba, compiling"
            )
        )
        warm.append(
            Figure(f"disk_{rule}", median(cached), 0.25, unit="s", note="after import numba")
        )
    return [*cold, *warm]
