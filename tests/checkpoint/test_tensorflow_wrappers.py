"""Saver files restored into optimizers that wrap another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from thalweg import v1
from thalweg._formats.stored_tensor import of_tensor
from thalweg.checkpoint import tensorflow
from thalweg.checkpoint.tensorflow.detection.saver_names import sorted_names
from thalweg.v1.contrib import opt as contrib
from thalweg.v1.train.experimental import (
    DynamicLossScale,
    FixedLossScale,
    MixedPrecisionLossScaleOptimizer,
)

train = v1.train
GRADIENTS = torch.from_numpy(np.random.default_rng(5).normal(size=(8, 4, 3)).astype(np.float32))
FACTORIES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: train.GradientDescentOptimizer(0.1),
    "momentum": lambda: train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: train.AdamOptimizer(0.01, beta1=0.8),
    "rmsprop": lambda: train.RMSPropOptimizer(0.01, momentum=0.5),
    "centered": lambda: train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "ftrl": lambda: train.FtrlOptimizer(0.1),
    "named": lambda: train.MomentumOptimizer(0.05, 0.9, name="Mine"),
    "lazy": lambda: contrib.LazyAdamOptimizer(0.01),
}  # fmt: skip
SCALE = {"current_loss_scale": torch.tensor(16.0), "good_steps": torch.tensor(2)}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda opt: MixedPrecisionLossScaleOptimizer(opt, DynamicLossScale(8.0, 4, 2.0)),
    "fixed": lambda opt: MixedPrecisionLossScaleOptimizer(opt, FixedLossScale(8.0)),
    "averaged": lambda opt: contrib.MovingAverageOptimizer(opt, 0.5),
    "clipped": lambda opt: contrib.VariableClippingOptimizer(opt, {}, 100.0),
    "twice": lambda opt: MixedPrecisionLossScaleOptimizer(
        contrib.VariableClippingOptimizer(opt, {}, 100.0), DynamicLossScale(8.0, 4, 2.0)
    ),
    "around averages": lambda opt: contrib.VariableClippingOptimizer(
        contrib.MovingAverageOptimizer(opt, 0.5), {}, 100.0
    ),
}


def variable() -> thalweg.Variable:
    return thalweg.Variable(torch.ones(4, 3), "enc/w")


def step(optimizer: Any, var: thalweg.Variable, numbers: range) -> None:
    for number in numbers:
        optimizer.apply_gradients([(GRADIENTS[number], var)])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", FACTORIES)
def test_training_resumes_inside_a_wrapper(name: str, wrapper: str, tmp_path: Path) -> None:
    w, source_opt = variable(), FACTORIES[name]()
    step(source_opt, w, range(4))
    tensorflow.save(tmp_path / "model", source_opt, {"enc/w": w}, kind="tf1")
    tensors = dict(tensorflow.load(tmp_path / "model").tensors())
    is_dynamic, is_averaged = wrapper in ("dynamic", "twice"), "averag" in wrapper
    if is_dynamic:
        tensors |= {key: of_tensor(tensor) for key, tensor in SCALE.items()}
    if is_averaged:
        tensors["enc/w/ExponentialMovingAverage"] = of_tensor(torch.full((4, 3), 7.0))
    target, optimizer = variable(), WRAPPERS[wrapper](FACTORIES[name]())
    file = sorted_names("run", tensors)
    assert tensorflow.restore(file, {"enc/w": target}, optimizer=optimizer) is optimizer
    assert torch.equal(target, w)
    step(source_opt, w, range(4, 6))
    step(optimizer, target, range(4, 6))
    assert torch.equal(target, w)
    if is_dynamic:
        # The second of two more good steps doubles the scale.
        scale = optimizer._loss_scale
        assert (scale().item(), scale._num_good_steps.item()) == (32, 0)
    if is_averaged:
        averaging = optimizer if wrapper == "averaged" else optimizer._opt
        initial = averaging.average(target).mean().item()
        assert 1 < initial < 7  # two steps have halved the distance twice


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_loss_scale_beside_an_optimizer_class_is_restored(name: str) -> None:
    tensors = {"enc/w": torch.ones(4, 3), **SCALE}
    if name == "momentum":
        tensors["enc/w/Momentum"] = torch.ones(4, 3)
    cls, kwargs = type(FACTORIES[name]()), {"momentum": 0.9} if name == "momentum" else {}
    file = sorted_names("run", {key: of_tensor(tensor) for key, tensor in tensors.items()})
    scale, w = DynamicLossScale(8.0), variable()
    opt = tensorflow.restore(
        file, {"enc/w": w}, optimizer=cls, loss_scale=scale, learning_rate=0.1, **kwargs
    )
    assert (type(opt), scale().item(), scale._num_good_steps.item()) == (cls, 16, 2)


@pytest.mark.parametrize("wrapper", ["dynamic", "twice"])
def test_file_without_loss_scale_does_not_restore_the_wrapper(wrapper: str) -> None:
    tensors = {"enc/w": torch.zeros(4, 3), "enc/w/Momentum": torch.ones(4, 3)}
    file = sorted_names("run", {key: of_tensor(tensor) for key, tensor in tensors.items()})
    w, optimizer = variable(), WRAPPERS[wrapper](FACTORIES["momentum"]())
    with pytest.raises(thalweg.CheckpointMismatchError, match="current_loss_scale' is missing"):
        tensorflow.restore(file, {"enc/w": w}, optimizer=optimizer)
    assert w.sum().item() == 12


def test_loss_scale_state_without_slots_is_restored() -> None:
    optimizer = WRAPPERS["dynamic"](FACTORIES["sgd"]())
    state = {**optimizer.state_dict(), "loss_scale/current_loss_scale": torch.tensor(64.0)}
    optimizer.load_state_dict(state)
    assert optimizer._loss_scale().item() == 64
    with pytest.raises(thalweg.CheckpointMismatchError, match="is missing"):
        optimizer.load_state_dict({})
