"""Lengths of trainings, and the parameters of learning-rate policies that depend on them."""

from __future__ import annotations

from typing import Any

import pytest

from golden_files import Case
from openseq2seq_goldens import by_case
from thalweg.openseq2seq import policy_params, training_length
from thalweg.openseq2seq.optimizers import lr_policies
from thalweg.v1 import train

STEPS_300 = training_length(max_steps=300)


@by_case("lr_fill/")
def test_params_are_completed_as_recorded(case: Case) -> None:
    length = training_length(**case["run"])
    params = policy_params(getattr(lr_policies, case["policy"]), case["params"], length)
    assert params == case["expected"]["params"]
    assert length.last_step == case["expected"]["last_step"]
    assert length.steps_in_epoch == case["expected"]["steps_in_epoch"]


def test_passed_params_are_not_changed() -> None:
    params = {"learning_rate": 0.1}
    policy_params(lr_policies.poly_decay, params, STEPS_300)
    assert params == {"learning_rate": 0.1}


def test_functions_are_accepted_as_policies() -> None:
    params = policy_params(train.cosine_decay, {"learning_rate": 0.1}, STEPS_300)
    assert params == {"learning_rate": 0.1, "decay_steps": 300}


@pytest.mark.parametrize("explicit", [77, 0, None])
def test_explicit_decay_steps_switch_the_completion_off(explicit: int | None) -> None:
    params = {"learning_rate": 0.1, "decay_steps": explicit, "warmup_steps": 50}
    assert policy_params(lr_policies.poly_decay, params, STEPS_300) == params


EPOCHS: dict[str, Any] = {"num_epochs": 2, "dataset_size": 64, "batch_size_per_gpu": 8}


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({}, "Either max_steps or num_epochs has to be given"),
        ({**EPOCHS, "max_steps": 5}, "max_steps and num_epochs cannot both be given"),
        ({"num_epochs": 2}, "dataset_size has to be given for a training in epochs"),
        (EPOCHS | {"batch_size_per_gpu": None}, "batch_size_per_gpu has to be given"),
        (EPOCHS | {"dataset_size": 7}, "more examples than there are: dataset_size is 7"),
        (EPOCHS | {"workers": 9}, "workers 9, iter_size 1"),
        (EPOCHS | {"iter_size": 0}, "iter_size must be positive, not 0"),
        ({"max_steps": 0}, "max_steps must be positive, not 0"),
        ({"max_steps": 2.0}, r"max_steps must be an int, not 2\.0"),
        ({"max_steps": True}, "max_steps must be an int, not True"),
    ],
)
def test_meaningless_lengths_raise(run: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training_length(**run)


@pytest.mark.parametrize("begin", [{"begin_decay_at": 300}, {"warmup_steps": 400}])
def test_decay_that_never_begins_raises(begin: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="No steps are left to decay in"):
        policy_params(lr_policies.poly_decay, {"learning_rate": 0.1, **begin}, STEPS_300)


def test_a_policy_must_be_callable() -> None:
    with pytest.raises(TypeError, match="lr_policy must be a function of the global step"):
        policy_params("poly_decay", {}, STEPS_300)  # type: ignore[arg-type]
