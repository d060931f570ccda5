"""Inputs and errors that torch tests its optimizers with, read from the installed torch."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import MagicMock

import torch
from torch.optim import lr_scheduler

from thalweg import optim
from thalweg.optim.rule_names import KINDS

# What torch's table takes from these says which tests are skipped; they take seconds to import.
UNUSED = [
    f"torch.testing._internal.common_{name}" for name in ("device_type", "methods_invocations")
]
STAND_INS = {name: MagicMock() for name in UNUSED if name not in sys.modules}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    sys.modules.update(STAND_INS)
    try:
        from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db
    finally:
        for name in STAND_INS:
            del sys.modules[name]
        if STAND_INS:  # whoever else wants torch's table is to have all of it
            sys.modules.pop("torch.testing._internal.common_optimizers", None)

CLASSES = [
    name for name in KINDS
    if issubclass(getattr(optim, name), getattr(torch.optim, name, ()))
]  # fmt: skip
INFOS = {info.name: info for info in optim_db if info.name in CLASSES}
STEP_ERROR = OptimizerErrorEnum.STEP_ERROR
SHAPES = ((33, 7), (5,), (), (0, 3))
NO_EMPTY = ("Adafactor",)  # whose step of torch divides by the number of elements
ROWS = ((9, 4), (6, 2, 3))
_OTHER_WAYS = ("foreach", "fused", "differentiable", "capturable")


@dataclass(frozen=True)
class Input:
    """A class with arguments."""

    name: str
    arguments: dict[str, Any]
    described: str

    def make(self, module: Any, params: Any, **arguments: Any) -> Any:
        """Return the optimizer of `torch.optim` (which loops over tensors) or `thalweg.optim`."""
        cls = getattr(module, self.name)
        options = {**copy.deepcopy(self.arguments), **arguments}
        if module is torch.optim:
            # torch's own choice on the CPU, if nothing is said
            options |= {"foreach": False} if self.name != "SparseAdam" else {}
        return cls(params, **options)

    def __str__(self) -> str:
        return f"{self.name}-{self.described or 'default'}".replace(" ", "_")


def _inputs() -> Iterator[Input]:
    for name, info in INFOS.items():
        for info_input in info.optim_inputs_func(device="cpu"):
            if not any(info_input.kwargs.get(key) for key in _OTHER_WAYS):
                yield Input(name, dict(info_input.kwargs), info_input.desc)


INPUTS = list(_inputs())


def describe_inputs() -> str:
    return "\n".join(f"{case} {sorted(case.arguments.items())!r}" for case in INPUTS)


def shapes_of(name: str) -> Any:
    """Return shapes of parameters that a class of torch's takes."""
    if name == "SparseAdam":
        return ROWS
    return tuple(shape for shape in SHAPES if name not in NO_EMPTY or 0 not in shape)


def params_of(dtype: torch.dtype, shapes: Any = SHAPES) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, dtype=dtype, generator=generator).requires_grad_() for s in shapes]


def set_grads(params: list[torch.Tensor], step: int, sparse: bool = False) -> None:
    generator = torch.Generator().manual_seed(1000 + step)
    for param in params:
        if sparse:
            rows = torch.randint(len(param), (4,), generator=generator)
            values = torch.randn((4, *param.shape[1:]), dtype=param.dtype, generator=generator)
            param.grad = torch.sparse_coo_tensor(
                rows[None], values, param.shape, check_invariants=True
            )
        else:
            param.grad = torch.randn(param.shape, dtype=param.dtype, generator=generator)


# What torch has to set rates with.
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=4),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=True),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=10),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.8)], [3]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.8)]
    ),
}
