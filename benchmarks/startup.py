"""Startup time: imports, and the first step of each rule, compiled or from the disk.

Processor time, with wall time in the note; Python's bytecode is already compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from statistics import median
from typing import NamedTuple

from figure import Figure, watched

from thalweg._cli.bench import registry

IMPORT = """
import gc, time, torch
gc.freeze()
wall, start = time.perf_counter(), time.process_time()
{statement}
print(time.process_time() - start, time.perf_counter() - wall)
"""
STATEMENTS = {
    "import": ("import thalweg", 0.1),
    "import_optim": ("from thalweg import optim", 0.12),
    "import_keras": ("from thalweg.keras import optimizers", 0.12),
}
FIRST = """
import gc, time
import torch
{make}
gc.freeze()
wall, start = time.perf_counter(), time.process_time()
step()
print(time.process_time() - start, time.perf_counter() - wall)
"""
RULE = """
from thalweg._cli.bench import registry, shapes, workload
step = workload.thalweg_step(
    registry.entry({rule!r}), workload.make_tensors(shapes.of("one", [(1000,)]))
)
"""
OPTIM = """
from thalweg import optim
params = [torch.nn.Parameter(torch.randn(64)) for _ in range(4)]
sum(param.square().sum() for param in params).backward()
step = optim.AdamW(params).step
"""
THIRD = "step()\nstep()\n"  # the step after these compiles the look, or reads it
COLD, FROM_DISK = 0.12, 0.06


class Cost(NamedTuple):
    """Seconds of a run."""

    processor: float
    wall: float


def _run(program: str, folder: str) -> Cost:
    environment = {**os.environ, "THALWEG_CACHE_DIR": folder}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    process = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return Cost(*map(float, process.stdout.split()[-2:]))


def _figure(name: str, costs: list[Cost], target: float | None, note: str) -> Figure:
    middle = Cost(*map(median, zip(*costs, strict=True)))
    note = f"{note}; wall {middle.wall:.3g} s"
    return Figure(name, middle.processor, target, unit="s", note=note)


def importing(runs: int = 11) -> list[Figure]:
    """Measure processor seconds of imports beyond `import torch`, in interleaved processes."""
    figures: list[Figure] = []
    costs: dict[str, list[Cost]] = {name: [] for name in STATEMENTS}
    with watched(figures), tempfile.TemporaryDirectory() as folder:
        for number in range(runs + 1):
            for name, (statement, _) in STATEMENTS.items():
                cost = _run(IMPORT.format(statement=statement), folder)
                if number:  # the first compiles Python
                    costs[name].append(cost)
        for name, (_, target) in STATEMENTS.items():
            figures.append(_figure(name, costs[name], target, "beyond import torch"))
    return figures


def first_steps(runs: int = 3) -> list[Figure]:
    """Measure seconds of the first step: with nothing compiled, and from the disk."""
    programs = {rule: RULE.format(rule=rule) for rule in registry.ENTRIES}
    programs = {"optim_AdamW": OPTIM, "optim_AdamW_third": OPTIM + THIRD, **programs}
    figures: list[Figure] = []
    for name, make in programs.items():
        with watched(figures):
            figures += _first_steps(name, FIRST.format(make=make), runs)
    return figures


def _first_steps(name: str, program: str, runs: int) -> list[Figure]:
    cold, from_disk = list[Cost](), list[Cost]()
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(_run(program, folder))
            from_disk.append(_run(program, folder))
    return [
        _figure(f"cold_{name}", cold, COLD, "compiling"),
        _figure(f"disk_{name}", from_disk, FROM_DISK, "from the disk"),
    ]
