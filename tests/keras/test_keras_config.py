"""`get_config`, `from_config`, and optimizers by name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from keras_table import ROWS, Row, all_rows, pair, train
from thalweg.keras import optimizers
from thalweg.keras.optimizers import SGD, Adagrad, Adam, Ftrl, Nadam, Optimizer, RMSprop, schedules

HALVING = schedules.ExponentialDecay(1.0, 2, 0.5)


class MyAdam(Adam):
    """A user's own class."""

    def __init__(self, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "scale": self.scale}


@all_rows
def test_default_config_has_all_arguments(row: Row) -> None:
    assert row.cls().get_config() == {"name": row.name, **row.config}


@all_rows
def test_config_round_trip_keeps_arguments(row: Row) -> None:
    opt = row.cls(name="mine", clipvalue=0.5, **row.changed)
    config = opt.get_config()
    new_opt = row.cls.from_config(config)
    assert type(new_opt) is row.cls
    assert new_opt.get_config() == config
    assert config == {**row.config, **row.changed, "name": "mine", "clipvalue": 0.5}


@all_rows
def test_config_is_json_before_training(row: Row) -> None:
    config = row.cls().get_config()
    assert json.loads(json.dumps(config)) == config


@all_rows
def test_config_round_trip_after_training(row: Row) -> None:
    opt, variables, twins = row.cls(**row.changed), pair(), pair()
    train(opt, variables, 1)
    new_opt = row.cls.from_config(opt.get_config())
    train(new_opt, twins, 1)
    assert np.array_equal(variables[0].numpy(), twins[0].numpy())


@pytest.mark.parametrize("key", ["clipvalue", "clipnorm", "global_clipnorm"])
def test_clip_keys_only_where_set(key: str) -> None:
    assert SGD(**{key: 0.5}).get_config()[key] == 0.5
    assert key not in SGD().get_config()
    assert key not in SGD(**{key: None}).get_config()


def test_aggregator_and_transformers_are_not_saved() -> None:
    config = SGD(gradient_aggregator=list, gradient_transformers=[list]).get_config()
    assert set(config) == {"name", "learning_rate", "decay", "momentum", "nesterov"}


@pytest.mark.parametrize("kind", [Adagrad, Ftrl])
def test_config_ignores_attributes_named_like_arguments(kind: type[Any]) -> None:
    optimizer = kind()
    optimizer.initial_accumulator_value = 0.5
    assert optimizer.get_config() == kind().get_config()


def test_from_config_reads_lr_and_leaves_the_dictionary() -> None:
    config = {"name": "SGD", "lr": 0.25}
    assert SGD.from_config(config).learning_rate.item() == 0.25
    assert config == {"name": "SGD", "lr": 0.25}


def test_from_config_rejects_unknown_keys() -> None:
    with pytest.raises(TypeError, match="foo"):
        Adam.from_config({"foo": 1})


@pytest.mark.parametrize("cls", [SGD, Adam, RMSprop, Adagrad])
def test_schedule_round_trip(cls: Any) -> None:
    new_opt = cls.from_config(cls(HALVING).get_config())
    assert isinstance(new_opt.learning_rate, schedules.ExponentialDecay)
    assert new_opt.learning_rate.get_config() == HALVING.get_config()


def test_custom_schedule_needs_custom_objects() -> None:
    class Mine(schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> Any:
            return 0.5 / (step + 1)

        def get_config(self) -> dict[str, Any]:
            return {}

    config = SGD(Mine()).get_config()
    new_opt = SGD.from_config(config, custom_objects={"Mine": Mine})
    w = thalweg.Variable(0.0)
    new_opt.apply_gradients([(1.0, w)]), new_opt.apply_gradients([(1.0, w)])
    assert w.item() == -0.75
    with pytest.raises(ValueError, match="Mine"):
        SGD.from_config(config)


def test_callable_is_saved_as_its_value() -> None:
    assert SGD(lambda: 0.25).get_config()["learning_rate"] == 0.25


def test_a_bfloat16_variable_is_saved_as_a_float() -> None:
    rate = thalweg.Variable(torch.tensor(0.25, dtype=torch.bfloat16))
    rate_config = SGD(rate).get_config()["learning_rate"]
    assert rate_config == 0.25
    assert type(rate_config) is float


def test_nadam_round_trip_keeps_schedule_decay() -> None:
    config = Nadam(schedule_decay=0.25).get_config()
    assert config["decay"] == 0.25
    assert Nadam.from_config(config).get_config() == config


def test_adagrad_without_initial_value() -> None:
    opt = Adagrad.from_config({"learning_rate": 0.5})
    assert opt.get_config()["initial_accumulator_value"] == 0.1


@all_rows
@pytest.mark.parametrize("change", [str, str.lower, str.upper])
def test_get_finds_optimizers_by_name(row: Row, change: Any) -> None:
    opt = optimizers.get(change(row.name))
    assert type(opt) is row.cls
    assert opt.get_config() == row.cls().get_config()


@all_rows
def test_serialize_round_trip(row: Row) -> None:
    serialized = optimizers.serialize(row.cls(**row.changed))
    assert serialized["class_name"] == row.name
    for new_opt in (optimizers.deserialize(serialized), optimizers.get(serialized)):
        assert type(new_opt) is row.cls
        assert optimizers.serialize(new_opt) == serialized


def test_get_returns_an_optimizer_unchanged() -> None:
    opt = Adam()
    assert optimizers.get(opt) is opt


@pytest.mark.parametrize("identifier", ["adamw", {"class_name": "nope", "config": {}}, {}, 3, None])
def test_get_rejects_other_objects(identifier: Any) -> None:
    with pytest.raises(ValueError, match=r"Unknown optimizer|Expected a dict|Could not"):
        optimizers.get(identifier)


def test_custom_objects_are_deserialized() -> None:
    serialized = optimizers.serialize(MyAdam(scale=2.0, learning_rate=0.5))
    new_opt = optimizers.deserialize(serialized, custom_objects={"MyAdam": MyAdam})
    assert isinstance(new_opt, MyAdam)
    assert (new_opt.scale, new_opt.learning_rate.item()) == (2.0, 0.5)
    with pytest.raises(ValueError, match="Unknown optimizer: MyAdam"):
        optimizers.deserialize(serialized)


def test_deserialize_leaves_the_dictionary() -> None:
    serialized = {"class_name": "sgd", "config": {"lr": 0.5}}
    optimizers.deserialize(serialized)
    assert serialized == {"class_name": "sgd", "config": {"lr": 0.5}}


def test_base_class_round_trip() -> None:
    opt = Optimizer("plain", clipnorm=0.5)
    assert Optimizer.from_config(opt.get_config()).get_config() == opt.get_config()


def test_table_names_every_class() -> None:
    public = {cls for cls in vars(optimizers).values() if isinstance(cls, type)}
    assert {row.cls for row in ROWS} == public - {Optimizer, optimizers.RuleOptimizer}
