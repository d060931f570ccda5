"""State of `optimize_loss`: saved and loaded as a whole, to the bit, or refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attack.states import same
from openseq2seq_small import HALF, make_step
from thalweg import Variable
from thalweg.v1 import train
from thalweg.v1.contrib.opt import MovingAverageOptimizer

skips = [False]


def test_a_loaded_master_keeps_its_bits() -> None:
    w, v = (Variable(torch.ones(2, dtype=HALF), name="w") for _ in range(2))
    step, twin = make_step([w], rate=1e-4), make_step([v], rate=1e-4)
    step.apply_gradients([torch.ones(2, dtype=HALF)])
    twin.optimizer.load_state_dict(step.optimizer.state_dict(), [v])
    for stepper in (step, twin):
        stepper.apply_gradients([torch.ones(2, dtype=HALF)])
    assert torch.equal(step.optimizer.get_master(w), twin.optimizer.get_master(v))


@pytest.mark.parametrize("names", [("a", "a", "a#1"), ("a#1", "a", "a"), ("a", "a#0", "a")])
def test_state_of_similarly_named_variables_is_complete(names: tuple[str, ...]) -> None:
    variables = [Variable([1.0], name=name) for name in names]
    step = make_step(variables, "Momentum", params={"momentum": 0.9}, dtype=torch.float32)
    step.apply_gradients([torch.ones(1) for _ in names])
    assert sum("/" in name for name in step.state_dict()) == 3


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copying_a_step_raises(duplicate: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="load state_dict"):
        duplicate(make_step([Variable([1.0])], dtype=torch.float32))


def averages_of_adam(learning_rate: Any) -> Any:
    return MovingAverageOptimizer(train.AdamOptimizer(learning_rate), 0.5)


@pytest.mark.parametrize("dtype", ["mixed", torch.float32], ids=str)
def test_averages_inside_of_a_step_are_part_of_its_state(dtype: Any) -> None:
    w = Variable(torch.ones(2, dtype=HALF if dtype == "mixed" else torch.float32), name="w")
    step = make_step([w], averages_of_adam, dtype=dtype)
    step.apply_gradients([torch.ones_like(w)])
    names = ["w/m", "w/v", "w/ExponentialMovingAverage", "beta1_power", "beta2_power"]
    masters = ["w/master"] if dtype == "mixed" else []
    assert list(step.state_dict()) == ["global_step", *masters, *names]
    assert step.state_dict()["w/ExponentialMovingAverage"].dtype == torch.float32


def test_state_dict_does_not_create_averages() -> None:
    with_state_dict, without_reads = (
        make_step(
            [Variable(torch.zeros(2), name="w")],
            averages_of_adam,
            dtype=torch.float32,
            iter_size=2,
            on_horovod=True,
            skip_update_ph=lambda: skips[0],
        )
        for _ in range(2)
    )
    for skips[0] in (True, False, True, False):
        for step in (with_state_dict, without_reads):
            step.apply_gradients([torch.ones(2)])
        state = with_state_dict.state_dict()
        with_state_dict.load_state_dict(state)
    assert same(with_state_dict.state_dict(), without_reads.state_dict())
