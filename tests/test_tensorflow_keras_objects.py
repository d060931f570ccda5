"""Object checkpoints of Keras 2.11 and later, whose optimizers list their variables."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from golden_files import FOLDER
from thalweg.checkpoint import tensorflow
from thalweg.errors import OptionError
from thalweg.keras.optimizers import SGD

HOME = FOLDER / "keras_objects"
# What the checkpoint does not hold; defaults are those of Keras.
GIVEN: dict[str, dict[str, Any]] = {
    "adam": {},
    "amsgrad": {},
    "adamax": {},
    "nadam": {},
    "sgd": {"momentum": 0.0},  # its slots are there, and mean nothing
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "rmsprop": {"momentum": 0.5},
    "adagrad": {},
    "adadelta": {},
    "ftrl": {},
}


@cache
def _arrays() -> Any:
    return np.load(HOME / "cases.npz")


def _variables(file: tensorflow.TensorFlowCheckpoint) -> dict[str, thalweg.Variable]:
    names = file.other_names
    return {
        names[path]: thalweg.Variable(each.tensor() * 0, names[path])
        for path, each in file.variables.items()
    }


@pytest.mark.parametrize("name", GIVEN)
def test_five_more_steps_have_the_values_of_keras(name: str) -> None:
    file = tensorflow.load(HOME / name)
    assert file.step == 5
    assert not file.unknown
    own = _variables(file)
    opt = tensorflow.restore(file, own, **GIVEN[name])
    assert opt.iterations.item() == 5
    for number in range(5):
        opt.apply_gradients(
            [
                (torch.from_numpy(_arrays()[f"{name}|gradient|{title}"][number].copy()), var)
                for title, var in own.items()
            ]
        )
    for title, var in own.items():
        wanted = _arrays()[f"{name}|after|{title}"]
        np.testing.assert_allclose(var.numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "nesterov", "rmsprop"])
def test_momentum_is_asked_for(name: str) -> None:
    file = tensorflow.load(HOME / name)
    own = _variables(file)
    with pytest.raises(OptionError, match="does not hold momentum of"):
        tensorflow.restore(file, own)
    assert all(not var.detach().any() for var in own.values())


def test_a_momentum_that_was_used_is_not_dropped() -> None:
    file = tensorflow.load(HOME / "nesterov")
    with pytest.raises(thalweg.CheckpointMismatchError, match="momentum' belongs to nothing here"):
        tensorflow.restore(file, _variables(file), optimizer=SGD(0.1))
