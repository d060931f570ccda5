"""Costs of a step besides memory: host time, Python calls, allocations, compilation."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from figure import Figure

import thalweg
from thalweg import optim
from thalweg._cli.bench import memory, registry, shapes, workload
from thalweg._cli.bench.timing import Contender, Timings, measure
from thalweg._engines.cpu import kernel_cache, launch
from thalweg.keras.optimizers import Adam, schedules
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.v1 import train

Step = Callable[[], object]

COUNTS = (1, 10, 100, 161, 2000)
# The most microseconds of a step, and of each tensor in it. Those of `optimize_loss` are half of
# what they were before steps were taken in one call. Keras' cold ones are what they were then:
# `steady.py` says what they should be in units of torch's.
LIMITS = {
    "keras_warm": (50.0, 0.7),
    "keras_cold": (213.0, 0.83),
    "optimize_loss_warm": (90.5, 0.835),
    "optimize_loss_cold": (202.0, 0.83),
}
# The most files that a step enters, and functions of thalweg that it calls.
WALKS = {"optim": (14, 45), "keras": (18, 60), "v1": (20, 90), "optimize_loss": (30, 250)}
TOUCHED = 64 * 2**20  # bytes, more than any cache holds
WALKED = 10  # tensors of the step whose calls are counted
ROOM = 64 * 1024
SOURCE = str(Path(thalweg.__file__).parent)


def host() -> list[Figure]:
    """Measure host time by the number of tensors, and the Python calls of a step."""
    return [*cost(), *calls()]


def cost() -> list[Figure]:
    """Measure microseconds of a steady Adam step over tensors of one element, by their number.

    Warm: the step again and again. Cold: 64 MiB are written between steps, as the passes of a
    training do, so that a step finds neither its data nor its instructions in a cache.
    """
    figures = []
    for name in ("keras", "optimize_loss"):
        steps = {count: STEPS[name](workload.make_tensors(_tiny(count))) for count in COUNTS}
        for state, prepare in (("warm", None), ("cold", _toucher())):
            contenders = [Contender(str(count), step, prepare) for count, step in steps.items()]
            timings = measure(contenders, rounds=11, block=0.05)
            figures += _costs(f"{name}_{state}", timings)
    return figures


def _costs(name: str, timings: Timings) -> list[Figure]:
    times = [1e6 * timings.median(str(count)) for count in COUNTS]
    slope, start = np.polyfit(COUNTS, times, 1)
    fixed, per_tensor = LIMITS[name]
    return [
        Figure(
            f"host_{name}_{count}",
            time,
            fixed + per_tensor * count,
            unit="us",
            note=f"fit: {start:.0f} us + {slope:.2f} us per tensor",
            disturbance=timings.disturbance,
        )
        for count, time in zip(COUNTS, times, strict=True)
    ]


def _toucher() -> Callable[[], None]:
    scratch = torch.zeros(TOUCHED // torch.float32.itemsize)

    def touch() -> None:
        scratch.add_(1.0)

    return touch


def calls() -> list[Figure]:
    """Count the Python functions that a steady Adam step calls, and thalweg's files among them.

    Resumed generators count as calls; functions in C do not.
    """
    figures = []
    for name, make in STEPS.items():
        step = make(workload.make_tensors(_tiny(WALKED)))
        for _ in range(4):
            step()
        called_files = _entered(step)
        files = {file for file in called_files if file.startswith(SOURCE)}
        own_calls = sum(file in files for file in called_files)
        note, (most_files, most_calls) = f"{WALKED} tensors", WALKS[name]
        calls_note = f"{note}; {len(called_files)} with torch's"
        figures += [
            Figure(f"calls_{name}", own_calls, most_calls, unit="calls", note=calls_note),
            Figure(f"rooms_{name}", len(files), most_files, unit="files", note=note),
        ]
    return figures


def _entered(step: Step) -> list[str]:
    """Return the file of each Python function that a step calls, except the step itself."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename != __file__:
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return files


def _applying(optimizer: Any, problem: workload.Workload) -> Step:
    pairs = list(zip(problem.gradients, problem.variables, strict=True))
    return lambda: optimizer.apply_gradients(pairs)


def _optimizing(problem: workload.Workload) -> Step:
    step: Any = optimize_loss(
        lambda: torch.zeros(()), "Adam", {}, lambda step: 1e-4, var_list=problem.variables
    )
    return lambda: step.apply_gradients(problem.gradients)


def _stepping(problem: workload.Workload) -> Step:
    for var, grad in zip(problem.variables, problem.gradients, strict=True):
        var.grad = grad
    return optim.Adam(problem.variables, 1e-4).step


STEPS: dict[str, Callable[[workload.Workload], Step]] = {
    "optim": _stepping,
    "keras": lambda problem: _applying(Adam(1e-4), problem),
    "v1": lambda problem: _applying(train.AdamOptimizer(1e-4), problem),
    "optimize_loss": _optimizing,
}


def _tiny(count: int) -> shapes.ShapeSet:
    return shapes.of("tiny", [(1,)] * count)


def allocation() -> list[Figure]:
    """Measure the peak bytes that a steady Adam step allocates temporarily."""
    entry, figures = registry.entry("Adam"), []
    for shape_set in (shapes.resnet50(), shapes.gpt2()):
        step = workload.thalweg_step(entry, workload.make_tensors(shape_set))
        figures.append(measure_memory(f"allocation_{shape_set.name}", step, ROOM))
    return [*figures, _sparse_scratch()]


def measure_memory(name: str, step: Step, limit: int) -> Figure:
    """Measure the peak bytes that a step allocates temporarily, after five steps."""
    for _ in range(5):
        step()
    note = "Python, NumPy and torch together, at most at once"
    return Figure(name, memory.extra_bytes(step) / 1024, limit / 1024, unit="KiB", note=note)


def _sparse_scratch() -> Figure:
    """Measure the growth of memory over steps with sparse gradients of constant size."""
    from sparse import OPTIMIZERS, SMALL, gradients_of, step_of, table_of

    step = step_of(OPTIMIZERS["adagrad"](), table_of(SMALL), gradients_of(SMALL))
    for _ in range(16):
        step()
    growth = _measure_growth(step, 16)
    return Figure("sparse_scratch_growth", growth / 1024, ROOM / 1024, unit="KiB", note="16 steps")


def _measure_growth(step: Callable[[], object], steps: int) -> int:
    """Return the bytes by which `steps` steps increase the memory of Python and NumPy."""
    tracemalloc.start()
    try:
        step()
        base = tracemalloc.get_traced_memory()[0]
        for _ in range(steps):
            step()
        return max(tracemalloc.get_traced_memory()[0] - base, 0)
    finally:
        tracemalloc.stop()


def recompiling() -> list[Figure]:
    """Count the kernels that a changed learning rate, or a schedule, compiles."""
    problem = workload.make_tensors(_tiny(3))
    optimizer = Adam(1e-3)

    def step() -> None:
        optimizer.apply_gradients(zip(problem.gradients, problem.variables))

    step()
    kernels_before = _kernels()
    for rate in (0.1, 1e-5, torch.tensor(0.01), schedules.ExponentialDecay(0.1, 2, 0.5)):
        optimizer.learning_rate = rate
        step()
        step()
    return [Figure("kernels_for_new_rates", _kernels() - kernels_before, 0, unit="kernels")]


def _kernels() -> int:
    # A missing folder has no files.
    files = list(kernel_cache.kernels_folder().glob("*.o"))
    return len(files) + launch.update_kernel.cache_info().currsize
