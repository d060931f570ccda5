"""Arguments of constructors, and the options that clip."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from keras_table import Row, all_rows
from thalweg.keras.optimizers import SGD, Adagrad, Adam, Ftrl, Nadam, Optimizer, RMSprop, schedules

CLIPS = ("clipvalue", "clipnorm", "global_clipnorm")


@all_rows
def test_unknown_keyword_raises(row: Row) -> None:
    with pytest.raises(TypeError, match="Unexpected keyword argument passed to optimizer: foo"):
        row.make(foo=1)


@all_rows
@pytest.mark.parametrize("key", [*CLIPS, "decay", "lr"])
def test_negative_keyword_raises(row: Row, key: str) -> None:
    if (row.name, key) == ("Nadam", "decay"):
        key = "schedule_decay"
    with pytest.raises(ValueError, match=r"Expected (\w+) >= 0, received: -1.0"):
        row.make(**{key: -1.0})


def test_negative_learning_rate_is_accepted() -> None:
    w = thalweg.Variable(1.0)
    SGD(-0.5).apply_gradients([(1.0, w)])
    assert w.item() == 1.5


@all_rows
def test_lr_warns_and_wins(row: Row) -> None:
    with pytest.warns(DeprecationWarning, match="`lr` argument is deprecated"):
        opt = row.make(learning_rate=0.5, lr=0.25)
    assert opt.learning_rate.item() == 0.25


def test_clipnorm_with_global_clipnorm_raises() -> None:
    with pytest.raises(ValueError, match="both `clipnorm` and `global_clipnorm`"):
        SGD(clipnorm=1.0, global_clipnorm=1.0)


@pytest.mark.parametrize("norm", ["clipnorm", "global_clipnorm"])
def test_clipvalue_combines_with_either_norm(norm: str) -> None:
    opt = SGD(clipvalue=2.0, **{norm: 1.0})
    assert (opt.clipvalue, getattr(opt, norm)) == (2.0, 1.0)


@pytest.mark.parametrize("key", CLIPS)
def test_clipping_excludes_transformers(key: str) -> None:
    with pytest.raises(ValueError, match="cannot be combined with `gradient_transformers`"):
        SGD(gradient_transformers=[list], **{key: 1.0})


@pytest.mark.parametrize("key", CLIPS)
def test_clip_setter_checks_as_the_constructor(key: str) -> None:
    opt = SGD(gradient_transformers=[list])
    with pytest.raises(ValueError, match="gradient_transformers"):
        setattr(opt, key, 1.0)
    assert getattr(opt, key) is None


def test_transformers_may_be_set_later() -> None:
    w, opt = thalweg.Variable([0.0]), SGD(1.0)
    opt.apply_gradients([([1.0], w)]), opt.apply_gradients([([1.0], w)])
    opt.gradient_transformers = [lambda pairs: [(g * 2, v) for g, v in pairs]]
    opt.apply_gradients([([1.0], w)])
    opt.gradient_transformers = None
    opt.gradient_aggregator = lambda pairs: [(g * 3, v) for g, v in pairs]
    opt.apply_gradients([([1.0], w)])
    assert w.item() == -7.0


def test_transformers_set_later_exclude_clipping() -> None:
    opt = SGD(clipvalue=1.0)
    with pytest.raises(ValueError, match="gradient_transformers"):
        opt.gradient_transformers = [list]
    assert opt.gradient_transformers == []


def test_clip_setter_rejects_the_second_norm() -> None:
    opt = SGD(clipnorm=1.0)
    with pytest.raises(ValueError, match="both"):
        opt.global_clipnorm = 1.0
    opt.clipnorm = None
    opt.global_clipnorm = 1.0
    assert (opt.clipnorm, opt.global_clipnorm) == (None, 1.0)


def test_clip_setter_takes_effect_at_the_next_step() -> None:
    w, opt = thalweg.Variable([0.0, 0.0]), SGD(1.0)
    opt.apply_gradients([([3.0, -4.0], w)])
    opt.clipvalue = 1.0
    opt.apply_gradients([([3.0, -4.0], w)])
    opt.clipvalue = 2.0
    opt.apply_gradients([([3.0, -4.0], w)])
    opt.clipvalue = None
    opt.apply_gradients([([3.0, -4.0], w)])
    assert w.numpy().tolist() == [-9.0, 11.0]


@pytest.mark.parametrize(
    ("options", "gradient", "expected"),
    [
        ({"clipvalue": 1.0}, [3.0, -4.0, np.nan], [1.0, -1.0, np.nan]),
        ({"clipnorm": 1.0}, [3.0, -4.0], [0.6, -0.8]),
        ({"clipnorm": 1.0}, [0.0, 0.0], [0.0, 0.0]),
        ({"clipnorm": 0.0}, [3.0, -4.0], [0.0, 0.0]),
        ({"clipnorm": 10.0}, [3.0, -4.0], [3.0, -4.0]),
        ({"clipnorm": 1.0}, [np.inf, 1.0], [np.nan, 0.0]),
        ({"global_clipnorm": 1.0}, [3.0, -4.0], [0.6, -0.8]),
        ({"global_clipnorm": 10.0}, [3.0, -4.0], [3.0, -4.0]),
        ({"global_clipnorm": 1.0}, [np.inf, 1.0], [np.nan, np.nan]),
        ({"clipvalue": 1.0, "clipnorm": 1.0}, [9.0, 0.0], [1.0, 0.0]),
    ],
)
@pytest.mark.parametrize("engine", ["reference", "cpu"])
def test_gradients_are_clipped_as_documented(
    options: dict[str, float], gradient: Any, expected: Any, engine: str
) -> None:
    w, opt = thalweg.Variable(np.zeros(len(gradient), "f4")), SGD(1.0, **options)
    opt.engine = engine
    opt.apply_gradients([(gradient, w)])
    np.testing.assert_allclose(-w.numpy(), expected, rtol=1e-6)


def test_global_norm_spans_variables() -> None:
    a, b = thalweg.Variable([0.0]), thalweg.Variable([0.0, 0.0])
    SGD(1.0, global_clipnorm=1.0).apply_gradients([([3.0], a), ([4.0, 0.0], b)])
    np.testing.assert_allclose([*a.numpy(), *b.numpy()], [-0.6, -0.8, 0], rtol=1e-6)


def test_none_gradients_do_not_count_in_the_global_norm() -> None:
    a, b = thalweg.Variable([0.0]), thalweg.Variable([0.0, 0.0])
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        SGD(1.0, global_clipnorm=1.0).apply_gradients([([3.0], a), (None, b)])
    assert a.numpy().tolist() == [-1.0]


def test_sparse_values_are_clipped_before_duplicates_are_summed() -> None:
    w = thalweg.Variable(np.zeros((3, 1), "f4"))
    slices = thalweg.IndexedSlices(torch.tensor([[3.0], [4.0]]), torch.tensor([2, 2]))
    SGD(1.0, clipvalue=1.0).apply_gradients([(slices, w)])
    assert w.numpy().ravel().tolist() == [0.0, 0.0, -2.0]


def test_names_without_one_are_unique() -> None:
    class SomeNewThing(Optimizer):
        pass

    assert [SomeNewThing(None).get_config()["name"] for _ in range(2)] == [
        "some_new_thing",
        "some_new_thing_1",
    ]
    assert SomeNewThing("").get_config()["name"] == "some_new_thing_2"


def test_base_class_has_a_config_and_no_update() -> None:
    opt, w = Optimizer("plain"), thalweg.Variable(1.0)
    assert opt.get_config() == {"name": "plain"}
    with pytest.raises(NotImplementedError, match="_resource_apply_dense"):
        opt.apply_gradients([(1.0, w)])


@pytest.mark.parametrize("cls", [SGD, RMSprop])
@pytest.mark.parametrize("momentum", [-0.1, 1.1])
def test_momentum_outside_its_range_raises(cls: Any, momentum: float) -> None:
    with pytest.raises(ValueError, match=r"`momentum` must be between \[0, 1\]"):
        cls(momentum=momentum)


@pytest.mark.parametrize("cls", [SGD, RMSprop])
@pytest.mark.parametrize(
    ("momentum", "has_slot"),
    [(0.0, False), (0, False), (0.5, True), (torch.tensor(0.0), True), (lambda: 0.0, True)],
    ids=["0.0", "0", "0.5", "tensor", "callable"],
)
def test_momentum_slot_is_decided_at_construction(cls: Any, momentum: Any, has_slot: bool) -> None:
    opt, w = cls(0.1, momentum=momentum), thalweg.Variable([1.0])
    opt.apply_gradients([([1.0], w)])
    assert ("momentum" in opt.get_slot_names()) == has_slot


@pytest.mark.parametrize("cls", [SGD, RMSprop])
def test_momentum_set_later_from_zero_has_no_effect(cls: Any) -> None:
    opt, w = cls(0.5), thalweg.Variable([1.0])
    plain_opt, twin = cls(0.5), thalweg.Variable([1.0])
    opt.momentum = 0.9
    opt.apply_gradients([([1.0], w)]), opt.apply_gradients([([1.0], w)])
    plain_opt.apply_gradients([([1.0], twin)]), plain_opt.apply_gradients([([1.0], twin)])
    assert w.item() == twin.item()
    assert "momentum" not in opt.get_slot_names()


@pytest.mark.parametrize("epsilon", [None, 0, 0.0])
@pytest.mark.parametrize("name", ["Adam", "Adamax", "Nadam", "Adagrad", "Adadelta", "RMSprop"])
def test_missing_epsilon_means_the_default(name: str, epsilon: float | None) -> None:
    assert getattr(thalweg.keras.optimizers, name)(epsilon=epsilon).epsilon == 1e-7


def test_adagrad_rejects_a_negative_start() -> None:
    with pytest.raises(ValueError, match=r"initial_accumulator_value must be .*: -0\.1"):
        Adagrad(initial_accumulator_value=-0.1)
    assert Adagrad(initial_accumulator_value=0.0).get_config()["initial_accumulator_value"] == 0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("learning_rate_power", 0.5),
        ("initial_accumulator_value", -1.0),
        ("l1_regularization_strength", -1.0),
        ("l2_regularization_strength", -1.0),
        ("l2_shrinkage_regularization_strength", -1.0),
    ],
)
def test_invalid_ftrl_arguments_raise(argument: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"{argument} {value:f} needs to be"):
        Ftrl(**{argument: value})


def test_nadam_rejects_schedules() -> None:
    with pytest.raises(ValueError, match=r"does not support .*LearningRateSchedule"):
        Nadam(schedules.ExponentialDecay(0.1, 10, 0.5))


def test_nadam_rejects_a_schedule_set_later() -> None:
    opt = Nadam(0.5)
    with pytest.raises(ValueError, match=r"does not support .*LearningRateSchedule"):
        opt.learning_rate = schedules.ExponentialDecay(0.1, 10, 0.5)
    assert opt.learning_rate.item() == 0.5


def test_attributes_set_later_take_effect() -> None:
    a, b = thalweg.Variable(1.0), thalweg.Variable(1.0)
    opt, plain_opt = Adam(0.5), Adam(0.5, epsilon=1.0, amsgrad=True)
    opt.epsilon, opt.amsgrad = 1.0, True
    opt.apply_gradients([(1.0, a)]), plain_opt.apply_gradients([(1.0, b)])
    assert a.item() == b.item() > 0.8


def none_gradient(opt: Any) -> Any:
    return opt.apply_gradients([(None, thalweg.Variable(1.0)), (1.0, thalweg.Variable(1.0))])


def unconnected(opt: Any) -> Any:
    x, y = thalweg.Variable(1.0), thalweg.Variable(1.0)
    return opt.minimize(lambda: x * x, [x, y])


@pytest.mark.parametrize(
    "call",
    [
        lambda: SGD(lr=0.5),
        lambda: Optimizer("o", lr=0.5),
        lambda: Nadam(decay=0.5),
        lambda: setattr(SGD(decay=0.5), "decay", 0.1),
        lambda: none_gradient(SGD()),
        lambda: unconnected(SGD()),
    ],
    ids=["lr", "base", "nadam", "decay", "apply", "minimize"],
)
def test_warnings_point_at_the_users_line(call: Any) -> None:
    with pytest.warns(Warning) as caught_warnings:  # noqa: PT030
        call()
    assert [warning.filename for warning in caught_warnings] == [__file__]


def test_nadam_warns_that_decay_is_ignored() -> None:
    with pytest.warns(thalweg.NumericsWarning, match="Nadam ignores `decay`"):
        assert Nadam(decay=0.5).get_config()["decay"] == 0.004
    assert Nadam(schedule_decay=0.25).get_config()["decay"] == 0.25
