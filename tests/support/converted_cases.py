"""Trainings whose optimizer states are converted: five steps with the author's package, five here.

`tools/record_converted.py` records them; tests/optim/test_optim_package_states.py continues them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

STEPS = 5
SMALL = ((4, 6), (6,))
MATRICES = ((4, 6), (6, 3))
# The rows of each block of 256 repeat, so that a recording of 8-bit codes is small.
WIDE = ((16, 256), (6,))


@dataclass(frozen=True)
class Case:
    """One training.

    Args:
        source: Class of the author, `package:Class`, or `owner/repository/file.py:Class`.
        options: Arguments of the author's class, for all groups.
        name: Class of `thalweg.optim`.
        ours: Arguments of that class.
        shapes: Shapes of the parameters, each in a group.
        groups: Optional. More options of the groups, for both sides.
        tolerance: Largest difference after ten steps, relative to the distance since five.
    """

    source: str
    options: dict[str, Any]
    name: str
    ours: dict[str, Any] = field(default_factory=dict[str, Any])
    shapes: tuple[tuple[int, ...], ...] = SMALL
    groups: tuple[dict[str, Any], ...] = ({}, {"weight_decay": 0.0})
    tolerance: float = 1e-5


EIGHT = {"state_storage": "dynamic8"}
MUON, SOAP = "KellerJordan/Muon/muon.py", "nikhilvyas/SOAP/soap.py"
MUON_GROUPS = (
    {"use_muon": True, "lr": 0.02, "weight_decay": 0.1},
    {"use_muon": False, "lr": 0.01, "weight_decay": 0.1},
)
CASES = {
    "bitsandbytes_adamw8bit": Case(
        "bitsandbytes.optim:AdamW8bit", {"lr": 0.01, "weight_decay": 0.1}, "AdamW", EIGHT,
        WIDE, tolerance=0.05,
    ),
    "bitsandbytes_adam": Case(
        "bitsandbytes.optim:Adam", {"lr": 0.01, "weight_decay": 0.1}, "AdamW",
    ),
    "bitsandbytes_lion8bit": Case(
        "bitsandbytes.optim:Lion8bit", {"lr": 0.01, "weight_decay": 0.1}, "Lion", EIGHT, WIDE,
        tolerance=0.2,
    ),
    "bitsandbytes_sgd8bit": Case(
        "bitsandbytes.optim:SGD8bit", {"lr": 0.01, "momentum": 0.9}, "SGD",
        {"momentum": 0.9, **EIGHT}, WIDE, tolerance=0.05,
    ),
    "torchao_adamw8bit": Case(
        "torchao.optim:AdamW8bit", {"lr": 0.01, "weight_decay": 0.1}, "AdamW", EIGHT, WIDE,
        ({}, {}), tolerance=0.05,
    ),
    "torchao_adamw4bit": Case(
        "torchao.optim:AdamW4bit", {"lr": 0.01, "weight_decay": 0.1}, "AdamW", {}, WIDE,
        ({}, {}), tolerance=0.5,
    ),
    "schedulefree_adamw": Case(
        "schedulefree:AdamWScheduleFree", {"lr": 0.01, "weight_decay": 0.1, "warmup_steps": 7},
        "ScheduleFreeAdamW",
    ),
    "schedulefree_sgd": Case(
        "schedulefree:SGDScheduleFree", {"lr": 0.1, "weight_decay": 0.1, "warmup_steps": 7},
        "ScheduleFreeSGD",
    ),
    "prodigyopt_prodigy": Case(
        "prodigyopt:Prodigy", {"weight_decay": 0.1, "d0": 1e-3}, "Prodigy",
    ),
    "timm_lamb": Case(
        "timm.optim:Lamb", {"lr": 0.01, "weight_decay": 0.1, "max_grad_norm": None}, "LAMB",
    ),
    "timm_mars": Case("timm.optim:Mars", {"lr": 0.01, "weight_decay": 0.1}, "MARS"),
    "timm_laprop": Case("timm.optim:LaProp", {"lr": 0.01, "weight_decay": 0.1}, "LaProp"),
    "timm_nadamw": Case("timm.optim:NAdamW", {"lr": 0.01, "weight_decay": 0.1}, "NAdamW"),
    "adan": Case("sail-sg/Adan/adan.py:Adan", {"lr": 0.01, "weight_decay": 0.1}, "Adan"),
    "ademamix": Case(
        "apple/ml-ademamix/pytorch/ademamix.py:AdEMAMix",
        {"lr": 0.01, "weight_decay": 0.1, "alpha_warmup": 8, "beta3_warmup": 8}, "AdEMAMix",
    ),
    "soap": Case(
        f"{SOAP}:SOAP", {"lr": 0.01, "weight_decay": 0.1, "precondition_frequency": 3}, "SOAP",
        shapes=MATRICES, tolerance=1e-4,
    ),
    "muon": Case(
        f"{MUON}:SingleDeviceMuon", {"lr": 0.02, "weight_decay": 0.1}, "Muon",
        {"ns_dtype": "bfloat16"}, MATRICES, tolerance=0.03,
    ),
    "muon_with_adam": Case(
        f"{MUON}:SingleDeviceMuonWithAuxAdam", {}, "Mixed", {}, SMALL, MUON_GROUPS, tolerance=0.03,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ZeroCase:
    """A training with DeepSpeed.

    Args:
        stage: The stage of ZeRO.
        ranks: The number of processes.
        dtype: The dtype of parameters.
    """

    stage: int
    ranks: int
    dtype: torch.dtype = torch.float32


ZERO = {
    "zero1": ZeroCase(1, 2, torch.bfloat16),
    "zero2": ZeroCase(2, 2),
    "zero3": ZeroCase(3, 2),
}


def make_params(case: Case) -> list[nn.Parameter]:
    """Return the initial parameters of a training."""
    return [nn.Parameter(value) for value in initial_values(case.shapes)]


def initial_values(shapes: Iterable[tuple[int, ...]]) -> list[Tensor]:
    """Return the initial values of parameters."""
    numbers = np.random.default_rng(0)
    return [_repeated(numbers, shape) for shape in shapes]


def gradients_of(shapes: Iterable[tuple[int, ...]], step: int) -> list[Tensor]:
    """Return the gradients of a step, without those of `set_gradients` that depend on values."""
    numbers = np.random.default_rng(step + 1)
    return [_repeated(numbers, shape) for shape in shapes]


def set_gradients(params: Iterable[Tensor], step: int) -> None:
    """Set the gradients of a step, which depend on the step and on the parameters."""
    params = list(params)
    grads = gradients_of([tuple(param.shape) for param in params], step)
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad + param.detach() / 4


def _repeated(numbers: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    """Return multiples of 1/16 from -1 to 1, alike in rows that share one of two columns."""
    if len(shape) == 2 and shape[1] == 256:
        row = numbers.integers(-16, 17, size=256)
        array = np.stack([row * (1 + place % 2) for place in range(shape[0])])
    else:
        array = numbers.integers(-16, 17, size=shape)
    return torch.from_numpy(array.astype(np.float32) / 16)


def group_dicts(case: Case, params: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Return the groups of a training, each of one parameter."""
    return [
        {"params": [param], **options} for param, options in zip(params, case.groups, strict=True)
    ]


FOLDER = Path(__file__).parents[1] / "goldens/converted"
MIXED = ({"rule": "Muon", "ns_dtype": "bfloat16"}, {"rule": "AdamW"})


@cache
def recorded() -> dict[str, np.ndarray]:
    """Return the recorded parameters."""
    return dict(np.load(FOLDER / "values.npz"))


def state_of(name: str) -> dict[str, Any]:
    """Return the author's state after five steps."""
    from thalweg import checkpoint

    path = FOLDER / name
    return checkpoint.read_state(path if path.is_dir() else f"{path}.pt")


def resumed(name: str, cls: str = "", **options: Any) -> tuple[list[nn.Parameter], Any]:
    """Return the parameters after five steps, and a new optimizer for them."""
    from thalweg import optim

    case = CASES[name]
    params = make_params(case)
    for place, param in enumerate(params):
        param.data = torch.from_numpy(recorded()[f"{name}|5|{place}"].copy())
    groups = group_dicts(case, params)
    if case.name == "Mixed":
        groups = [{"params": [p], **rule} for p, rule in zip(params, MIXED, strict=True)]
    return params, getattr(optim, cls or case.name)(groups, **(options or case.ours))


def continue_training(name: str) -> float:
    """Return the relative difference of a converted training after ten steps."""
    params, optimizer = resumed(name)
    optimizer.load_state_dict(state_of(name), convert=True)
    for step in range(STEPS, 2 * STEPS):
        set_gradients(params, step)
        optimizer.step()
    starts, ends = (
        [recorded()[f"{name}|{count}|{place}"] for place in range(len(params))] for count in (5, 10)
    )
    return _difference([param.detach().numpy() for param in params], starts, ends)


def continue_zero(name: str) -> float:
    """Return the relative difference of a converted training of DeepSpeed after ten steps."""
    from thalweg import optim

    dtype, state = ZERO[name].dtype, state_of(name)
    starts = [state["state"][place]["master"] for place in range(len(SMALL))]
    params = [nn.Parameter(start.clone().to(dtype)) for start in starts]
    masters: dict[str, Any] = {"masters": True} if dtype == torch.bfloat16 else {}
    groups = [{"params": [param]} for param in params]
    optimizer: Any = optim.AdamW(groups, clip_grad_norm=1.0, **masters)
    optimizer.load_state_dict(state, convert=True)
    for step in range(STEPS, 2 * STEPS):
        for param, grad in zip(params, gradients_of(SMALL, step), strict=True):
            param.grad = grad.to(dtype)
        optimizer.step()
    values = [optimizer.state[p]["master"] if masters else p.detach() for p in params]
    ends = np.load(FOLDER / name / "values.npz")
    arrays = [value.numpy() for value in values], [start.numpy() for start in starts]
    return _difference(*arrays, [ends[str(place)] for place in range(len(params))])


def _difference(
    values: list[np.ndarray], starts: list[np.ndarray], ends: list[np.ndarray]
) -> float:
    """Return the largest difference from the ends, relative to the way from the starts."""
    return max(
        float(np.abs(value - end).max() / np.abs(end - start).max())
        for value, start, end in zip(values, starts, ends, strict=True)
    )
