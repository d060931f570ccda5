"""The eight optimizers of Keras, a row each, and small helpers for the tests of that face."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from thalweg.keras import optimizers


@dataclass(frozen=True)
class Row:
    """One optimizer: how it is made, which slots it keeps, and what its configuration holds."""

    cls: type[optimizers.Optimizer]
    slots: tuple[str, ...]
    config: dict[str, Any]  # every key but "name", with its default
    changed: dict[str, Any] = field(default_factory=dict)  # other values, for round trips

    @property
    def name(self) -> str:
        return self.cls.__name__

    def make(self, **kwargs: Any) -> Any:
        """With slots wherever the optimizer can have some."""
        extra = {"momentum": 0.9} if self.name == "SGD" else {}
        return self.cls(**{"learning_rate": 0.1, **extra, **kwargs})


_EPSILON = {"learning_rate": 0.001, "decay": 0.0, "epsilon": 1e-7}
_ADAM = {**_EPSILON, "beta_1": 0.9, "beta_2": 0.999}
_BETAS = {"learning_rate": 0.5, "beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}
ROWS = (
    Row(
        optimizers.SGD,
        ("momentum",),
        {"learning_rate": 0.01, "decay": 0.0, "momentum": 0.0, "nesterov": False},
        {"learning_rate": 0.5, "decay": 0.25, "momentum": 0.75, "nesterov": True},
    ),
    Row(
        optimizers.Adagrad,
        ("accumulator",),
        {**_EPSILON, "initial_accumulator_value": 0.1},
        {"learning_rate": 0.5, "decay": 0.25, "initial_accumulator_value": 0.0, "epsilon": 1e-3},
    ),
    Row(
        optimizers.Adadelta,
        ("accum_grad", "accum_var"),
        {**_EPSILON, "rho": 0.95},
        {"learning_rate": 0.5, "decay": 0.25, "rho": 0.75, "epsilon": 1e-3},
    ),
    Row(
        optimizers.RMSprop,
        ("rms",),
        {**_EPSILON, "rho": 0.9, "momentum": 0.0, "centered": False},
        {"learning_rate": 0.5, "rho": 0.75, "momentum": 0.5, "epsilon": 1e-3, "centered": True},
    ),
    Row(optimizers.Adamax, ("m", "v"), _ADAM, _BETAS),
    Row(optimizers.Adam, ("m", "v"), {**_ADAM, "amsgrad": False}, {**_BETAS, "amsgrad": True}),
    Row(optimizers.Nadam, ("m", "v"), {**_ADAM, "decay": 0.004}, _BETAS),
    Row(
        optimizers.Ftrl,
        ("accumulator", "linear"),
        {
            "learning_rate": 0.001,
            "decay": 0.0,
            "learning_rate_power": -0.5,
            "initial_accumulator_value": 0.1,
            "l1_regularization_strength": 0.0,
            "l2_regularization_strength": 0.0,
            "l2_shrinkage_regularization_strength": 0.0,
            "beta": 0.0,
        },
        {
            "learning_rate": 0.5,
            "learning_rate_power": -0.25,
            "initial_accumulator_value": 0.5,
            "l1_regularization_strength": 0.125,
            "l2_regularization_strength": 0.25,
            "l2_shrinkage_regularization_strength": 0.5,
            "beta": 0.75,
        },
    ),
)
all_rows = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
both_engines = pytest.mark.parametrize("engine", ["reference", "cpu"])


def pair(shape: tuple[int, ...] = (3,), dtype: Any = "float32") -> list[Any]:
    count = int(np.prod(shape))
    values = np.linspace(-1, 1, count).reshape(shape)
    return [thalweg.Variable(values + k, name, dtype=dtype) for k, name in enumerate("ab")]


def gradients(variables: list[Any], step: int = 1) -> list[tuple[torch.Tensor, Any]]:
    pairs = []
    for number, var in enumerate(variables):
        count = torch.arange(var.numel(), dtype=torch.float64).reshape(var.shape)
        pairs.append((torch.cos(count * 0.7 + step + number).to(var.dtype), var))
    return pairs


def train(opt: Any, variables: list[Any], steps: int = 2, first: int = 1) -> None:
    for step in range(first, first + steps):
        opt.apply_gradients(gradients(variables, step))


def snapshot(opt: Any, variables: list[Any]) -> list[tuple[str, torch.Tensor]]:
    tensors = [(f"variable {k}", var) for k, var in enumerate(variables)]
    tensors += [(weight.name, weight) for weight in opt.weights]
    return [(name, tensor.detach().clone()) for name, tensor in tensors]


def assert_same_bits(
    actual: list[tuple[str, torch.Tensor]], expected: list[tuple[str, torch.Tensor]]
) -> None:
    """Fail with the name of the first tensor that differs."""
    assert [name for name, _ in actual] == [name for name, _ in expected]
    for (name, a), (_, b) in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype, name
        is_equal = torch.equal(a.flatten().view(torch.uint8), b.flatten().view(torch.uint8))
        assert is_equal, f"{name}: {a} is not {b}"


def mixed_variables() -> list[thalweg.Variable]:
    kinds = ["float32", "float64", "bfloat16", "float16"]
    return [thalweg.Variable(np.linspace(-1, 1, 5), f"w{k}", dtype=k) for k in kinds]
