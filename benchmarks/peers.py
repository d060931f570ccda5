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
    """Save with safetensors and fsync, without checksums and without a rename."""
    save_file(tensors, path)
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def load_plainly(path: Path) -> None:
    """Load with safetensors, and compute a checksum of the tensors."""
    for tensor in load_file(path).values():
        crc32c(tensor.numpy().data)


def throughput(name: str, own_work: Work, peer_work: Work, target: float, size: int) -> Figure:
    """Return the figure of bytes per second in units of safetensors'."""
    times, cores = rounds(lambda: _seconds(own_work), lambda: _seconds(peer_work))
    own_median, peer_median = median(each for each, _ in times), median(each for _, each in times)
    return Figure(
        name,
        median(peer_work / own_work for own_work, peer_work in times),
        target,
        ">=",
        note=f"thalweg {size / 1e9 / own_median:.2f} GB/s, safetensors"
        f" {size / 1e9 / peer_median:.2f} GB/s",
        disturbance=cores,
    )


def rounds(
    own_seconds: Callable[[], float], peer_seconds: Callable[[], float]
) -> tuple[list[tuple[float, float]], float]:
    """Return interleaved pairs of seconds, and the most cores that other processes used."""
    pairs: list[tuple[float, float]] = []
    cores_before = _others()
    with no_collection():
        for number in range(ROUNDS + 1):
            seconds: dict[Callable[[], float], float] = {}
            for run in (own_seconds, peer_seconds) if number % 2 else (peer_seconds, own_seconds):
                os.sync()  # what was written before is not this one's
                seconds[run] = run()
            pairs.append((seconds[own_seconds], seconds[peer_seconds]))
    return pairs[1:], max(cores_before, _others())


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _others() -> float:
    """Return the cores that other processes use while this process sleeps.

    While this process works, the system's background work for it would count as that of others.
    """
    os.sync()
    began, busy = time.perf_counter(), busy_elsewhere()
    time.sleep(1.0)
    return max(busy_elsewhere() - busy, 0) / (time.perf_counter() - began)
