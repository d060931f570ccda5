"""Hyperparameters: before and after they become variables; callables, schedules, decay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from keras_table import Row, all_rows, gradients, pair, train
from thalweg.keras.optimizers import SGD, Adam, RMSprop, schedules

HALVING = schedules.ExponentialDecay(1.0, 1, 0.5)


def moved(opt: Any, steps: int = 1) -> list[float]:
    """Return how far each step with gradient 1 moves a variable down."""
    w, moves = thalweg.Variable(0.0, dtype="float64"), []
    for _ in range(steps):
        previous = w.item()
        opt.apply_gradients([(1.0, w)])
        moves.append(previous - w.item())
    return moves


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (0.5, torch.float32),
        (1, torch.int32),
        (np.float64(0.1), torch.float64),
        (np.float32(0.5), torch.float32),
        (np.array(0.1), torch.float64),
    ],
)
def test_number_becomes_a_variable(value: Any, dtype: torch.dtype) -> None:
    rate = SGD(value).learning_rate
    assert isinstance(rate, thalweg.Variable)
    assert (rate.dtype, rate.item(), rate.trainable) == (dtype, value, False)


def test_hyper_variables_have_tensorflow_names() -> None:
    opt = Adam()
    names = [opt.learning_rate.name, opt.beta_1.name, opt.beta_2.name, opt.decay.name]
    assert names == [f"Adam/{name}:0" for name in ("learning_rate", "beta_1", "beta_2", "decay")]


def test_hyper_variables_are_not_weights() -> None:
    opt, w = SGD(0.1), thalweg.Variable(1.0)
    opt.apply_gradients([(1.0, w)])
    assert [weight.name for weight in opt.weights] == ["SGD/iter:0"]


def test_float_passes_through_float32() -> None:
    assert moved(SGD(0.1)) == [float(np.float32(0.1))]


def test_float64_hyperparameter_keeps_its_precision() -> None:
    assert moved(SGD(np.float64(0.1))) == [0.1]


def test_set_before_creation_replaces_the_raw_value() -> None:
    opt = SGD(0.1)
    opt.learning_rate = 1
    assert opt.get_config()["learning_rate"] == 1
    assert opt.learning_rate.dtype == torch.int32


def test_set_after_creation_assigns_into_the_variable() -> None:
    opt = SGD(0.5)
    rate = opt.learning_rate
    opt.learning_rate = 0.25
    assert opt.learning_rate is rate
    assert rate.item() == 0.25


@pytest.mark.parametrize("value", [torch.tensor(0.25), np.float64(0.25), thalweg.Variable(0.25)])
def test_set_to_a_tensor_assigns(value: Any) -> None:
    opt = SGD(0.5)
    train(opt, pair())
    opt.learning_rate = value
    assert opt.learning_rate.item() == 0.25


def test_assign_to_the_variable_itself() -> None:
    opt = SGD(0.5)
    assert moved(opt) == [0.5]
    opt.learning_rate.assign(0.25)
    assert moved(opt) == [0.25]


def test_set_between_fast_steps_takes_effect() -> None:
    opt, w = SGD(1.0), thalweg.Variable(0.0)
    for rate in (1.0, 2.0, 4.0, 8.0):
        opt.learning_rate = rate
        opt.apply_gradients([(torch.tensor(1.0), w)])
    assert w.item() == -15.0


def test_fraction_over_an_integer_variable_raises() -> None:
    opt = SGD(1)
    assert opt.learning_rate.item() == 1
    with pytest.raises(TypeError) as raised:
        opt.learning_rate = 0.5
    assert str(raised.value) == (
        "learning_rate was given as a whole number and is an int32 variable by now, which cannot"
        " become 0.5. Give a float to the constructor."
    )
    assert opt.learning_rate.item() == 1
    opt.learning_rate = 2.0
    assert opt.learning_rate.item() == 2


@all_rows
def test_lr_is_an_alias(row: Row) -> None:
    opt = row.make()
    opt.lr = 0.25
    assert opt.lr is opt.learning_rate
    assert opt.get_config()["learning_rate"] == 0.25


@all_rows
def test_dir_lists_hyperparameters_and_lr(row: Row) -> None:
    assert {"lr", "learning_rate", "decay"} <= set(dir(row.make()))


def test_unknown_attribute_raises() -> None:
    with pytest.raises(AttributeError, match="'SGD' object has no attribute 'beta_1'"):
        _ = SGD().beta_1


def test_callable_attribute_is_called() -> None:
    assert SGD(lambda: 0.25).learning_rate == 0.25


def test_schedule_attribute_is_the_schedule() -> None:
    assert SGD(HALVING).learning_rate is HALVING


def test_callable_is_called_once_a_step() -> None:
    calls: list[int] = []
    opt = SGD(lambda: calls.append(1) or 0.5)
    variables = [thalweg.Variable(1.0), thalweg.Variable(1.0, dtype="float64")]
    for step in range(1, 4):
        opt.apply_gradients(gradients(variables, step))
        assert len(calls) == step


def test_callable_replacing_a_variable_raises() -> None:
    opt = SGD(0.5)
    train(opt, pair())
    with pytest.raises(TypeError, match="learning_rate is a variable by now"):
        opt.learning_rate = lambda: 0.1
    assert opt.learning_rate.item() == 0.5


def test_callable_may_be_replaced() -> None:
    opt = SGD(lambda: 1.0)
    assert moved(opt) == [1.0]
    opt.learning_rate = lambda: 0.5
    assert moved(opt) == [0.5]
    opt.learning_rate = 0.25
    assert moved(opt) == [0.25]
    assert opt.learning_rate == 0.25


def test_schedule_reads_iterations_before_the_step() -> None:
    assert moved(SGD(HALVING), 3) == [1.0, 0.5, 0.25]


def test_number_replacing_a_schedule_is_a_plain_float() -> None:
    opt = SGD(HALVING)
    moved(opt)
    opt.learning_rate = 0.125
    assert moved(opt) == [0.125]
    assert type(opt.learning_rate) is float


def test_schedule_replaces_a_rate_variable() -> None:
    opt = SGD(0.25)
    assert moved(opt) == [0.25]
    opt.learning_rate = HALVING
    assert moved(opt) == [0.5]
    assert opt.learning_rate is HALVING


def test_tensor_hyperparameter_is_read_at_each_step() -> None:
    rate = torch.tensor(0.5)
    opt = SGD(rate)
    assert moved(opt) == [0.5]
    rate.fill_(0.25)
    assert moved(opt) == [0.25]


def test_user_variable_as_rate_is_not_replaced() -> None:
    rate = thalweg.Variable(0.5)
    opt = SGD(rate)
    assert moved(opt) == [0.5]
    rate.assign(0.25)
    assert moved(opt) == [0.25]
    assert opt.learning_rate is rate


def test_non_scalar_hyperparameter_raises() -> None:
    with pytest.raises(ValueError, match="learning_rate must be a scalar"):
        SGD(np.ones(2))


def test_decay_divides_the_rate() -> None:
    opt = SGD(1.0, decay=1.0)
    np.testing.assert_allclose(moved(opt, 3), [1, 1 / 2, 1 / 3])


def test_schedule_combines_with_decay() -> None:
    np.testing.assert_allclose(moved(SGD(HALVING, decay=1.0), 3), [1, 1 / 4, 1 / 12])


def test_decay_set_later_warns_without_effect() -> None:
    opt = SGD(1.0, decay=1.0)
    moved(opt)
    with pytest.warns(thalweg.NumericsWarning, match="Setting decay of 'SGD' has no effect"):
        opt.decay = 0.0
    assert moved(opt) == [0.5]
    assert opt.decay.item() == 0.0


@pytest.mark.parametrize("key", ["rho", "momentum"])
def test_other_hypers_may_be_callables(key: str) -> None:
    variables, twins = pair(), pair()
    train(RMSprop(0.1, **{key: lambda: 0.75}), variables)
    train(RMSprop(0.1, **{key: 0.75}), twins)
    assert torch.equal(variables[0], twins[0])


def test_get_hyper_casts_to_a_dtype() -> None:
    value = SGD(0.1)._get_hyper("learning_rate", torch.float64)
    assert (value.dtype, value.item()) == (torch.float64, float(np.float32(0.1)))


@pytest.mark.parametrize(
    ("value", "expected"), [(0.1, 0.1), (lambda: 0.5, 0.5), (torch.tensor(0.25), 0.25)]
)
def test_rate_serialized_before_creation_keeps_its_value(value: Any, expected: float) -> None:
    assert SGD(value).get_config()["learning_rate"] == expected


def test_serialized_hyperparameter_is_a_float32_value() -> None:
    opt = SGD(0.1)
    _ = opt.learning_rate
    rate = opt.get_config()["learning_rate"]
    assert (type(rate), rate) == (float, float(np.float32(0.1)))


def test_schedule_is_serialized_with_its_config() -> None:
    config = SGD(HALVING).get_config()["learning_rate"]
    assert config["class_name"] == "ExponentialDecay"
    assert config["config"]["decay_rate"] == 0.5
