"""Replayed steps with a tensor learning rate: equal to torch's arithmetic."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from bit_comparison import assert_same
from thalweg import optim
from thalweg._engines import torch_layout_probe
from thalweg.optim.step_adapter import TorchStepAdapter
from thalweg.optim.tensor_lr import TensorRate
from thalweg.rules.torch.adam import prepare

CLASSES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"momentum": 0.9, "weight_decay": 0.1}),
    ("Adam", {"weight_decay": 0.1}),
    ("AdamW", {"amsgrad": True}),
    ("RMSprop", {"momentum": 0.5}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("Adadelta", {}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("ASGD", {}),
    ("Rprop", {}),
    ("Lion", {}),
]
BY_TORCH = {"ASGD"}  # which do other things with a rate, too
STEPS = 8


def rates(dtype: torch.dtype) -> list[float]:
    dice = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.randint(-6, 1, (1000,), generator=dice).double()
    return (torch.rand(1000, generator=dice, dtype=torch.float64) * sizes).to(dtype).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tensor_rate_arithmetic_equals_torch(dtype: torch.dtype) -> None:
    for step, value in enumerate(rates(dtype)):
        rate = torch.tensor(value, dtype=dtype)
        kwargs: dict[str, Any] = {
            "beta1": 0.9,
            "beta2": 0.999,
            "weight_decay": 0.1 / (1 + step),
            "maximize": False,
        }
        kwargs |= {"decoupled_weight_decay": True, "t": step + 1}
        torch_scalars: dict[str, Any] = prepare(learning_rate=rate, **kwargs)
        scalars: dict[str, Any] = prepare(learning_rate=TensorRate.of(rate), **kwargs)
        for name in ("shrink", "step_size"):
            assert scalars[name].value == torch_scalars[name].item(), (name, value)
        assert (3 * TensorRate.of(rate) * 7).value == (3 * rate * 7).item()


UNSUPPORTED: list[Any] = [
    lambda rate: rate**2,
    lambda rate: 2.0**rate,
    lambda rate: rate + 1,
    lambda rate: 1 + rate,
    lambda rate: rate - 1,
    lambda rate: 1 / rate,
    lambda rate: rate / 0,
    lambda rate: rate * rate,
    lambda rate: rate * math.nan,
    lambda rate: rate * 1e300,
    lambda rate: rate * np.float64(2.0),
    lambda rate: rate * torch.tensor(2.0),
    lambda rate: rate > 0,
    lambda rate: abs(rate),
    lambda rate: hasattr(rate, "item"),
    float,
    math.sqrt,
    operator.index,
]


@pytest.mark.parametrize("function", UNSUPPORTED)
def test_unsupported_tensor_rate_operations_raise(function: Any) -> None:
    with pytest.raises(TypeError):
        function(TensorRate.of(torch.tensor(0.5)))


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor(math.nan), torch.tensor(math.inf), torch.tensor(1e20)]
    + [torch.tensor(1, dtype=dtype) for dtype in (torch.bfloat16, torch.float16, torch.int64)],
    ids=str,
)
def test_unusual_tensors_cannot_be_tensor_rates(tensor: Tensor) -> None:
    with pytest.raises(TypeError):
        TensorRate.of(tensor)


pytest_if_read = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)


@pytest.mark.one_in(3)
@pytest_if_read
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("name", "options"), CLASSES, ids=str)
def test_tensor_rate_steps_equal_full_steps(
    name: str,
    options: dict[str, Any],
    kind: torch.dtype,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_tensor_rate: list[bool] = []
    original = TorchStepAdapter.prepare_scalars

    def told(hooks: Any, key: Any) -> Any:
        is_tensor_rate.append(is_replayed)
        return original(hooks, key)

    monkeypatch.setattr(TorchStepAdapter, "prepare_scalars", told)
    rate, dice = torch.tensor(0.1, dtype=dtype), torch.Generator().manual_seed(0)
    start = torch.randn(5, generator=dice, dtype=kind)
    param, copied = Parameter(start.clone()), Parameter(start.clone())
    opt, twin = (getattr(optim, name)([tensor], lr=rate, **options) for tensor in (param, copied))
    for step in range(STEPS):
        param.grad = torch.randn(5, generator=dice, dtype=kind)
        copied.grad = param.grad.clone()
        is_replayed = step > 1
        opt.step()
        is_replayed = False
        twin.step_cache.forget_replay()
        twin.step()
        assert_same([param], [copied], f"{step}")
        for actual, expected in zip(
            opt.state[param].values(), twin.state[copied].values(), strict=True
        ):
            assert_same([actual], [expected], f"{step}")
        rate.mul_(0.77)
    assert opt.step_cache.replay.taken == STEPS - 2
    assert any(is_tensor_rate) is (dtype == torch.bfloat16 or name in BY_TORCH)


@pytest_if_read
def test_rate_may_change_its_type() -> None:
    rate = torch.tensor(0.1)
    param, copied = Parameter(torch.ones(3)), Parameter(torch.ones(3))
    opt, twin = (optim.AdamW([tensor], lr=rate) for tensor in (param, copied))
    for step in range(STEPS):
        param.grad = copied.grad = torch.full((3,), 1.0 + step)
        if step == 4:
            rate.data = rate.data.double() / 3
        if step == 6:
            rate.fill_(0.0)
        opt.step()
        twin.step_cache.forget_replay()
        twin.step()
        assert_same([param], [copied])
