"""Files of a gigabyte: written and forced to the disk, read and verified, and what that holds."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch
from figure import Figure
from safetensors.torch import load_file, save_file
from torch import Tensor

from thalweg.bench import memory, shapes
from thalweg.bench.timing import busy_elsewhere, no_collection
from thalweg.storage import container
from thalweg.storage.checksum import crc32c
from thalweg.storage.stored import of_tensor

ROUNDS = 5
ROOM = 16.0  # MiB

Work = Callable[[], object]


def files() -> list[Figure]:
    """The state of Adam on GPT-2 small, against safetensors without checksums."""
    state = _state()
    size = sum(each.nbytes for each in state.values())
    with tempfile.TemporaryDirectory() as folder:
        plain, own = Path(folder) / "plain", Path(folder) / "own"
        saving: dict[str, Work] = {
            "thalweg": lambda: _save(own, state), "safetensors": lambda: _save_plainly(plain, state)
        }  # fmt: skip
        loading: dict[str, Work] = {
            "thalweg": lambda: _load(own), "safetensors": lambda: _load_plainly(plain)
        }  # fmt: skip
        figures = [
            _throughput("save", saving, 0.8, size),
            _throughput("load", loading, 0.5, size),
        ]
        held = memory.python_peak(lambda: _save(own, state))
        figures.append(_held("save_memory", held))
        held = memory.python_peak(lambda: _load(own)) - size
        figures.append(_held("load_memory", held))
    return figures


def _state() -> dict[str, Tensor]:
    sizes = shapes.gpt2().shapes
    return {
        f"{slot}/{number}": torch.randn(shape)
        for slot in ("m", "v")
        for number, shape in enumerate(sizes)
    }


def _save(path: Path, state: Mapping[str, Tensor]) -> None:
    container.write(path, {name: of_tensor(each) for name, each in state.items()}, {})


def _save_plainly(path: Path, state: dict[str, Tensor]) -> None:
    save_file(state, path)
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def _load(path: Path) -> dict[str, Tensor]:
    return {name: each.tensor() for name, each in container.read(path).tensors.items()}


def _load_plainly(path: Path) -> dict[str, Tensor]:
    """What is read is looked at once, as the checksum needs."""
    state = load_file(path)
    for each in state.values():
        crc32c(each.numpy().data)
    return state


def _throughput(name: str, contenders: Mapping[str, Work], target: float, size: int) -> Figure:
    """Bytes per second in units of safetensors', in the same rounds."""
    others = _others()
    seconds: dict[str, list[float]] = {each: [] for each in contenders}
    with no_collection():
        for number in range(ROUNDS + 1):
            order = list(contenders) if number % 2 else list(reversed(contenders))
            for each in order:
                os.sync()  # what was written before is not this one's
                start = time.perf_counter()
                contenders[each]()
                seconds[each].append(time.perf_counter() - start)
    own, plain = seconds["thalweg"][1:], seconds["safetensors"][1:]
    return Figure(
        f"{name}_gigabyte",
        median(other / one for one, other in zip(own, plain, strict=True)),
        target,
        ">=",
        note=f"thalweg {size / 1e9 / median(own):.2f} GB/s,"
        f" safetensors {size / 1e9 / median(plain):.2f} GB/s",
        disturbance=max(others, _others()),
    )


def _others() -> float:
    """How many cores others use while this process waits.

    Not while it works: what the system does for it in the background would count as others'.
    """
    os.sync()
    began, busy = time.perf_counter(), busy_elsewhere()
    time.sleep(1.0)
    return max(busy_elsewhere() - busy, 0) / (time.perf_counter() - began)


def _held(name: str, size: int) -> Figure:
    note = "Python and NumPy, at most at once, beyond the state"
    return Figure(name, max(size, 0) / 2**20, ROOM, unit="MiB", note=note)
