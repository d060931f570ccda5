"""Optimizers of `torch.optim`, and the library's that continue with their state.

Hyperparameters are powers of two and their sums, so that they are the same numbers in each dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from thalweg._cli.registry import applied
from thalweg.keras import optimizers as keras
from thalweg.keras.optimizers import RuleOptimizer
from thalweg.rules import ADAM
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib

RATE, TINY = 0.125, 1e-30  # next to nothing beside the root of any gradient here
BETAS = (0.875, 0.96875)
POWERS = 1e-6  # those of TensorFlow 1 are float32, whatever the variables are
_BETAS = {"beta_1": BETAS[0], "beta_2": BETAS[1], "epsilon": TINY}
_V1_BETAS = {"beta1": BETAS[0], "beta2": BETAS[1], "epsilon": 0.0}
_RMS = {"alpha": 0.875, "eps": 2.0**-20}


@dataclass(frozen=True)
class Case:
    """A pair of optimizers that compute the same.

    Attributes:
        torch: Returns torch's optimizer of parameters.
        native: Returns the library's.
        warning: Text of the warning about differences; "" where nothing differs.
        bound: Largest relative distance of float64 variables after five steps.
    """

    torch: Callable[[Any], torch.optim.Optimizer]
    native: Callable[[], Any]
    warning: str = ""
    bound: float = 1e-13


def _of(cls: Any, **options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return partial(cls, lr=RATE, **options)


def _sgd(**options: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return _of(torch.optim.SGD, momentum=0.75, **options)


_HAT = "before bias correction"
_RATE_INSIDE = "has the learning rate in it"
_ROOT = "inside of the root"
_ADAM = _of(torch.optim.Adam, betas=BETAS, eps=TINY)
_ADAMAX = _of(torch.optim.Adamax, betas=BETAS, eps=TINY)
_EXACT = {"alpha": 0.875, "eps": TINY}
_WITH_MOMENTUM = {**_EXACT, "momentum": 0.75}
_ADADELTA = _of(torch.optim.Adadelta, rho=0.875, eps=2.0**-20)

CASES = {
    "SGD to SGD": Case(_of(torch.optim.SGD), lambda: keras.SGD(RATE)),
    "SGD to v1": Case(_of(torch.optim.SGD), lambda: train.GradientDescentOptimizer(RATE)),
    "momentum to SGD": Case(_sgd(), lambda: keras.SGD(RATE, 0.75), _RATE_INSIDE),
    "Nesterov to SGD": Case(_sgd(nesterov=True), lambda: keras.SGD(RATE, 0.75, True), _RATE_INSIDE),
    "momentum to v1": Case(_sgd(), lambda: train.MomentumOptimizer(RATE, 0.75)),
    "Nesterov to v1": Case(
        _sgd(nesterov=True), lambda: train.MomentumOptimizer(RATE, 0.75, use_nesterov=True)
    ),
    "momentum to MomentumW": Case(_sgd(), lambda: contrib.MomentumWOptimizer(0.0, RATE, 0.75)),
    "RMSprop": Case(
        _of(torch.optim.RMSprop, **_RMS),
        lambda: keras.RMSprop(RATE, 0.875, epsilon=2.0**-20),
    ),
    "centered RMSprop": Case(
        _of(torch.optim.RMSprop, centered=True, **_RMS),
        lambda: keras.RMSprop(RATE, 0.875, epsilon=2.0**-20, centered=True),
    ),
    "RMSprop with momentum": Case(
        _of(torch.optim.RMSprop, **_WITH_MOMENTUM),
        lambda: keras.RMSprop(RATE, 0.875, 0.75, TINY),
        f"{_ROOT}.*{_RATE_INSIDE}",
    ),
    "centered RMSprop with momentum": Case(
        _of(torch.optim.RMSprop, centered=True, **_WITH_MOMENTUM),
        lambda: keras.RMSprop(RATE, 0.875, 0.75, TINY, centered=True),
        f"{_ROOT}.*{_RATE_INSIDE}",
    ),
    "RMSprop to v1": Case(
        _of(torch.optim.RMSprop, **_EXACT),
        lambda: train.RMSPropOptimizer(RATE, 0.875, 0.0, TINY),
        _ROOT,
    ),
    "RMSprop with momentum to v1": Case(
        _of(torch.optim.RMSprop, **_WITH_MOMENTUM),
        lambda: train.RMSPropOptimizer(RATE, 0.875, 0.75, TINY),
        f"{_ROOT}.*{_RATE_INSIDE}",
    ),
    "centered RMSprop with momentum to v1": Case(
        _of(torch.optim.RMSprop, centered=True, **_WITH_MOMENTUM),
        lambda: train.RMSPropOptimizer(RATE, 0.875, 0.75, TINY, centered=True),
        f"{_ROOT}.*{_RATE_INSIDE}",
    ),
    "Adagrad": Case(
        _of(torch.optim.Adagrad, eps=2.0**-20, lr_decay=0.25, initial_accumulator_value=0.5),
        lambda: keras.Adagrad(RATE, epsilon=2.0**-20, decay=0.25),
    ),
    "Adagrad to v1": Case(_of(torch.optim.Adagrad, eps=0.0), lambda: train.AdagradOptimizer(RATE)),
    "Adadelta": Case(_ADADELTA, lambda: keras.Adadelta(RATE, 0.875, 2.0**-20)),
    "Adadelta to v1": Case(_ADADELTA, lambda: train.AdadeltaOptimizer(RATE, 0.875, 2.0**-20)),
    "Adam": Case(_ADAM, lambda: keras.Adam(RATE, **_BETAS), _HAT),
    "Adam to a rule": Case(
        _ADAM,
        lambda: RuleOptimizer(ADAM, RATE, beta1=BETAS[0], beta2=BETAS[1], epsilon=TINY),
        _HAT,
    ),
    "AMSGrad": Case(
        _of(torch.optim.Adam, betas=BETAS, eps=TINY, amsgrad=True),
        lambda: keras.Adam(RATE, amsgrad=True, **_BETAS),
        _HAT,
    ),
    "Adam to v1": Case(
        _of(torch.optim.Adam, betas=BETAS, eps=0.0),
        lambda: train.AdamOptimizer(RATE, **_V1_BETAS),
        bound=POWERS,
    ),
    "AdamW to v1": Case(
        _of(torch.optim.AdamW, betas=BETAS, eps=0.0, weight_decay=0.25),
        lambda: contrib.AdamWOptimizer(RATE * 0.25, RATE, **_V1_BETAS),
        bound=POWERS,
    ),
    "NAdam": Case(
        _of(torch.optim.NAdam, betas=BETAS, eps=TINY, momentum_decay=2.0**-8),
        lambda: keras.Nadam(RATE, **_BETAS, schedule_decay=2.0**-8),
        bound=1e-8,  # 0.96 is a float32 in TensorFlow, and so is the product in torch
    ),
    "Adamax": Case(_ADAMAX, lambda: keras.Adamax(RATE, **_BETAS), "divides here"),
    "Adamax to v1": Case(
        _of(torch.optim.Adamax, betas=BETAS, eps=0.0),
        lambda: contrib.AdaMaxOptimizer(RATE, **_V1_BETAS),
    ),
}
SHAPES = {"w": (7,), "b": (2, 3)}


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def parameters(dtype: torch.dtype) -> dict[str, torch.nn.Parameter]:
    return {
        name: torch.nn.Parameter(normal(shape, place).to(dtype))
        for place, (name, shape) in enumerate(SHAPES.items())
    }


def gradients(number: int, dtype: torch.dtype) -> list[Tensor]:
    return [
        normal(shape, 100 + 10 * number + place).to(dtype)
        for place, shape in enumerate(SHAPES.values())
    ]


def torch_step(optimizer: torch.optim.Optimizer, number: int) -> None:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    for param, grad in zip(params, gradients(number, params[0].dtype), strict=True):
        param.grad = grad
    optimizer.step()


def our_step(optimizer: Any, params: list[Any], number: int) -> None:
    applied(optimizer)(list(zip(gradients(number, params[0].dtype), params, strict=True)))
