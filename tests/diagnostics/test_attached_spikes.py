"""`Spikes.attach`: steps of Keras, TensorFlow 1 and OpenSeq2Seq that are left out or taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from thalweg import Variable, diagnostics
from thalweg.errors import (
    CheckpointMismatchError,
    FailedPreconditionError,
    InvalidTypeError,
    NumericsWarning,
)
from thalweg.keras import optimizers as keras
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.v1 import train

BAD = 24


def gradient(step: int) -> torch.Tensor:
    scale = 1e4 if step == BAD else 1.0
    return scale * torch.randn(3, generator=torch.Generator().manual_seed(step))


def of_keras(weight: Variable) -> tuple[Any, Callable[[int], Any]]:
    optimizer = keras.Adam(0.01, global_clipnorm=1.0)
    return optimizer, lambda step: optimizer.apply_gradients([(gradient(step), weight)])


def of_v1(weight: Variable) -> tuple[Any, Callable[[int], Any]]:
    optimizer = train.AdamOptimizer(0.01)
    return optimizer, lambda step: optimizer.apply_gradients([(gradient(step), weight)])


def of_openseq2seq(weight: Variable) -> tuple[Any, Callable[[int], Any]]:
    number = [0]
    train_op = optimize_loss(
        lambda: (weight * gradient(number[0])).sum(), "Momentum", {"momentum": 0.9},
        lambda count: 0.01, var_list=[weight],
    )  # fmt: skip

    def take(step: int) -> None:
        number[0] = step
        train_op()

    return train_op, take


FACES = {"keras": of_keras, "v1": of_v1, "openseq2seq": of_openseq2seq}


@pytest.mark.parametrize("name", FACES)
def test_skipped_step_is_as_if_it_had_not_been(name: str) -> None:
    weights = [Variable([1.0, 2.0, 3.0], name="w") for _ in range(2)]
    spikes = diagnostics.Spikes("skip")
    optimizer, take = FACES[name](weights[0])
    _, take_twin = FACES[name](weights[1])
    spikes.attach(optimizer)
    for step in range(1, BAD + 3):
        former_weight = weights[0].detach().clone()
        take(step)
        if step == BAD:
            assert torch.equal(weights[0], former_weight)
        else:
            take_twin(step)
    assert torch.equal(*weights)
    assert [action.steps for action in spikes.actions] == [range(BAD, BAD + 1)]


def test_rollback_of_keras_restores_the_state() -> None:
    weight, twin = (Variable([1.0, 2.0, 3.0], name="w") for _ in range(2))
    (optimizer, take), (twin_optimizer, take_twin) = of_keras(weight), of_keras(twin)
    spikes = diagnostics.Spikes("rollback", keep=3)
    for step in range(1, 4):  # the first ones are not judged
        take(step)
        take_twin(step)
    spikes.attach(optimizer)
    for step in range(4, BAD):
        take(step)
    with pytest.warns(NumericsWarning, match="skip batches"):
        take(BAD)
    # Detectors count from the first step that they judge.
    for step in range(4, spikes.actions[0].steps[0] + 3):
        take_twin(step)
    pairs = zip([weight, *optimizer.weights], [twin, *twin_optimizer.weights], strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


def test_states_of_detectors_continue_their_bands() -> None:
    resumed = diagnostics.Spikes("rollback", keep=2)
    optimizer, take = of_keras(Variable([1.0, 2.0, 3.0], name="w"))
    spikes = diagnostics.Spikes("skip")
    spikes.attach(optimizer)
    for step in range(1, BAD):
        take(step)
    optimizer, take = of_keras(Variable([1.0, 2.0, 3.0], name="w"))
    resumed.attach(optimizer)
    resumed.load_state_dict(spikes.state_dict())
    take(BAD)
    assert [action.warning.step for action in resumed.actions] == [BAD]
    with pytest.raises(CheckpointMismatchError, match="history of steps is 'x'"):
        resumed.load_state_dict({"history": "x"})
    with pytest.raises(CheckpointMismatchError, match=r"the key 'history', .* \['step'\]"):
        resumed.load_state_dict({"step": 3})


def test_attach_rejects_what_it_cannot_judge() -> None:
    optimizer, _ = of_v1(Variable([1.0, 2.0, 3.0]))
    with pytest.raises(FailedPreconditionError, match="have no action"):
        diagnostics.Spikes().attach(optimizer)
    with pytest.raises(NotImplementedError, match="cannot be taken back"):
        diagnostics.Spikes("rollback").attach(optimizer)
    with pytest.raises(InvalidTypeError, match="optimizer must be"):
        diagnostics.Spikes("skip").attach(torch.nn.Linear(1, 1))
    diagnostics.Spikes("skip").attach(optimizer)
    with pytest.raises(FailedPreconditionError, match="by other Spikes already"):
        diagnostics.Spikes("skip").attach(optimizer)
