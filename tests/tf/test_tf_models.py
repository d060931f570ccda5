"""Models of `thalweg.tf.keras`: their optimizer is that of `compile` and one of Keras at once."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from lazy_package import Later

keras: Any = Later("keras")
keras3: Any = Later("thalweg.integrations.keras3")
pytestmark = [
    pytest.mark.usefixtures("with_keras"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

ONES, ZEROS = np.ones((4, 3), "f4"), np.zeros((4, 1), "f4")


def compiled(optimizer: Any, **options: Any) -> Any:
    inputs = tf.keras.Input((3,))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, kernel_initializer="ones")(inputs))
    model.compile(optimizer, loss="mse", **options)
    return model


def test_model_optimizer_is_a_keras_optimizer() -> None:
    model = compiled(optimizer := tf.keras.optimizers.Adam(0.1))
    fit = model.fit(ONES, ZEROS, verbose=0)
    assert fit.model.optimizer is model.optimizer is optimizer
    assert isinstance(optimizer, keras.optimizers.Optimizer)
    assert [n for n in dir(keras.optimizers.Optimizer) if not hasattr(optimizer, n)] == []
    assert optimizer.built
    assert len(optimizer.variables) == 6  # the learning rate is one of Keras' variables
    assert len(optimizer.variables()) == len(optimizer.get_weights()) == 5
    optimizer.set_weights([var.value for var in optimizer.variables])
    optimizer.loss_scale_factor = 2.0
    assert float(optimizer.scale_loss(torch.tensor(3.0))) == 6.0
    with pytest.raises(AttributeError, match="'Adam' object has no attribute 'nothing'"):
        optimizer.nothing  # noqa: B018


@pytest.mark.parametrize("method", ["copy", "deepcopy", "pickle", "config", "class"])
def test_copy_of_an_optimizer_of_a_model_trains_alone(method: str) -> None:
    ways: dict[str, Any] = {
        "copy": copy.copy,
        "deepcopy": copy.deepcopy,
        "pickle": lambda opt: pickle.loads(pickle.dumps(opt)),
        "config": lambda opt: opt.from_config(opt.get_config()),
        "class": lambda opt: type(opt)(0.5),
    }
    model = compiled(tf.keras.optimizers.SGD(0.5))
    model.fit(ONES, ZEROS, verbose=0)
    opt_copy = ways[method](model.optimizer)
    assert isinstance(opt_copy, tf.keras.optimizers.SGD)
    variable = tf.Variable([1.0])
    opt_copy.apply_gradients([(tf.constant([1.0]), variable)])
    assert variable.numpy().tolist() == [0.5]
    weights_before = model.get_weights()
    model.fit(ONES, ZEROS, verbose=0)
    assert weights_before[0][0] != model.get_weights()[0][0]


@pytest.mark.parametrize("caller", ["apply", "apply_gradients"])
@pytest.mark.parametrize("form", ["name", "optimizer"])
def test_user_train_step_is_used(caller: str, form: str) -> None:

    class Own(tf.keras.Model):
        def train_step(self, data: Any) -> Any:
            x, y = data
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            self.zero_grad()
            loss.backward()
            grads = [weight.value.grad for weight in self.trainable_weights]
            if caller == "apply":
                self.optimizer.apply(grads, self.trainable_weights)
            else:
                self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
            return {"loss": loss}

    inputs = tf.keras.Input((3,))
    model = Own(inputs, tf.keras.layers.Dense(1, kernel_initializer="ones")(inputs))
    model.compile("sgd" if form == "name" else tf.keras.optimizers.SGD(0.01), loss="mse")
    model.fit(ONES, ZEROS, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], np.full((3, 1), 0.94), rtol=1e-6)
    assert int(model.optimizer.iterations) == 1


@pytest.mark.parametrize("caller", ["alone", "in a model", "apply", "fit"])
def test_constraints_of_keras_variables_are_applied_once(caller: str) -> None:
    class Less:
        def __call__(self, w: Any) -> Any:
            return w - 1.0

    inputs, optimizer = tf.keras.Input((3,)), tf.keras.optimizers.SGD(0.01)
    dense = tf.keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)
    model = tf.keras.Model(inputs, dense(inputs))
    (kernel,) = model.trainable_variables
    kernel.constraint = Less()
    if caller != "alone":
        model.compile(optimizer, loss="mse")
    for step in (1, 2):
        if caller == "fit":
            kernel.assign(np.zeros((3, 1)))
            model.fit(ONES, ZEROS, verbose=0)
            expected = -1.0
        elif caller == "apply":
            optimizer.apply([torch.ones(3, 1)], [kernel])
            expected = 1.0 - 1.01 * step
        else:
            optimizer.apply_gradients([(torch.ones(3, 1), kernel)])
            expected = 1.0 - 1.01 * step
        np.testing.assert_allclose(kernel.numpy(), np.full((3, 1), expected), rtol=1e-5)
    if caller == "in a model":
        optimizer.apply([torch.ones(3, 1)], [kernel])
        np.testing.assert_allclose(kernel.numpy(), np.full((3, 1), -2.03), rtol=1e-5)


def test_optimizer_of_a_model_may_be_assigned(tmp_path: Path) -> None:
    model = compiled(tf.keras.optimizers.SGD(0.01))
    model.optimizer = model.optimizer
    model.fit(ONES, ZEROS, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], np.full((3, 1), 0.94), rtol=1e-6)
    model.optimizer = optimizer = tf.keras.optimizers.Adam(0.1, beta_1=0.5)
    model.fit(ONES, ZEROS, verbose=0)
    assert model.optimizer is optimizer
    assert int(optimizer.iterations) == 1
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras").optimizer
    assert loaded.get_config()["beta_1"] == 0.5
    for current, saved_value in zip(optimizer.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(current, saved_value)
    model.optimizer = keras.optimizers.SGD(0.2)
    model.fit(ONES, ZEROS, verbose=0)
    assert type(model.optimizer) is type(keras.optimizers.SGD())


def test_optimizer_of_two_models_keeps_them_apart(tmp_path: Path) -> None:
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    models = {"one": compiled(optimizer), "two": compiled(optimizer)}
    for name in ("one", "two", "one"):
        models[name].fit(ONES, ZEROS, verbose=0)
    for name, model in models.items():
        model.save(tmp_path / f"{name}.keras")
        loaded = tf.keras.models.load_model(tmp_path / f"{name}.keras").optimizer
        for current, saved_value in zip(model.optimizer.variables, loaded.variables, strict=True):
            np.testing.assert_array_equal(current.numpy(), saved_value.numpy())
    first, second = (model.optimizer.variables[2].numpy()[0] for model in models.values())
    assert first != second


def test_keras_wrapped_optimizers_stay_wrapped(tmp_path: Path) -> None:
    model = compiled(tf.keras.optimizers.SGD(0.01))
    model.compile(wrapped := keras3.from_thalweg(tf.keras.optimizers.SGD(0.01)), loss="mse")
    assert model.optimizer is wrapped
    model.save(tmp_path / "model.keras")
    assert type(tf.keras.models.load_model(tmp_path / "model.keras").optimizer) is type(wrapped)
    optimizer = tf.keras.optimizers.SGD(0.01)
    model.compile(keras.optimizers.LossScaleOptimizer(compiled(optimizer).optimizer, 4.0), "mse")
    model.fit(ONES, ZEROS, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], np.full((3, 1), 0.94), rtol=1e-6)
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras").optimizer
    assert isinstance(loaded.inner_optimizer, tf.keras.optimizers.SGD)
    assert int(loaded.inner_optimizer.iterations) == int(optimizer.iterations) == 1


def test_functional_subclasses_do_not_affect_other_classes() -> None:
    class Base(tf.keras.Model):
        pass

    class Ended(Base):
        def __init__(self, count: int) -> None:
            inputs = tf.keras.Input((3,))
            super().__init__(inputs, tf.keras.layers.Dense(count)(inputs))

    class Called(tf.keras.Model):
        def call(self, x: Any) -> Any:
            return x + 1.0

    model = Ended(2)
    model.compile(optimizer := tf.keras.optimizers.SGD(0.1), loss="mse")
    model.fit(ONES, np.zeros((4, 2)), verbose=0)
    assert model.optimizer is optimizer
    assert model.output_shape == (None, 2)
    assert Called()(torch.ones(1)).tolist() == [2.0]
    assert len(Ended(3).layers) == 2


@pytest.mark.parametrize("unbuilt", ["alone", "within"])
def test_models_without_weights_have_a_summary(unbuilt: str) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
    if unbuilt == "within":
        model = tf.keras.Sequential([model])
    lines: list[str] = []
    model.summary(print_fn=lambda text, **_: lines.append(text))
    assert "Total params: 0" in "".join(lines)
    with pytest.raises(ValueError, match="have not yet been created"):
        model.weights  # noqa: B018


def metrics_of_two(**metrics: Any) -> dict[str, float]:
    """Return the metrics for outputs 2 and 0 where 0 was expected, named as in tf_keras."""
    inputs = tf.keras.Input((2,))
    ends = [
        tf.keras.layers.Dense(1, kernel_initializer=start, name=name)(inputs)
        for name, start in {"a": "ones", "b": "zeros"}.items()
    ]
    model = tf.keras.Model(inputs, ends)
    model.compile("sgd", loss="mse", **metrics)
    logs = model.evaluate(np.ones((4, 2)), [ZEROS, ZEROS], verbose=0, return_dict=True)
    return {name: value for name, value in logs.items() if "loss" not in name}


METRICS_OF_TWO: dict[str, Any] = {
    "object": lambda metric: [metric()],
    "name": lambda metric: ["mean_absolute_error"],
    "tuple": lambda metric: (metric(),),
    "alone": lambda metric: metric(),
    "name alone": lambda metric: "mean_absolute_error",
    "none beside": lambda metric: [None, metric()],
    "each": lambda metric: [[metric()], [metric()]],
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("keyword", ["metrics", "weighted_metrics"])
@pytest.mark.parametrize("form", METRICS_OF_TWO)
def test_each_output_has_separate_metrics(form: str, keyword: str) -> None:
    metrics = METRICS_OF_TWO[form](tf.keras.metrics.MeanAbsoluteError)
    expected = {"a_mean_absolute_error": 2.0, "b_mean_absolute_error": 0.0}
    assert metrics_of_two(**{keyword: metrics}) == expected


def test_metric_shared_by_two_outputs_raises() -> None:

    class Own(tf.keras.metrics.MeanAbsoluteError):
        def __init__(self, scale: float, name: str = "own", **options: Any) -> None:
            super().__init__(name, **options)

    with pytest.raises(TypeError, match=r"'own' is to count for each output.*scale"):
        metrics_of_two(metrics=[Own(1.0)])
    metric = Own(1.0)
    for metrics in ([[metric], [metric]], {"a": metric, "b": metric}, [metric, metric]):
        with pytest.raises(ValueError, match="'own' is given twice"):
            metrics_of_two(metrics=metrics)
    assert metrics_of_two(metrics=[[metric], [Own(1.0)]]) == {"a_own": 2.0, "b_own": 0.0}
