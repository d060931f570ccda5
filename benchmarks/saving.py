"""Files of a gigabyte: written and forced to the disk, read and verified, and what that holds."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from figure import Figure
from peers import Work, load_plainly, save_plainly, throughput
from torch import Tensor

from thalweg._cli.bench import memory, shapes
from thalweg._formats import container
from thalweg._formats.stored_tensor import of_tensor

ROOM = 16.0  # MiB


def files() -> list[Figure]:
    """The state of Adam on GPT-2 small, against safetensors without checksums."""
    state = _state()
    size = sum(each.nbytes for each in state.values())
    with tempfile.TemporaryDirectory() as folder:
        plain, own = Path(folder) / "plain", Path(folder) / "own"
        pairs: list[tuple[str, Work, Work, float]] = [
            ("save_gigabyte", lambda: _save(own, state), lambda: save_plainly(plain, state), 0.8),
            ("load_gigabyte", lambda: _load(own), lambda: load_plainly(plain), 0.5),
        ]
        figures = [throughput(*each, size) for each in pairs]
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


def _load(path: Path) -> dict[str, Tensor]:
    return {name: each.tensor() for name, each in container.read(path).tensors.items()}


def _held(name: str, size: int) -> Figure:
    note = "Python and NumPy, at most at once, beyond the state"
    return Figure(name, max(size, 0) / 2**20, ROOM, unit="MiB", note=note)
