"""Files written and read here, against safetensors' of the same bytes, in the same rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from figure import Figure
from safetensors.torch import load_file, save_file
from torch import Tensor

from thalweg._cli.bench.timing import busy_elsewhere, no_collection
from thalweg._formats.checksum import crc32c

ROUNDS = 5

Work = Callable[[], object]


def save_plainly(path: Path, tensors: dict[str, Tensor]) -> None:
    """What a save does, without checksums and without a rename."""
    save_file(tensors, path)
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def load_plainly(path: Path) -> None:
    """Read, and look at what was read once, as a checksum needs."""
    for each in load_file(path).values():
        crc32c(each.numpy().data)


def throughput(name: str, own: Work, plain: Work, target: float, size: int) -> Figure:
    """Bytes per second in units of safetensors'."""
    found, others = rounds(lambda: _seconds(own), lambda: _seconds(plain))
    one, other = median(each for each, _ in found), median(each for _, each in found)
    return Figure(
        name,
        median(plain / own for own, plain in found),
        target,
        ">=",
        note=f"thalweg {size / 1e9 / one:.2f} GB/s, safetensors {size / 1e9 / other:.2f} GB/s",
        disturbance=others,
    )


def rounds(
    own: Callable[[], float], other: Callable[[], float]
) -> tuple[list[tuple[float, float]], float]:
    """Seconds of both, interleaved, and how many cores other processes used at most."""
    found: list[tuple[float, float]] = []
    before = _others()
    with no_collection():
        for number in range(ROUNDS + 1):
            seconds: dict[Callable[[], float], float] = {}
            for each in (own, other) if number % 2 else (other, own):
                os.sync()  # what was written before is not this one's
                seconds[each] = each()
            found.append((seconds[own], seconds[other]))
    return found[1:], max(before, _others())


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _others() -> float:
    """How many cores others use while this process waits.

    Not while it works: what the system does for it in the background would count as others'.
    """
    os.sync()
    began, busy = time.perf_counter(), busy_elsewhere()
    time.sleep(1.0)
    return max(busy_elsewhere() - busy, 0) / (time.perf_counter() - began)
