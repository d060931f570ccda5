"""Checkpoints written by TensorFlow and Keras, with their recorded values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

import thalweg
from golden_files import FOLDER
from thalweg.checkpoint.tensorflow import TensorFlowCheckpoint

Case = dict[str, Any]

# A file's folder, and the arguments of the optimizer that the file does not hold.
TRAINED: dict[str, dict[str, Any]] = {
    "ckpt_v1/adam": {"learning_rate": 0.01, "epsilon": 1e-6},
    "ckpt_v1/adam_object": {"learning_rate": 0.01},
    "ckpt_v1/momentum": {"learning_rate": 0.05, "momentum": 0.9, "use_nesterov": True},
    "ckpt_v1/rmsprop_centered": {"learning_rate": 0.01, "momentum": 0.5},
    "ckpt_v2/adam": {},
    "ckpt_v2/adam_amsgrad_decay": {},
    "ckpt_v2/sgd_momentum": {"nesterov": True},
}
RULES = {"*/kernel": "*.weight dense", "*/bias": "*.bias"}
SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def prefix_of(name: str) -> str:
    """Return the prefix of one of the checkpoints of `TRAINED`."""
    folder = FOLDER / "checkpoints" / name
    return str(folder / json.loads((folder / "values.json").read_text())["prefix"])


@cache
def values_of(name: str) -> Any:
    """Return recorded arrays: "value|...", "after10|...", x, y, losses."""
    return np.load(FOLDER / "checkpoints" / name / "values.npz")


@cache
def recorded() -> dict[str, Case]:
    """Return the checkpoints with gradients, by id."""
    path = FOLDER / "checkpoints_with_gradients" / "cases.json"
    return {case["id"]: case for case in json.loads(path.read_text())["cases"]}


@cache
def _arrays() -> Any:
    return np.load(FOLDER / "checkpoints_with_gradients" / "cases.npz")


def arrays_of(case_id: str, part: str) -> dict[str, np.ndarray]:
    """Return arrays of a recorded case by name: "value", "gradient" or "value_after"."""
    start = f"{case_id}|{part}|"
    arrays = _arrays()
    return {name.removeprefix(start): arrays[name] for name in arrays if name.startswith(start)}


class Network(torch.nn.Module):
    """Model of the checkpoints of `TRAINED`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = torch.nn.Linear(4, 6)
        self.layer2 = torch.nn.Linear(6, 3)

    def forward(self, x: Tensor) -> torch.Tensor:
        return self.layer2(torch.relu(self.layer1(x)))


def held(file: TensorFlowCheckpoint) -> dict[str, np.ndarray]:
    """Return all arrays read from a checkpoint, by TensorFlow's names."""
    arrays = {name: value.array() for name, value in {**file.variables, **file.counters}.items()}
    for optimizer in file.optimizers:
        scope = f"{optimizer.name}/" if file.kind == "object" else ""
        arrays |= {f"{scope}{name}": value.array() for name, value in optimizer.scalars.items()}
        if file.kind == "object":
            arrays |= {
                f"{scope}{name}": np.float32(value)
                for name, value in optimizer.hyperparameters.items()
                if name not in optimizer.scalars and optimizer.face == "keras"
            }
        for variable, slots in optimizer.slots.items():
            for index, (kind, value) in enumerate(slots.items()):
                number = f"_{index}" if index else ""
                title = (
                    f"{variable}/.OPTIMIZER_SLOT/{scope}{kind}"
                    if file.kind == "object"
                    else f"{variable}/{optimizer.name}{number}"
                )
                arrays[title] = value.array()
    return arrays


def fresh(shapes: dict[str, tuple[int, ...]]) -> dict[str, thalweg.Variable]:
    """Return variables full of zeros."""
    return {name: thalweg.Variable(torch.zeros(shape), name) for name, shape in shapes.items()}


def load_vars(entries: Mapping[str, Any], zeros: bool = False) -> dict[str, Any]:
    """Return variables with the values of a file's entries, or zeros in their place."""
    tensors = {name: entry.tensor() for name, entry in entries.items()}
    return {name: thalweg.Variable(t * 0 if zeros else t, name) for name, t in tensors.items()}


def counter() -> thalweg.Variable:
    """Return a variable that counts steps."""
    return thalweg.Variable(np.int64(0), "global_step", trainable=False)
