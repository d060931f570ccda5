"""What a step costs besides its memory: host time, allocations, compilation."""

from __future__ import annotations

import numpy as np
import torch
from figure import Figure

from thalweg.bench import catalogue, memory, problem, shapes
from thalweg.bench.timing import Contender, measure
from thalweg.engines.cpu import launch, store
from thalweg.keras.optimizers import Adam, schedules

COUNTS = (1, 161, 500, 1000, 2000)
FIXED, EACH = 50.0, 0.7  # microseconds
ROOM = 64 * 1024


def cost() -> list[Figure]:
    """Microseconds of a steady Adam step over tensors of one element, by their number."""
    entry = catalogue.entry("Adam")
    contenders = [
        Contender(str(count), problem.thalweg_step(entry, problem.make(_tiny(count))))
        for count in COUNTS
    ]
    timings = measure(contenders, rounds=11, block=0.05)
    times = [1e6 * timings.median(str(count)) for count in COUNTS]
    slope, start = np.polyfit(COUNTS, times, 1)
    fit = f"fit: {start:.0f} us + {slope:.2f} us per tensor"
    return [
        Figure(
            f"host_{count}",
            time,
            FIXED + EACH * count,
            unit="us",
            note=fit,
            disturbance=timings.disturbance,
        )
        for count, time in zip(COUNTS, times, strict=True)
    ]


def _tiny(count: int) -> shapes.ShapeSet:
    return shapes.of("tiny", [(1,)] * count)


def allocation() -> list[Figure]:
    """Bytes that a steady Adam step holds at most beyond those between steps."""
    entry, figures = catalogue.entry("Adam"), []
    for chosen in (shapes.resnet50(), shapes.gpt2()):
        step = problem.thalweg_step(entry, problem.make(chosen))
        for _ in range(5):
            step()
        held = memory.extra_bytes(step)
        figures.append(
            Figure(f"allocation_{chosen.name}", held / 1024, ROOM / 1024, unit="KiB",
                   note="Python, NumPy and torch together, at most at once")
        )  # fmt: skip
    return [*figures, _sparse_scratch()]


def _sparse_scratch() -> Figure:
    """What steps over equally large sparse gradients add to what is held between them."""
    from sparse import OPTIMIZERS, SMALL, gradients_of, step_of, table_of

    step = step_of(OPTIMIZERS["adagrad"](), table_of(SMALL), gradients_of(SMALL))
    for _ in range(16):
        step()
    grown = memory.growth(step, 16)
    return Figure("sparse_scratch_growth", grown / 1024, ROOM / 1024, unit="KiB", note="16 steps")


def recompiling() -> list[Figure]:
    """Kernels made by changing the learning rate, or putting a schedule in its place."""
    made = problem.make(_tiny(3))
    optimizer = Adam(1e-3)

    def step() -> None:
        optimizer.apply_gradients(zip(made.gradients, made.variables))

    step()
    before = _kernels()
    for rate in (0.1, 1e-5, torch.tensor(0.01), schedules.ExponentialDecay(0.1, 2, 0.5)):
        optimizer.learning_rate = rate
        step()
        step()
    return [Figure("kernels_for_new_rates", _kernels() - before, 0, unit="kernels")]


def _kernels() -> int:
    files = len(list(store.folder().glob("*.py"))) if store.folder().is_dir() else 0
    return files + launch.compiled.cache_info().currsize
