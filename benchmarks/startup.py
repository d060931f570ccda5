"""The first seconds: importing, and the first step of each rule, compiled or from the disk."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from time import perf_counter

from figure import Figure

from thalweg.bench import catalogue
from thalweg.bench.timing import busy_elsewhere

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
from thalweg.bench import catalogue, problem, shapes
step = problem.thalweg_step(
    catalogue.entry({rule!r}), problem.make(shapes.of("one", [(1000,)]))
)
start = time.perf_counter()
step()
print(time.perf_counter() - start)
"""


@contextmanager
def _watched(figures: list[Figure]) -> Iterator[None]:
    """Note in the figures added meanwhile what other processes did."""
    before, began, busy = len(figures), perf_counter(), busy_elsewhere()
    yield
    others = max(busy_elsewhere() - busy, 0) / (perf_counter() - began)
    figures[before:] = [replace(each, disturbance=others) for each in figures[before:]]


def _run(program: str, folder: str) -> float:
    environment = {**os.environ, "THALWEG_CACHE_DIR": folder}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def importing() -> list[Figure]:
    """Seconds that `import thalweg` adds to `import torch`."""
    figures: list[Figure] = []
    with _watched(figures), tempfile.TemporaryDirectory() as folder:
        times = [_run(IMPORT, folder) for _ in range(5)]
        figures.append(Figure("import", median(times), 0.1, unit="s", note="beyond import torch"))
    return figures


def first_steps() -> list[Figure]:
    """Seconds of the first step: with nothing compiled, and from the disk."""
    figures: list[Figure] = []
    for rule in catalogue.ENTRIES:
        with _watched(figures):
            figures += _first_steps(rule)
    return figures


def _first_steps(rule: str) -> list[Figure]:
    cold, kept = [], []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(_run(FIRST.format(rule=rule), folder))
            kept.append(_run(FIRST.format(rule=rule), folder))
    return [
        Figure(f"cold_{rule}", median(cold), 0.5, unit="s", note="compiling"),
        Figure(f"disk_{rule}", median(kept), 0.25, unit="s", note="from the disk"),
    ]
