"""Time and memory of saving and loading files of a gigabyte, with fsync and checksums."""

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
    """Measure files with the state of Adam on GPT-2 small, in units of safetensors'."""
    state = _state()
    size = sum(tensor.nbytes for tensor in state.values())
    with tempfile.TemporaryDirectory() as folder:
        peer_path, own_path = Path(folder) / "plain", Path(folder) / "own"
        pairs: list[tuple[str, Work, Work, float]] = [
            (
                "save_gigabyte",
                lambda: _save(own_path, state),
                lambda: save_plainly(peer_path, state),
                0.8,
            ),
            ("load_gigabyte", lambda: _load(own_path), lambda: load_plainly(peer_path), 0.5),
        ]
        figures = [throughput(*pair, size) for pair in pairs]
        peak_bytes = memory.python_peak(lambda: _save(own_path, state))
        figures.append(_held("save_memory", peak_bytes))
        peak_bytes = memory.python_peak(lambda: _load(own_path)) - size
        figures.append(_held("load_memory", peak_bytes))
    return figures


def _state() -> dict[str, Tensor]:
    sizes = shapes.gpt2().shapes
    return {
        f"{slot}/{number}": torch.randn(shape)
        for slot in ("m", "v")
        for number, shape in enumerate(sizes)
    }


def _save(path: Path, state: Mapping[str, Tensor]) -> None:
    container.write(path, {name: of_tensor(tensor) for name, tensor in state.items()}, {})


def _load(path: Path) -> dict[str, Tensor]:
    return {name: stored.tensor() for name, stored in container.read(path).tensors.items()}


def _held(name: str, size: int) -> Figure:
    note = "Python and NumPy, at most at once, beyond the state"
    return Figure(name, max(size, 0) / 2**20, ROOM, unit="MiB", note=note)
