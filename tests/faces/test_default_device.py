"""Torch's default device and dtype are the user's: no step, state or file depends on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from recorded_kinds import TRAININGS, Training, by_grad, of_torch, parameter
from thalweg import checkpoint, optim
from thalweg.optim import tensorflow
from thalweg.optim.diagnostics import Diagnostics
from thalweg.optim.kinds import KINDS

# Rows and columns to reduce, a vector, a number, and a matrix of more than one tile of a sweep.
SHAPES = ((64, 48), (6,), (), (300, 70))
# Slots of these are allocated in huge pages.
LARGE_SHAPES = ((1024, 520), (70,))
MATRICES = {"Muon", "NorMuon", "MuonH", "SOAP", "KLSOAP"}
HALF = torch.bfloat16
OPTIONS: dict[str, dict[str, Any]] = {
    "clip-norm": {"clip_grad_norm": 0.5},
    "clip-value": {"clip_grad_value": 0.5},
    "average": {"ema_decay": 0.9},
    "lookahead": {"lookahead": 2},
    "accumulate": {"accumulate": 2},
    "eight-bit": {"state_storage": "8bit"},
    "row-floor": {"row_floor": True},
    "trust-ratio": {"trust_ratio": True},
    "cautious": {"cautious": True},
    "cautious-decay": {"cautious_decay": True},
    "diagnostics": {"diagnostics": Diagnostics(every=1)},
    "sphere": {"sphere": True},
    "radial-brake": {"radial_brake": True},
    "flat": {"gradients": "flat"},
    "tensor-rate": {},
}
HALF_OPTIONS: dict[str, dict[str, Any]] = {
    "masters": {"masters": True},
    "split": {"weights": "split"},
    "stochastic": {"round": "stochastic"},
    "wide-sums": {"masters": True, "accumulate": 2, "wide_sums": True},
}
DEFAULTS: dict[str, Callable[[], Any]] = {
    "device": lambda: torch.device("meta"),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
}


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype for a `with` block."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


def replayed(optimizer: Any, variables: list[Any], step: int) -> None:
    """Take steps with new gradients, and then with the same ones again."""
    by_grad(optimizer, variables, step)
    optimizer.step()


def with_tensor_rate(variables: list[Any]) -> Any:
    rate = torch.tensor(0.1, dtype=torch.float32, device="cpu")
    return optim.AdamW(variables, lr=rate)


def of_groups(variables: list[Any]) -> Any:
    """Make an optimizer with a rule of matrices and one of everything else."""
    matrices = [var for var in variables if var.dim() > 1]
    others = [var for var in variables if var.dim() < 2]
    return optim.Mixed(
        [
            {"params": matrices, "rule": "Muon", "lr": 0.1},
            {"params": others, "rule": "AdamW", "lr": 0.1},
        ]
    )


def trainings() -> dict[str, Training]:
    """Return every public class, and a class with each option."""
    found = dict(TRAININGS)
    for name in KINDS:
        if name != "SparseAdam":
            found[f"optim-{name}"] = of_torch(getattr(optim, name), replayed)
    for name in tensorflow.__all__:
        found[f"tensorflow-{name}"] = of_torch(getattr(tensorflow, name), replayed)
    for name, options in OPTIONS.items():
        found[f"option-{name}"] = of_torch(optim.AdamW, replayed, **options)
    for name, options in HALF_OPTIONS.items():
        found[f"half-{name}"] = of_torch(optim.AdamW, replayed, HALF, **options)
    found["optim-Mixed"] = Training(of_groups, replayed, torch.float32, parameter)
    found["option-tensor-rate"] = Training(with_tensor_rate, replayed, torch.float32, parameter)
    found["half-Adafactor"] = of_torch(optim.Adafactor, replayed, HALF)
    return found


TABLE = trainings()


def take_steps(training: Training, shapes: Any, default: Callable[[], Any] | None) -> list[Any]:
    """Return the variables and the state after a few steps under a default of torch's."""
    made = [
        torch.linspace(-1, 1, max(1, torch.Size(shape).numel())).reshape(shape) for shape in shapes
    ]
    variables = [
        training.variable(value.to(training.dtype), f"v{place}") for place, value in enumerate(made)
    ]
    with default() if default else nullcontext():
        optimizer = training.make(variables)
        for step in range(4):
            training.step(optimizer, variables, step)
        state = optimizer.state_dict()
    return [variables, state]
