"""Models of Keras that are compiled with optimizers of `tf.train`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg.tf.compat.v1 as tf
from thalweg._base.execution_context import eagerly
from thalweg.errors import CheckpointWarning, InvalidTypeError
from thalweg.tf import keras

pytestmark = [
    pytest.mark.usefixtures("with_keras"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
ROWS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
LABELS = np.ones((6, 2), np.float32)
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(lambda: 0.1, 0.9),
    "scaled": lambda: tf.train.experimental.MixedPrecisionLossScaleOptimizer(
        tf.train.GradientDescentOptimizer(0.1), 8.0
    ),
}


def small() -> Any:
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])


def compiled(name: str = "adam") -> Any:
    model = small()
    model.compile(OPTIMIZERS[name](), "mse")
    return model


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fit_takes_the_steps_of_the_optimizer(name: str, mode: str) -> None:
    with tf.Graph().as_default() if mode == "graph" else contextlib.nullcontext():
        model = compiled(name)
        model.fit(ROWS, LABELS, batch_size=3, epochs=2, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 4
    with eagerly():
        twin, optimizer = small(), OPTIMIZERS[name]()
        for rows in (ROWS[:3], ROWS[3:]) * 2:
            optimizer.minimize(
                lambda rows=rows: tf.losses.mean_squared_error(LABELS[:3], twin(rows)),
                var_list=twin.trainable_variables,
            )
    for weight, twin_weight in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(weight, twin_weight, rtol=1e-6)


def test_a_saved_model_is_compiled_again(tmp_path: Path) -> None:
    model = compiled()
    with pytest.warns(CheckpointWarning, match="tf.train is neither saved"):
        model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not loaded.compiled
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])


def test_unsupported_keras_optimizer_features_raise() -> None:
    model = compiled()
    scheduler = keras.callbacks.LearningRateScheduler(lambda _: 0.1)
    with pytest.raises(InvalidTypeError, match="'Adam' cannot be set by Keras"):
        model.fit(ROWS, LABELS, callbacks=[scheduler], verbose=0)
    with pytest.raises(NotImplementedError, match="has no configuration"):
        model.optimizer.get_config()
    with pytest.raises(NotImplementedError, match="has no configuration"):
        type(model.optimizer).from_config({})
    with pytest.raises(NotImplementedError, match="for its variables"):
        _ = model.optimizer.weights


def test_keras_fit_runs_in_a_graph() -> None:
    with tf.Graph().as_default():
        optimizer = keras.optimizers.SGD(0.1)
        model = small()
        model.compile(optimizer, "mse")
        model.fit(ROWS, LABELS, verbose=0)
        opt_copy = keras.optimizers.deserialize(keras.optimizers.serialize(model.optimizer))
        assert opt_copy.get_config() == optimizer.get_config()
        loss_scaled = tf.train.experimental.MixedPrecisionLossScaleOptimizer(
            tf.train.GradientDescentOptimizer(0.1), "dynamic"
        )
        model.compile(loss_scaled, "mse")
        weights_before = model.get_weights()
        with pytest.raises(ValueError, match="'current_loss_scale:0' was made in a graph"):
            model.fit(ROWS, LABELS, verbose=0)
        assert all(map(np.array_equal, model.get_weights(), weights_before))
