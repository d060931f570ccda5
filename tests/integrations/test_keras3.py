"""Thalweg's optimizers inside Keras 3: `compile`, `fit`, saving, callbacks."""

from __future__ import annotations

import csv
import functools
import inspect
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fresh_process
import thalweg
from forks import Stop, run_in_child
from lazy_package import Later
from thalweg.checkpoint.tensorflow import load, restore
from thalweg.errors import (
    CheckpointMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)
from thalweg.formula import sign
from thalweg.keras import optimizers

keras: Any = Later("keras")
keras3: Any = Later("thalweg.integrations.keras3")

# Keras' variables lack the `copy` of NumPy's protocol.
pytestmark = [
    pytest.mark.usefixtures("with_keras"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

NAMES = ("SGD", "Adam", "Adamax", "Nadam", "Adagrad", "Adadelta", "RMSprop", "Ftrl")
CONFIGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("Adam", {"amsgrad": True, "decay": 0.1}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Nadam", {"schedule_decay": 0.01}),
    ("Ftrl", {"l1_regularization_strength": 0.1, "learning_rate_power": -0.7}),
]
IDS = [f"{name}-{'-'.join(config) or 'plain'}" for name, config in CONFIGS]
X = np.random.default_rng(0).normal(size=(32, 5)).astype("f4")
Y = (X[:, :1] * 2 + 1).astype("f4")


def make_model(optimizer: Any = None, **layer: Any) -> Any:
    keras.utils.set_random_seed(1)
    hidden_layer = keras.layers.Dense(4, activation="tanh", **layer)
    model = keras.Sequential([keras.Input((5,)), hidden_layer, keras.layers.Dense(1)])
    if optimizer is not None:
        model.compile(optimizer=optimizer, loss="mse")
    return model


def train(model: Any, epochs: int = 1, **options: Any) -> Any:
    return model.fit(X, Y, epochs=epochs, batch_size=8, shuffle=False, verbose=0, **options)


def make_variables() -> list[Any]:
    rng = np.random.default_rng(2)
    shapes = [(3, 4), (4,)]
    return [keras.Variable(rng.normal(size=shape).astype("f4")) for shape in shapes]


def make_gradients(step: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(10 + step)
    return [torch.from_numpy(rng.normal(size=shape).astype("f4")) for shape in [(3, 4), (4,)]]


def values(variables: Any) -> list[np.ndarray]:
    return [var.value.detach().numpy().copy() for var in variables]


def assert_same(first: Any, second: Any) -> None:
    assert len(first) == len(second)
    for first_value, second_value in zip(first, second, strict=True):
        np.testing.assert_array_equal(first_value, second_value)


def run_alone(optimizer: Any, steps: int = 3) -> list[np.ndarray]:
    """Train the optimizer of thalweg without Keras."""
    variables = [thalweg.Variable(value) for value in values(make_variables())]
    for step in range(steps):
        optimizer.apply_gradients(zip(make_gradients(step), variables, strict=True))
    return [var.numpy() for var in variables]


def run_in_keras(optimizer: Any, steps: int = 3) -> list[np.ndarray]:
    variables = make_variables()
    for step in range(steps):
        optimizer.apply(make_gradients(step), variables)
    return values(variables)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "config"), CONFIGS, ids=IDS)
def test_steps_have_the_bits_of_thalweg(name: str, config: dict[str, Any]) -> None:
    keras_opt = getattr(keras3, name)(learning_rate=0.1, **config)
    thalweg_opt = getattr(optimizers, name)(learning_rate=0.1, **config)
    assert_same(run_in_keras(keras_opt), run_alone(thalweg_opt))
    assert_same(keras_opt.get_weights(), thalweg_opt.get_weights())


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "config"), CONFIGS, ids=IDS)
def test_training_resumes_from_a_saved_model(
    name: str, config: dict[str, Any], tmp_path: Path
) -> None:
    model = make_model(getattr(keras3, name)(learning_rate=0.05, **config))
    train(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is getattr(keras3, name)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert_same(loaded.optimizer.get_weights(), model.optimizer.get_weights())
    train(model)
    train(loaded)
    assert_same(loaded.get_weights(), model.get_weights())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_fit_lowers_the_loss(name: str) -> None:
    model = make_model(getattr(keras3, name)(learning_rate=0.01))
    initial_loss = model.evaluate(X, Y, verbose=0)
    train(model, epochs=3)
    assert model.evaluate(X, Y, verbose=0) < initial_loss


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_of_thalweg(name: str) -> None:
    thalweg_config = getattr(optimizers, name)().get_config()
    config = getattr(keras3, name)().get_config()
    if name == "Nadam":
        thalweg_config["schedule_decay"] = thalweg_config.pop("decay")
    numbers = {key: np.float32(value) for key, value in thalweg_config.items() if key != "name"}
    assert {key: np.float32(config[key]) for key in numbers} == numbers


@pytest.mark.parametrize("name", NAMES)
def test_signature_and_documentation_are_those_of_thalweg(name: str) -> None:
    keras_cls, thalweg_cls = getattr(keras3, name), getattr(optimizers, name)
    assert inspect.signature(keras_cls) == inspect.signature(thalweg_cls)
    assert inspect.getdoc(keras_cls).startswith(
        inspect.getdoc(thalweg_cls).partition("Example:")[0].rstrip()
    )
    assert "Example:" not in keras_cls.__doc__
    assert "FusedOptimizer" in keras_cls.__doc__
    assert keras_cls.__qualname__ == name
    assert keras.saving.get_registered_name(keras_cls) == f"thalweg>{name}"


def test_positional_arguments_and_user_classes_are_wrapped() -> None:
    class Mine(keras3.SGD):
        def __init__(self, rate: float = 0.5) -> None:
            super().__init__(rate, 0.9, True, "mine", clipvalue=2.0, weight_decay=0.25)

    optimizer = Mine()
    assert (optimizer.name, optimizer.wrapped.nesterov, optimizer.clipvalue) == ("mine", True, 2.0)
    assert (float(optimizer.learning_rate), float(optimizer.momentum)) == (0.5, np.float32(0.9))
    assert optimizer.weight_decay == 0.25
    with pytest.raises(TypeError, match="too many positional"):
        keras3.SGD(0.1, 0.9, True, "mine", 5)


def test_weights_are_iterations_then_slots() -> None:
    optimizer = keras3.Adam()
    train(make_model(optimizer))
    shapes = [(), *[(5, 4), (4,), (4, 1), (1,)] * 2]
    assert [np.shape(weight) for weight in optimizer.get_weights()] == shapes
    assert optimizer.get_weights()[0] == 4
    assert optimizer.wrapped.get_slot_names() == ["m", "v"]


def test_weights_can_be_set() -> None:
    optimizer = keras3.RMSprop()
    train(make_model(optimizer))
    weights = [np.ones_like(weight) for weight in optimizer.get_weights()]
    optimizer.set_weights(weights)
    assert_same(optimizer.get_weights(), weights)
    assert int(optimizer.iterations.value) == 1


def test_variables_of_keras_can_be_set() -> None:
    optimizer = keras3.RMSprop()
    train(make_model(optimizer))
    optimizer.set_weights([np.full(var.shape, 2.0) for var in optimizer.variables])
    assert float(optimizer.learning_rate.value) == 2.0
    assert_same(optimizer.get_weights()[1:], [np.full((5, 4), 2), np.full(4, 2), [[2]] * 4, [2]])


def test_wrapped_optimizer_and_keras_share_state() -> None:
    inner = optimizers.RMSprop(0.01)
    optimizer = keras3.from_thalweg(inner)
    train(make_model(optimizer))
    assert int(inner.iterations.numpy()) == int(optimizer.iterations.value) == 4
    inner.learning_rate = 0.5
    assert float(optimizer.learning_rate.value) == 0.5
    optimizer.learning_rate = 0.25
    assert inner.learning_rate.numpy() == 0.25
    inner.set_weights([np.array(10), *inner.get_weights()[1:]])
    assert int(optimizer.iterations.value) == 10


def test_variables_have_names() -> None:
    optimizer = keras3.SGD(momentum=0.9)
    layer = keras.layers.Dense(1, name="head")
    layer.build((None, 2))
    optimizer.build(layer.trainable_variables)
    names = [var.path for var in optimizer.variables]
    assert names == [
        "SGD/iteration",
        "SGD/learning_rate",
        "SGD/head_kernel_momentum",
        "SGD/head_bias_momentum",
    ]


CLIPPINGS = [
    {"clipvalue": 0.5},
    {"clipnorm": 0.5},
    {"global_clipnorm": 0.5},
    {"clipvalue": 0.5, "clipnorm": 0.7},
]


@pytest.mark.parametrize("clipping", CLIPPINGS, ids="-".join)
def test_clipping_is_that_of_thalweg(clipping: dict[str, float]) -> None:
    keras_opt, thalweg_opt = keras3.Adam(0.1, **clipping), optimizers.Adam(0.1, **clipping)
    assert_same(run_in_keras(keras_opt), run_alone(thalweg_opt))
    assert {key: getattr(keras_opt, key) for key in clipping} == clipping
    restored_opt = keras3.Adam.from_config(keras_opt.get_config())
    assert_same(run_in_keras(restored_opt), run_alone(optimizers.Adam(0.1, **clipping)))


def test_clipping_can_be_changed() -> None:
    optimizer = keras3.SGD(1.0)
    optimizer.clipvalue = 0.25
    assert optimizer.wrapped.clipvalue == 0.25
    variable = keras.Variable(np.zeros(2, "f4"))
    optimizer.apply([torch.tensor([3.0, -3.0])], [variable])
    assert_same(values([variable]), [[-0.25, 0.25]])


def test_clipnorm_with_global_clipnorm_raises() -> None:
    with pytest.raises(ValueError, match="both `clipnorm` and `global_clipnorm`"):
        keras3.SGD(clipnorm=1.0, global_clipnorm=1.0)


def test_unknown_keyword_raises() -> None:
    with pytest.raises(ValueError, match="not recognized"):
        keras3.SGD(momentun=0.9)


SCHEDULES = {
    "thalweg": lambda: thalweg.schedules.ExponentialDecay(0.5, 2, 0.5),
    "keras": lambda: keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5),
}


@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedule_gives_the_rate_of_each_step(kind: str) -> None:
    keras_opt = keras3.SGD(SCHEDULES[kind]())
    thalweg_opt = optimizers.SGD(SCHEDULES["thalweg"]())
    for got, expected in zip(run_in_keras(keras_opt), run_alone(thalweg_opt), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_allclose(float(keras_opt.learning_rate), 0.5 * 0.5**1.5, rtol=1e-6)


@pytest.mark.parametrize("form", ["named", "wrapped"])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_schedule_is_saved(kind: str, form: str, tmp_path: Path) -> None:
    schedule = SCHEDULES[kind]()
    if form == "wrapped":
        from_keras = keras3.SGD(schedule).wrapped
        optimizer = keras3.from_thalweg(from_keras)
    else:
        optimizer = keras3.SGD(schedule)
    model = make_model(optimizer)
    train(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    train(model)
    train(loaded)
    assert_same(loaded.get_weights(), model.get_weights())
    assert float(loaded.optimizer.learning_rate) == float(model.optimizer.learning_rate)


def test_registered_user_schedule_is_found(tmp_path: Path) -> None:
    class Halving(thalweg.schedules.LearningRateSchedule):
        def __init__(self, start: float) -> None:
            self.start = start

        def __call__(self, step: Any) -> float:
            return self.start / 2 ** int(step)

        def get_config(self) -> dict[str, Any]:
            return {"start": self.start}

    model = make_model(keras3.SGD(Halving(0.5)))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects={"Halving": Halving})
    assert float(loaded.optimizer.learning_rate) == 0.5


def test_callable_rate_is_called() -> None:
    keras_opt, thalweg_opt = keras3.SGD(lambda: 0.5), optimizers.SGD(lambda: 0.5)
    assert_same(run_in_keras(keras_opt), run_alone(thalweg_opt))
    assert keras_opt.learning_rate == 0.5


def test_rate_can_become_a_schedule() -> None:
    optimizer = keras3.SGD(0.5)
    optimizer.learning_rate = thalweg.schedules.PiecewiseConstantDecay([0], [0.25, 0.0])
    variable = keras.Variable(np.zeros(1, "f4"))
    for _ in range(3):
        optimizer.apply([torch.ones(1)], [variable])
    assert_same(values([variable]), [[-0.25]])


def test_integer_rate_takes_fractions_later() -> None:
    optimizer = keras3.from_thalweg(optimizers.SGD(1))
    optimizer.learning_rate = 0.5
    assert optimizer.wrapped.learning_rate.numpy() == 0.5


def test_integer_variable_as_rate_raises() -> None:
    inner = optimizers.SGD(1)
    inner.apply_gradients([([1.0], thalweg.Variable([1.0]))])
    with pytest.raises(InvalidTypeError, match="learning_rate of 'SGD' is an integer variable"):
        keras3.from_thalweg(inner)


def test_learning_rate_scheduler_callback_sets_the_rate() -> None:
    optimizer = keras3.SGD(0.5)
    rates: list[float] = []
    callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5 / (epoch + 1))
    recorder = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rates.append(float(optimizer.wrapped.learning_rate))
    )
    train(make_model(optimizer), epochs=3, callbacks=[callback, recorder])
    np.testing.assert_allclose(rates, [0.5, 0.25, 0.5 / 3], rtol=1e-6)


def test_reduce_on_plateau_callback_sets_the_rate() -> None:
    optimizer = keras3.Adam(0.5)
    callback = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=0, min_delta=1e9)
    train(make_model(optimizer), epochs=3, callbacks=[callback])
    assert optimizer.wrapped.learning_rate.numpy() == 0.125


@pytest.mark.parametrize("name", ["beta_1", "beta_2"])
def test_hyperparameters_are_attributes(name: str) -> None:
    optimizer = keras3.Adam()
    setattr(optimizer, name, 0.5)
    assert float(getattr(optimizer, name)) == 0.5
    assert optimizer.get_config()[name] == 0.5


def test_missing_attribute_raises() -> None:
    with pytest.raises(AttributeError, match="'SGD' object has no attribute 'beta_1'"):
        keras3.SGD().beta_1  # noqa: B018


def test_weight_decay_is_decoupled() -> None:
    optimizer = keras3.SGD(0.5, weight_decay=0.5)
    variable = keras.Variable(np.array([4.0, 8.0], "f4"))
    optimizer.apply([torch.ones(2)], [variable])
    assert_same(values([variable]), [[2.5, 5.5]])


def test_refused_step_does_not_decay_weights() -> None:
    optimizer = keras3.SGD(0.5, weight_decay=0.5)
    variable = keras.Variable(np.array([4.0, 8.0], "f4"))
    with pytest.raises(InvalidArgumentError, match=r"shape \(3,\)"):
        optimizer.apply([torch.ones(3)], [variable])
    assert_same(values([variable]), [[4, 8]])
    assert int(optimizer.iterations.value) == 0


def test_gradient_accumulation_takes_one_step_for_several() -> None:
    accumulating = keras3.Adam(0.1, gradient_accumulation_steps=2)
    variables = make_variables()
    gradients = make_gradients(0)
    for _ in range(4):
        accumulating.apply(gradients, variables)
    plain_opt, expected = keras3.Adam(0.1), make_variables()
    for _ in range(2):
        plain_opt.apply(gradients, expected)
    assert_same(values(variables), values(expected))
    assert int(accumulating.iterations) == 2


def test_use_ema_averages_variables() -> None:
    optimizer = keras3.SGD(1.0, use_ema=True, ema_momentum=0.5)
    variable = keras.Variable(np.zeros(1, "f4"))
    for _ in range(2):
        optimizer.apply([torch.ones(1)], [variable])
    optimizer.finalize_variable_values([variable])
    assert_same(values([variable]), [[-1.5]])


def test_constraint_follows_the_update() -> None:
    model = make_model(keras3.SGD(0.5), kernel_constraint=keras.constraints.NonNeg())
    train(model)
    assert (values(model.trainable_variables)[0] >= 0).all()


def test_loss_scaled_training_equals_plain_training() -> None:
    scaled_opt = keras.optimizers.LossScaleOptimizer(keras3.Adam(0.01), initial_scale=4.0)
    model, plain_model = make_model(scaled_opt), make_model(keras3.Adam(0.01))
    train(model)
    train(plain_model)
    assert_same(model.get_weights(), plain_model.get_weights())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 7, 11])
@pytest.mark.parametrize(("name", "config"), CONFIGS, ids=IDS)
def test_loss_scaling_skips_a_step_with_a_bad_gradient(
    name: str, config: dict[str, Any], place: int, bad: float
) -> None:
    inner, variables = getattr(keras3, name)(**config), make_variables()
    scaled_opt = keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    scaled_opt.apply([grad * 8 for grad in make_gradients(0)], variables)
    initial = values([*variables, *inner.variables])
    gradients = make_gradients(1)
    gradients[0].view(-1)[place] = bad
    scaled_opt.apply([grad * 8 for grad in gradients])
    assert_same(values([*variables, *inner.variables]), initial)
    assert float(scaled_opt.dynamic_scale.value) == 4.0
    scaled_opt.apply([grad * 4 for grad in make_gradients(1)])
    assert not any(map(np.array_equal, values(variables), initial))


def test_frozen_layer_is_unchanged() -> None:
    model = make_model()
    model.layers[0].trainable = False
    model.compile(optimizer=keras3.Adam(0.1), loss="mse")
    initial = values(model.layers[0].variables)
    train(model)
    assert_same(values(model.layers[0].variables), initial)
    assert len(model.optimizer.get_weights()) == 5


def test_sparse_gradient_changes_only_its_rows() -> None:
    optimizer = keras3.Adagrad(0.5)
    table = keras.Variable(np.ones((4, 2), "f4"))
    slices = thalweg.IndexedSlices(torch.ones(1, 2), torch.tensor([2]))
    optimizer.apply([slices], [table])
    changed_rows = (values([table])[0] != 1).any(axis=1)
    assert changed_rows.tolist() == [False, False, True, False]


STATELESS = [
    lambda rate: keras3.SGD(rate),
    lambda rate: keras3.SGD(rate, momentum=0.9, weight_decay=0.1),
    lambda rate: keras3.Nadam(rate, clipnorm=1.0),
    lambda rate: keras3.Adam(rate, gradient_accumulation_steps=2),
    lambda rate: keras3.Adam(thalweg.schedules.ExponentialDecay(rate, 2, 0.5), use_ema=True),
]


@pytest.mark.parametrize("make", STATELESS, ids=["sgd", "decay", "nadam", "accumulate", "ema"])
def test_stateless_apply_is_apply_on_copies(make: Any) -> None:
    optimizer, variables = make(0.1), make_variables()
    for step in range(2):
        optimizer.apply(make_gradients(step), variables)
    start = [torch.from_numpy(value) for value in values(variables)]
    state = [torch.from_numpy(value) for value in values(optimizer.variables)]
    for step in range(2, 5):
        start, state = optimizer.stateless_apply(state, make_gradients(step), start)
    untouched, optimizer_values = values(variables), values(optimizer.variables)
    reference, expected = make(0.1), make_variables()
    for step in range(5):
        reference.apply(make_gradients(step), expected)
        if step == 1:
            assert_same(untouched, values(expected))
            assert_same(optimizer_values, values(reference.variables))
    assert_same([tensor.detach().numpy() for tensor in start], values(expected))
    assert_same([tensor.detach().numpy() for tensor in state], values(reference.variables))


def sign_update(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    return (var - learning_rate * sign(grad),)


SIGN = thalweg.Rule(
    name="SignSGD", update=sign_update, hypers=(thalweg.Hyper("learning_rate", 0.5),)
)


def test_user_rule_trains_and_is_saved(tmp_path: Path) -> None:
    model = make_model(keras3.from_thalweg(optimizers.RuleOptimizer(SIGN, 0.01)))
    train(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects={"SignSGD": SIGN})
    train(model)
    train(loaded)
    assert_same(loaded.get_weights(), model.get_weights())


def test_user_class_trains_and_is_saved(tmp_path: Path) -> None:
    class Halver(optimizers.Optimizer):
        def __init__(self, name: str = "Halver") -> None:
            super().__init__(name)

        def _create_slots(self, var_list: Any) -> None:
            for var in var_list:
                self.add_slot(var, "count")

        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
            self.get_slot(var, "count").assign_add(torch.ones_like(var))
            var.mul_(0.5)

    model = make_model(keras3.from_thalweg(Halver()))
    initial = values(model.trainable_variables)
    train(model)
    assert_same(values(model.trainable_variables), [value / 16 for value in initial])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", custom_objects={"Halver": Halver})
    assert_same(loaded.optimizer.get_weights(), model.optimizer.get_weights())


def test_two_models_may_share_an_optimizer_of_thalweg() -> None:
    inner = optimizers.Adam(0.01)
    first, second = keras3.from_thalweg(inner), keras3.from_thalweg(inner)
    train(make_model(first))
    train(make_model(second))
    assert len(first.variables) == len(second.variables) == 10
    assert len(inner.get_weights()) == 17


def test_only_optimizers_of_thalweg_can_be_wrapped() -> None:
    with pytest.raises(InvalidTypeError, match=r"optimizer of thalweg\.keras\.optimizers"):
        keras3.from_thalweg(keras.optimizers.SGD())


def test_replaced_variable_raises() -> None:
    optimizer, variables = keras3.SGD(0.1), make_variables()
    optimizer.build(variables)
    variables[0]._initialize(torch.nn.Parameter(torch.zeros(3, 4)))
    with pytest.raises(FailedPreconditionError, match="holds another tensor"):
        optimizer.apply(make_gradients(0), variables)


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ({"0": np.array(3)}, "the state has 1 variables, the optimizer 3"),
        ({"0": np.array(3), "1": np.array(0.1), "2": np.ones(5)}, r"has shape \(5,\)"),
    ],
    ids=["count", "shape"],
)
def test_mismatched_state_raises(store: dict[str, Any], message: str) -> None:
    optimizer = keras3.SGD(0.5, momentum=0.9)
    optimizer.build([keras.Variable(np.ones(2, "f4"))])
    with pytest.raises(CheckpointMismatchError, match=f"{message}.*Nothing was loaded"):
        optimizer.load_own_variables(store)
    assert int(optimizer.iterations.value) == 0


def test_importing_thalweg_imports_no_keras() -> None:
    process = fresh_process.run("import sys, thalweg; sys.exit('keras' in sys.modules)")
    assert process.returncode == 0, process.stderr


def test_other_backend_raises() -> None:
    run = fresh_process.run("import thalweg.integrations.keras3", KERAS_BACKEND="jax")
    assert "FailedPreconditionError" in run.stderr
    assert "the backend is 'jax'. Set the environment variable KERAS_BACKEND=torch" in run.stderr


def test_missing_keras_raises() -> None:
    hide = "import sys; sys.meta_path.insert(0, type('F', (), {'find_spec': staticmethod(fail)}))"
    fail = (
        "def fail(name, path=None, target=None):\n"
        " if name == 'keras': raise ModuleNotFoundError('no keras', name='keras')\n"
    )
    process = fresh_process.run(f"{fail}{hide}\nimport thalweg.integrations.keras3")
    assert "needs Keras 3. Install it with: pip install 'thalweg[keras]'" in process.stderr


# Compiled, and forked


@pytest.mark.slow
def test_jit_compile_trains_with_the_same_bits(monkeypatch):
    def weights(**compiled: Any) -> list[Any]:
        model = make_model()
        model.compile(optimizer=keras3.Adam(0.1, weight_decay=0.1), loss="mse", **compiled)
        train(model, epochs=2)
        return model.get_weights()

    expected = weights()
    # Inductor would compute the loss with other roundings.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    for compiled_weight, eager_weight in zip(weights(jit_compile=True), expected, strict=True):
        np.testing.assert_array_equal(compiled_weight, eager_weight)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own
def test_jit_compile_trains():
    model = make_model()
    model.compile(optimizer=keras3.Adam(0.1), loss="mse", jit_compile=True)
    losses = train(model, epochs=3).history["loss"]
    assert losses[-1] < losses[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_step_under_way_at_a_fork_is_neither_continued_nor_saved(tmp_path):
    stop = Stop()
    model = make_model(keras3.Adam(0.1))
    train(model)
    file = str(tmp_path / "before.weights.h5")
    model.save_weights(file)
    wrapped = model.optimizer.wrapped

    def hold() -> None:
        with wrapped._lock:
            stop()

    def child() -> Any:
        messages = []
        initial = model.get_weights()
        uses = [lambda: train(model), lambda: model.save_weights(str(tmp_path / "x.weights.h5"))]
        for use in [*uses, model.optimizer.get_weights]:
            with pytest.raises(RuntimeError, match="forked") as error:
                use()
            messages.append(str(error.value))
        is_equal = all(map(np.array_equal, initial, model.get_weights()))
        model.load_weights(file)
        train(model)
        model.save_weights(str(tmp_path / "x.weights.h5"))
        return messages, is_equal

    with stop.reached_by(hold):
        messages, is_equal = run_in_child(child)
    assert len(messages) == 3
    assert is_equal


@pytest.mark.parametrize("kind", ["class", "layer"])
@pytest.mark.parametrize("width", [3, 4])
def test_slots_in_keras_files_are_never_those_of_other_variables(
    kind: str, width: int, tmp_path: Path
) -> None:
    class Two(keras.Model if kind == "class" else keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.zeta, self.alpha = keras.layers.Dense(width), keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.alpha(self.zeta(x))

    model = Two() if kind == "class" else keras.Sequential([keras.Input((3,)), Two()])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss="mse")
    model.fit(np.ones((4, 3)), np.eye(4, 3), verbose=0)
    model.save(tmp_path / "model.keras")
    file = load(tmp_path / "model.keras")
    (loaded,) = file.optimizers
    trained = [*zip(model.trainable_variables, model.optimizer.momentums, strict=True)]
    if width == 3:  # nothing tells which of the two was made first
        assert loaded.slots == {}
        with pytest.raises(CheckpointMismatchError, match="cannot be told to be slots of its"):
            restore(file, {n: thalweg.Variable(v.array(), n) for n, v in file.variables.items()})
        return
    for name, slots in loaded.slots.items():
        array = file.variables[name].array()
        ((_, slot),) = [
            pair for pair in trained if np.array_equal(pair[0].numpy(), array) and array.any()
        ]
        np.testing.assert_array_equal(slots["momentum"].array(), slot.numpy())
    assert len(loaded.slots) == 4


FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {"decay": 0.1}),
    "amsgrad": ("Adam", {"amsgrad": True}),
    "adamax": ("Adamax", {}),
    "nadam": ("Nadam", {"schedule_decay": 0.01}),
    "adadelta": ("Adadelta", {}),
    "ftrl": ("Ftrl", {}),
    "rmsprop": ("RMSprop", {}),
    "centered": ("RMSprop", {"momentum": 0.5, "centered": True}),
    "adagrad": ("Adagrad", {}),
    "sgd": ("SGD", {"momentum": 0.9}),
}


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("error::thalweg.NumericsWarning")
@pytest.mark.parametrize("same_shapes", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_files_with_package_classes_resume_bit_exact(
    name: str, same_shapes: bool, tmp_path: Path
) -> None:
    cls, options = FILES[name]
    layers = [keras.layers.Dense(4, use_bias=not same_shapes) for _ in range(2)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    optimizer = getattr(keras3, cls)(0.01, **options)
    model.compile(optimizer, loss="mse")
    model.fit(np.eye(8, 4), np.ones((8, 4)), verbose=0, epochs=3)
    model.save(tmp_path / "model.keras")
    file = load(tmp_path / "model.keras")
    targets = {n: thalweg.Variable(v.array(), n) for n, v in file.variables.items()}
    loaded = restore(file, targets)
    gradients = [torch.ones(var.shape) for var in targets.values()]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    loaded.apply_gradients(zip(gradients, targets.values(), strict=True))
    for var, trained in zip(targets.values(), model.trainable_variables, strict=True):
        assert np.array_equal(var.numpy(), keras.ops.convert_to_numpy(trained))


@pytest.mark.parametrize("target", ["optimizer", "model"])
def test_taken_steps_are_reported(target: str) -> None:
    optimizer = keras3.Adam(gradient_accumulation_steps=2)
    model = make_model(optimizer)
    recorder = thalweg.diagnostics.attach(model if target == "model" else optimizer)
    train(model, epochs=2)
    names = [f"{weight.path}:0" for weight in model.trainable_variables]
    assert (list(recorder.table), recorder.table.step) == (names, 4)  # of eight batches
    assert (recorder.table.unchanged == 0).all()


def test_diagnostics_are_logged_by_callbacks(tmp_path: Path) -> None:
    from thalweg import optim
    from thalweg.integrations.keras3.diagnostics import LogDiagnostics
    from thalweg.optim.diagnostics import Diagnostics

    class Own(keras.Model):
        """Model whose steps are those of a torch-style optimizer."""

        def __init__(self, recorder: Diagnostics) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)
            self.build((None, 5))
            params = [(var.path, var.value) for var in self.trainable_variables]
            self.fused: Any = optim.AdamW(params, lr=0.01, diagnostics=recorder)

        def build(self, shape: Any) -> None:
            self.layer.build(shape)
            self.built = True

        def call(self, x: Any) -> Any:
            return self.layer(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            self.fused.zero_grad()
            loss = self.compute_loss(x, y, self(x))
            loss.backward()
            self.fused.step()
            return {"mine": loss.detach()}

    tables: list[Any] = []
    batches: list[dict[str, float]] = []
    recorder = Diagnostics(3, [tables.append])
    model = Own(recorder)
    model.compile(loss="mse")
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: batches.append(logs))
    file = keras.callbacks.CSVLogger(tmp_path / "run.csv")
    history = train(model, 2, callbacks=[LogDiagnostics(recorder, [note, file], ["ratio", "clip"])])
    assert list(history.history) == ["mine"]  # nobody else is given them
    assert recorder.sinks == [tables.append]  # nor after the training
    assert [table.step for table in tables] == [3, 6]
    numbers = [table.scalars(["ratio", "clip"]) for table in tables]
    assert len(numbers[0]) == 4
    expected = [numbers[step // 3 - 1] if step % 3 == 0 else {} for step in range(1, 9)]
    assert [{k: v for k, v in logs.items() if k != "mine"} for logs in batches] == expected
    with (tmp_path / "run.csv").open() as text:
        rows = [*csv.DictReader(text)]
    assert [{k: float(row[k]) for k in numbers[0]} for row in rows] == numbers
    with pytest.raises(InvalidTypeError, match="recorder must be a Diagnostics, not 3"):
        LogDiagnostics(3, [])  # pyright: ignore[reportArgumentType]
    with pytest.raises(InvalidArgumentError, match="columns has 'norm'"):
        LogDiagnostics(recorder, [], ["norm"])
