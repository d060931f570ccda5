"""A whole training in a file: saved, restored, and saved beside the training; and their memory.

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
_EACH = 1 << 20  # elements of a tensor
_MEMORY = ("save", "restore")


class _Training:
    """A model with an optimizer that has taken a step, and files of both kinds."""

    def __init__(self, folder: Path, megabytes: int, optimizer: str) -> None:
        make, slots = OPTIMIZERS[optimizer]
        count = max(1, round(megabytes * 1e6 / (4 * _EACH * (1 + slots))))
        self.module = torch.nn.ParameterList(torch.randn(_EACH) for _ in range(count))
        self.optimizer = make()
        for each in thalweg.named_variables(self.module):  # gradients need not all be there at once
            self.optimizer.apply_gradients([(torch.ones_like(each), each)])
        self.own, self.plain = folder / "own", folder / "plain"
        self.bytes = sum(each.nbytes for each in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """The same bytes, not copied, as safetensors takes them."""
        owners = self.optimizer._slots.owners()
        found = {f"{i}": each.detach() for i, each in enumerate(owners)}
        for i, var in enumerate(owners):
            slots = self.optimizer._slots.all_of(var)
            # Slots lie in one block; safetensors refuses tensors of one storage.
            found |= {f"{i}/{name}": _alone(slot.detach()) for name, slot in slots.items()}
        return found

    def save(self) -> None:
        checkpoint.save(self.own, optimizer=self.optimizer, module=self.module)

    def restore(self) -> None:
        checkpoint.restore(self.own, optimizer=self.optimizer, module=self.module)

    def pause(self) -> float:
        """Seconds for which `save_async` holds the training up."""
        start = time.perf_counter()
        saving = checkpoint.save_async(self.own, optimizer=self.optimizer, module=self.module)
        seconds = time.perf_counter() - start
        saving.wait()
        return seconds

    def copy(self) -> float:
        """Seconds that a copy of the state takes."""
        start = time.perf_counter()
        copies = [each.clone() for each in self.tensors().values()]
        seconds = time.perf_counter() - start
        del copies
        return seconds


def _alone(tensor: Tensor) -> Tensor:
    """The tensor over a storage of its own, without a copy."""
    return torch.from_dlpack(tensor.numpy())


def trainings(megabytes: int = MEGABYTES, optimizer: str = "adam") -> list[Figure]:
    """All figures of one size."""
    with tempfile.TemporaryDirectory() as folder:
        made = _Training(Path(folder), megabytes, optimizer)
        tensors = made.tensors()
        pairs: list[tuple[str, Work, Work, float]] = [
            ("training_save", made.save, lambda: save_plainly(made.plain, tensors), 0.8),
            ("training_restore", made.restore, lambda: load_plainly(made.plain), 0.5),
        ]
        figures = [throughput(*each, made.bytes) for each in pairs]
        figures.append(_pause(made))
    return figures + [_held(which, megabytes, optimizer) for which in _MEMORY]


def _pause(made: _Training) -> Figure:
    found, others = rounds(made.pause, made.copy)
    own, copy = median(each for each, _ in found), median(each for _, each in found)
    return Figure(
        "training_pause",
        median(pause / copied for pause, copied in found),
        1.0,
        note=f"`save_async` returns after {1e3 * own:.0f} ms, a copy takes {1e3 * copy:.0f} ms",
        disturbance=others,
    )


def _held(which: str, megabytes: int, optimizer: str) -> Figure:
    """What a call takes beside the training at most, in a process of its own."""
    command = [sys.executable, __file__, "--megabytes", str(megabytes), "--optimizer", optimizer]
    done = subprocess.run([*command, "--held", which], stdout=subprocess.PIPE, check=True)
    note = f"at most at once, beside {megabytes} MB of parameters and slots"
    return Figure(f"training_{which}_memory", int(done.stdout) / 2**20, 16, unit="MiB", note=note)


def _peak(work: Work) -> int:
    """Bytes by which the process's own memory grows at most during some work (Linux)."""
    before, sizes, stop = _own_memory(), [0], threading.Event()

    def look() -> None:
        while not stop.wait(0.0005):
            sizes.append(_own_memory() - before)

    watch = threading.Thread(target=look)
    watch.start()
    work()
    stop.set()
    watch.join()
    return max(sizes)


def _own_memory() -> int:
    """Bytes that are no file's."""
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
        made = _Training(Path(folder), options.megabytes, options.optimizer)
        if options.held == "restore":
            made.save()
        print(_peak(getattr(made, options.held)))


if __name__ == "__main__":
    main()
