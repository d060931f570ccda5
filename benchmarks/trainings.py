"""Time and memory of saving, asynchronous saving and restoring a training.

    python benchmarks/trainings.py [--megabytes 256] [--optimizer adam]

The peer moves the same bytes: safetensors' `save_file` and `fsync`, and its `load_file` with a
CRC32C of what it read, which `restore` verifies, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from figure import Figure, table
from peers import Work, load_plainly, rounds, save_plainly, throughput
from rich.console import Console
from torch import Tensor

import thalweg
from thalweg import checkpoint
from thalweg.keras.optimizers import SGD, Adam

MEGABYTES = 256
OPTIMIZERS: dict[str, tuple[Callable[[], Any], int]] = {  # with how many slots
    "adam": (lambda: Adam(0.001), 2),
    "momentum": (lambda: SGD(0.001, momentum=0.9), 1),
}
_ELEMENTS = 1 << 20  # elements of a tensor
_MEMORY = ("save", "restore")


class _Training:
    """Model and optimizer after a step, with the files of thalweg and of the peer."""

    def __init__(self, folder: Path, megabytes: int, optimizer: str) -> None:
        make, slots = OPTIMIZERS[optimizer]
        count = max(1, round(megabytes * 1e6 / (4 * _ELEMENTS * (1 + slots))))
        self.module = torch.nn.ParameterList(torch.randn(_ELEMENTS) for _ in range(count))
        self.optimizer = make()
        for var in thalweg.named_variables(self.module):  # gradients need not all be there at once
            self.optimizer.apply_gradients([(torch.ones_like(var), var)])
        self.own_path, self.peer_path = folder / "own", folder / "plain"
        self.bytes = sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the training for safetensors, without copies."""
        owners = self.optimizer._slots.owners()
        tensors_by_name = {f"{i}": owner.detach() for i, owner in enumerate(owners)}
        for i, var in enumerate(owners):
            slots = self.optimizer._slots.all_of(var)
            # Slots lie in one block; safetensors refuses tensors of one storage.
            tensors_by_name |= {
                f"{i}/{name}": _alone(slot.detach()) for name, slot in slots.items()
            }
        return tensors_by_name

    def save(self) -> None:
        checkpoint.save(self.own_path, optimizer=self.optimizer, module=self.module)

    def restore(self) -> None:
        checkpoint.restore(self.own_path, optimizer=self.optimizer, module=self.module)

    def pause(self) -> float:
        """Return the seconds for which `save_async` blocks the training."""
        start = time.perf_counter()
        saving = checkpoint.save_async(self.own_path, optimizer=self.optimizer, module=self.module)
        seconds = time.perf_counter() - start
        saving.wait()
        return seconds

    def copy(self) -> float:
        """Return the seconds of a copy of the state."""
        start = time.perf_counter()
        copies = [tensor.clone() for tensor in self.tensors().values()]
        seconds = time.perf_counter() - start
        del copies
        return seconds


def _alone(tensor: Tensor) -> Tensor:
    """Return the tensor over a separate storage object, without a copy."""
    return torch.from_dlpack(tensor.numpy())


def trainings(megabytes: int = MEGABYTES, optimizer: str = "adam") -> list[Figure]:
    """Measure all figures of one size."""
    with tempfile.TemporaryDirectory() as folder:
        training = _Training(Path(folder), megabytes, optimizer)
        tensors = training.tensors()
        pairs: list[tuple[str, Work, Work, float]] = [
            (
                "training_save",
                training.save,
                lambda: save_plainly(training.peer_path, tensors),
                0.8,
            ),
            ("training_restore", training.restore, lambda: load_plainly(training.peer_path), 0.5),
        ]
        figures = [throughput(*pair, training.bytes) for pair in pairs]
        figures.append(_pause(training))
    return figures + [_held(call, megabytes, optimizer) for call in _MEMORY]


def _pause(training: _Training) -> Figure:
    pairs, cores = rounds(training.pause, training.copy)
    pause_median, copy_median = (
        median(pause for pause, _ in pairs),
        median(copied_ for _, copied_ in pairs),
    )
    return Figure(
        "training_pause",
        median(pause / copied for pause, copied in pairs),
        1.0,
        note=f"`save_async` returns after {1e3 * pause_median:.0f} ms, a copy takes"
        f" {1e3 * copy_median:.0f} ms",
        disturbance=cores,
    )


def _held(call: str, megabytes: int, optimizer: str) -> Figure:
    """Measure the peak memory of a call beyond the training, in a separate process."""
    command = [sys.executable, __file__, "--megabytes", str(megabytes), "--optimizer", optimizer]
    process = subprocess.run([*command, "--held", call], stdout=subprocess.PIPE, check=True)
    note = f"at most at once, beside {megabytes} MB of parameters and slots"
    return Figure(f"training_{call}_memory", int(process.stdout) / 2**20, 16, unit="MiB", note=note)


def _peak(work: Work) -> int:
    """Return the peak growth in bytes of the process's private memory during a call (Linux)."""
    base_memory, sizes, stop = _own_memory(), [0], threading.Event()

    def look() -> None:
        while not stop.wait(0.0005):
            sizes.append(_own_memory() - base_memory)

    watch = threading.Thread(target=look)
    watch.start()
    work()
    stop.set()
    watch.join()
    return max(sizes)


def _own_memory() -> int:
    """Return the bytes of anonymous memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="parameters and slots")
    parser.add_argument("--optimizer", choices=list(OPTIMIZERS), default="adam")
    parser.add_argument("--held", choices=_MEMORY, help="print bytes and nothing else")
    options = parser.parse_args()
    if not options.held:
        Console().print(table(trainings(options.megabytes, options.optimizer)))
        return
    with tempfile.TemporaryDirectory() as folder:
        small = _Training(Path(folder), 1, options.optimizer)
        small.save(), small.restore()  # what is compiled and imported is none of it
        training = _Training(Path(folder), options.megabytes, options.optimizer)
        if options.held == "restore":
            training.save()
        print(_peak(getattr(training, options.held)))


if __name__ == "__main__":
    main()
