"""Hyperparameters of Keras' optimizers as variables of a graph: each session has its own values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
import thalweg.v1 as tf
from thalweg import _graph as tf1
from thalweg.errors import FailedPreconditionError
from thalweg.keras import backend, optimizers
from thalweg.keras.optimizers import schedules

STEPS = 5
RULES: dict[str, Callable[..., Any]] = {
    "SGD": lambda rate, **kw: optimizers.SGD(rate, momentum=0.9, nesterov=True, **kw),
    "plain": lambda rate, **kw: optimizers.SGD(rate, **kw),
    "Adam": lambda rate, **kw: optimizers.Adam(rate, amsgrad=True, **kw),
    "Adamax": lambda rate, **kw: optimizers.Adamax(rate, **kw),
    "Nadam": lambda rate, decay=None, **kw: optimizers.Nadam(rate, **kw),
    "Adagrad": lambda rate, **kw: optimizers.Adagrad(rate, **kw),
    "Adadelta": lambda rate, **kw: optimizers.Adadelta(rate, **kw),
    "RMSprop": lambda rate, **kw: optimizers.RMSprop(rate, momentum=0.9, centered=True, **kw),
    "Ftrl": lambda rate, **kw: optimizers.Ftrl(rate, **kw),
}
RATES = ["constant", "assigned", "schedule", "placeholder", "decayed", "schedule of a placeholder"]
CASES = [(rate, "float32") for rate in RATES] + [("decayed", "float64")]
SET_RATES = [0.1, 0.1, 0.3, 0.2, 0.05]


def session_of(graph: Any = None) -> Any:
    session = tf1.Session(graph=graph)
    session.run(tf1.global_variables_initializer())
    return session


def start(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(0)
    return rows.normal(size=(5, 3)).astype(dtype), rows.normal(size=(STEPS, 5, 3)).astype(dtype)


def halving(rate: Any) -> Any:
    return schedules.ExponentialDecay(rate, 2, 0.5)


def eagerly(rule: str, rate: str, dtype: str) -> list[Any]:
    value, grads = start(dtype)
    w = thalweg.Variable(value, "w")
    if rate == "schedule of a placeholder":
        opt = RULES[rule](0.1)
    else:
        opt = RULES[rule](halving(0.1) if rate == "schedule" else 0.1, **decay(rate))
    for step in range(STEPS):
        if rate in ("assigned", "placeholder", "decayed"):
            opt.learning_rate = SET_RATES[step]
        if rate == "schedule of a placeholder":
            opt.learning_rate = halving(SET_RATES[step])
        opt.apply_gradients([(torch.tensor(grads[step]), w)])
    return [w.numpy(), *opt.get_weights()]


def decay(rate: str) -> dict[str, float]:
    return {"decay": 0.25, "clipnorm": 1.5} if rate == "decayed" else {}


def in_graph(rule: str, rate: str, dtype: str) -> list[Any]:
    value, grads = start(dtype)
    with tf1.Graph().as_default():
        w, grad = tf1.Variable(value, name="w"), tf1.placeholder(dtype, [5, 3])
        fed_rate = tf1.placeholder("float32", [])
        rates: dict[str, Any] = {
            "schedule": halving(0.1), "placeholder": fed_rate,
            "schedule of a placeholder": halving(fed_rate),
        }  # fmt: skip
        opt = RULES[rule](rates.get(rate, 0.1), **decay(rate))
        train = opt.apply_gradients([(grad, w)])
        with session_of() as session:
            for step in range(STEPS):
                if rate in ("assigned", "decayed"):
                    session.run(opt.lr.assign(SET_RATES[step]))
                feeds = {grad: grads[step]}
                session.run(
                    train, feeds | ({fed_rate: SET_RATES[step]} if "placeholder" in rate else {})
                )
            return [session.run(w), *opt.get_weights()]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("rate", "dtype"), CASES)
@pytest.mark.parametrize("rule", RULES)
def test_a_session_has_the_bits_of_eager_mode(rule: str, rate: str, dtype: str) -> None:
    if rule == "Nadam" and "schedule" in rate:
        pytest.skip("Nadam takes no schedule")
    expected, got = eagerly(rule, rate, dtype), in_graph(rule, rate, dtype)
    assert len(got) == len(expected)
    for array, expected_array in zip(got, expected, strict=True):
        np.testing.assert_array_equal(array, expected_array)


def descent(rate: Any = 1.0, **options: Any) -> tuple[Any, Any, Any]:
    """A variable whose gradient is 1, its optimizer, and the step."""
    w = tf1.Variable(8.0, name="w")
    opt = optimizers.SGD(rate, **options)
    return w, opt, opt.minimize(1.0 * w, [w])


def names_of(variables: Any) -> list[str]:
    return [var.name.removesuffix(":0") for var in variables]


HYPERS = ["beta_1", "beta_2", "decay", "learning_rate"]


def test_variables_have_the_names_and_the_order_of_tensorflow() -> None:
    with tf1.Graph().as_default() as graph:
        w, u = (tf1.Variable([1.0, 2.0], name=name) for name in "wu")
        opt = optimizers.Adam(0.1)
        ops = [opt.minimize((w * w).sum(), [w]), opt.minimize((u * u).sum(), [u], name="train")]
        ops.append(optimizers.Adam(0.1).minimize((u * u).sum(), [u]))
        with tf1.name_scope("outer"):
            ops.append(optimizers.SGD(0.1, momentum=0.9).minimize((w * w).sum(), [w]))
        second_opt = optimizers.SGD(0.5)
        read = [second_opt.learning_rate, second_opt.iterations]
        names = names_of(graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES))
        assert names_of(graph.get_collection(tf1.GraphKeys.TRAINABLE_VARIABLES)) == ["w", "u"]
    assert names == [
        *("w", "u", "Adam/iter", *(f"Adam/{name}" for name in HYPERS), "Adam/w/m", "Adam/w/v"),
        *("Adam_1/u/m", "Adam_1/u/v"),
        *("Adam_2/iter", *(f"Adam_2/{name}" for name in HYPERS), "Adam_2/u/m", "Adam_2/u/v"),
        *(f"outer/SGD/{name}" for name in ("iter", "decay", "learning_rate", "momentum")),
        *("outer/SGD/w/momentum", "decay", "learning_rate", "momentum", "iter"),
    ]
    assert names_of(read) == ["learning_rate", "iter"]
    assert names_of(opt.variables()) == [
        "Adam/iter", "Adam/w/m", "Adam/w/v", "Adam_1/u/m", "Adam_1/u/v",
    ]  # fmt: skip
    scopes = ["Adam/Adam", "Adam_1/train", "Adam_2/Adam", "outer/SGD/SGD"]
    assert [op.name for op in ops] == [f"{scope}/AssignAddVariableOp" for scope in scopes]


@pytest.mark.parametrize(
    ("number", "dtype"), [(1.0, "float32"), (1, "int32"), (np.float64(0.1), "float64")]
)
def test_a_number_gives_the_variable_its_dtype(number: Any, dtype: str) -> None:
    with tf1.Graph().as_default():
        rate = descent(number)[1].learning_rate
        assert isinstance(rate, tf1.GraphVariable)
        assert not rate.trainable
        with session_of() as session:
            value = session.run(rate)
    assert (str(value.dtype), value) == (dtype, number)


def set_attribute(session: Any, opt: Any, value: float) -> None:
    opt.learning_rate = value


CHANGES: dict[str, Callable[[Any, Any, float], Any]] = {
    "assign": lambda session, opt, value: session.run(opt.lr.assign(value)),
    "assign_add": lambda session, opt, value: session.run(opt.lr.assign_add(value - 1.0)),
    "load": lambda session, opt, value: opt.lr.load(value, session),
    "attribute": set_attribute,
    "lr": lambda session, opt, value: setattr(opt, "lr", value),
    "set_value": lambda session, opt, value: backend.set_value(opt.lr, value),
    "batch_set_value": lambda session, opt, value: backend.batch_set_value([(opt.lr, value)]),
    "array": lambda session, opt, value: backend.set_value(opt.lr, np.array(value)),
    "tensor": lambda session, opt, value: setattr(opt, "lr", torch.tensor(value)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_session_has_a_separate_rate(change: str) -> None:
    with tf1.Graph().as_default():
        w, opt, train = descent()
        session, second = session_of(), session_of()
        with session.as_default():
            CHANGES[change](session, opt, 0.5)
            assert backend.get_value(opt.lr) == opt.get_config()["learning_rate"] == 0.5
        for any_session in (session, second):
            any_session.run(train)
        assert (session.run(opt.lr), second.run(opt.lr)) == (0.5, 1.0)
        assert (session.run(w), second.run(w)) == (7.5, 7.0)


def test_other_hyperparameters_and_iterations_can_be_set() -> None:
    with tf1.Graph().as_default():
        w = tf1.Variable(8.0)
        opt = optimizers.SGD(schedules.PiecewiseConstantDecay([9.0], [1.0, 0.25]), momentum=0.5)
        train = opt.minimize(1.0 * w, [w])
        with session_of() as session:
            session.run(train)
            opt.momentum = 0.0
            session.run(opt.iterations.assign(10))
            session.run(train)
            assert session.run([w, opt.iterations]) == [8 - 1 - 0.25, 11]


def test_step_reads_hyperparameters_before_assignments() -> None:
    with tf1.Graph().as_default():
        w = tf1.Variable(8.0)
        opt = optimizers.SGD(1.0)
        early = opt.learning_rate.assign(0.25)
        train = opt.minimize(1.0 * w, [w])
        late = opt.learning_rate.assign(0.5)
        with tf1.control_dependencies([early]):
            train_op = opt.apply_gradients([(torch.tensor(1.0), w)])
        with session_of() as session:
            session.run([train, early])
            assert session.run([w, opt.lr]) == [7.0, 0.25]
            session.run([train, late])
            assert session.run([w, opt.lr]) == [6.75, 0.5]
            session.run(train_op)
            assert session.run([w, opt.lr]) == [6.5, 0.25]


@pytest.mark.parametrize("new", ["schedule", "number"])
def test_built_step_keeps_its_learning_rate(new: str) -> None:
    with tf1.Graph().as_default():
        rate = tf1.placeholder_with_default(1.0, [])
        w, opt, train = descent(rate)
        opt.learning_rate = halving(4.0) if new == "schedule" else 4.0
        late_op = opt.apply_gradients([(torch.tensor(1.0), w)])
        with session_of() as session:
            session.run(train)
            assert session.run(w) == 7.0
            session.run(train, {rate: 0.5})
            session.run(late_op)
            assert session.run(w) == 6.5 - (2.0 if new == "schedule" else 4.0)


def test_learning_rate_can_be_fed() -> None:
    with tf1.Graph().as_default():
        w, opt, train = descent()
        with session_of() as session:
            session.run(train, {opt.learning_rate: 0.5})
            session.run(train)
            assert session.run(w) == 6.5


@pytest.mark.parametrize("created", [False, True], ids=["new", "stepped"])
def test_user_variable_as_rate_is_assigned(created: bool) -> None:
    with tf1.Graph().as_default():
        w, rate = tf1.Variable(8.0), tf1.Variable(1.0, trainable=False)
        opt = optimizers.SGD(rate)
        train = opt.minimize(1.0 * w, [w]) if created else None
        with session_of() as session:
            opt.learning_rate = 0.5
            if train is None:
                train = opt.minimize(1.0 * w, [w])
                session.run(opt.iterations.initializer)
                session.run([opt.decay.initializer, opt.momentum.initializer])
            session.run(train)
            assert session.run([rate, w]) == [0.5, 7.5]


class Warm(schedules.LearningRateSchedule):
    """A schedule of a user's."""

    def __init__(self, rate: Any) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        rate = self.rate(step) if callable(self.rate) else self.rate
        return rate / (step + 1)


@pytest.mark.parametrize("kind", ["number", "variable", "schedule"])
def test_user_schedule_gives_the_rate(kind: str) -> None:
    with tf1.Graph().as_default():
        rate: Any = 1.0 if kind == "number" else tf1.Variable(1.0, trainable=False)
        inner = schedules.ExponentialDecay(rate, 1, 0.5) if kind == "schedule" else rate
        w, _, train = descent(Warm(inner))
        with session_of() as session:
            session.run([train])
            session.run([train])
            assert session.run(w) == 8 - 1 - (0.25 if kind == "schedule" else 0.5)
            if kind == "variable":
                session.run(rate.assign(6.0))
                session.run(train)
                assert session.run(w) == 6.5 - 2.0


def test_a_schedule_of_a_tensor_is_a_tensor() -> None:
    with tf1.Graph().as_default():
        _, opt, train = descent(halving(0.5))
        rates = [halving(0.5)(opt.iterations), opt._decayed_lr("float64"), opt.lr(opt.iterations)]
        assert all(map(tf1.is_symbolic, rates))
        with session_of() as session:
            for _ in range(4):
                session.run(train)
            assert session.run(rates) == [0.125] * 3


@pytest.mark.parametrize("kind", ["number", "placeholder", "callable"])
def test_the_rate_of_a_step_is_a_tensor_of_the_graph(kind: str) -> None:
    number = 0.5
    with tf1.Graph().as_default():
        rate_input: Any = tf1.placeholder("float32", []) if kind == "placeholder" else 0.5
        _, opt, train = descent(lambda: 0.5 if kind == "callable" else rate_input, decay=0.5)
        if kind != "callable":
            _, opt, train = descent(rate_input, decay=0.5)
        rate, cast = opt._decayed_lr("float32"), opt._get_hyper("decay", "float64")
        feeds = {rate_input: number} if kind == "placeholder" else {}
        with session_of() as session:
            rate_before = session.run(rate, feeds)
            session.run(train, feeds)
            session.run(train, feeds)
            assert (rate_before, session.run(rate, feeds)) == (0.5, 0.25)
            assert session.run(cast) == np.float64(0.5)


class Subclass(optimizers.Optimizer):
    """As TensorFlow Addons writes them: hooks that read hyperparameters."""

    def __init__(self, rate: Any = 1.0) -> None:
        super().__init__("Subclass")
        self._set_hyper("learning_rate", rate)
        self._set_hyper("factor", 2.0)

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        factor = self._get_hyper("factor", var_dtype)
        apply_state[var_device, var_dtype]["factor"] = factor * self._get_hyper("factor")

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        coefficients = apply_state[str(var.device), var.dtype]
        assert coefficients["factor"].dtype == coefficients["lr_t"].dtype == var.dtype
        var.sub_(coefficients["lr_t"] * coefficients["factor"] * grad)

    def get_config(self) -> dict[str, Any]:
        names = ("learning_rate", "factor")
        return {
            **super().get_config(),
            **{name: self._serialize_hyperparameter(name) for name in names},
        }


def test_hooks_of_a_subclass_read_the_values_of_the_session() -> None:
    with tf1.Graph().as_default():
        w = tf1.Variable(8.0)
        opt = Subclass()
        train = opt.minimize(1.0 * w, [w])
        with session_of() as session:
            session.run(train)
            session.run([opt.factor.assign(1.0), opt.lr.assign(0.5)])
            session.run(train)
            assert session.run(w) == 8 - 4 - 0.5
            assert opt.get_config() == {"name": "Subclass", "learning_rate": 0.5, "factor": 1.0}


def test_weights_and_configs_use_the_default_session() -> None:
    with tf1.Graph().as_default():
        _, opt, train = descent(0.5, momentum=0.5)
        assert opt.get_config()["learning_rate"] == 0.5  # no session: that of a new one
        with pytest.raises(FailedPreconditionError, match="inside `with session:`"):
            opt.learning_rate = 0.25
        with pytest.raises(FailedPreconditionError, match="inside `with session:`"):
            opt.get_weights()
        with session_of() as session:
            session.run(train)
            opt.learning_rate = 0.25
            weights, config = opt.get_weights(), opt.get_config()
            assert weights == [1, -0.5]
            assert config["learning_rate"] == 0.25
            session.run(train)
            opt.set_weights(weights)
            assert opt.get_weights() == weights
        twin = optimizers.SGD.from_config(config)
        assert twin.get_config() == config


CHANGED_WRONGLY: dict[str, tuple[Any, str]] = {
    "callable": (lambda: 0.5, "cannot become the callable"),
    "tensor of the graph": (lambda: tf1.constant(0.5), "cannot become the"),
    "text": ("fast", "must be a number"),
    "nan": (float("nan"), "is nan"),
    "shape": ([1.0, 2.0], "must be a number"),
}


@pytest.mark.parametrize(("value", "message"), CHANGED_WRONGLY.values(), ids=CHANGED_WRONGLY)
def test_unassignable_rate_raises(value: Any, message: str) -> None:
    with tf1.Graph().as_default():
        _, opt, _ = descent()
        with session_of() as session:
            rate = value() if message == "cannot become the" else value
            with pytest.raises(ValueError, match=message):
                opt.learning_rate = rate
            assert session.run(opt.lr) == 1.0


def test_optimizer_belongs_to_one_graph() -> None:
    with tf1.Graph().as_default():
        _, opt, _ = descent()
    w = thalweg.Variable(8.0)
    with pytest.raises(FailedPreconditionError, match=r"'SGD/iter:0' .* another graph"):
        opt.apply_gradients([(torch.tensor(1.0), w)])
    with pytest.raises(FailedPreconditionError, match=r"by thalweg\.v1\.train\.Saver"):
        opt.state_dict()
    with tf1.Graph().as_default() as graph:
        u = tf1.Variable(8.0)
        with pytest.raises(FailedPreconditionError, match=r"'SGD/iter:0' .* another graph"):
            opt.minimize(1.0 * u, [u])
        assert len(graph.get_collection("variables")) == 1
    assert "learning_rate=SGD/learning_rate:0" in repr(opt)


def test_empty_step_does_not_count() -> None:
    with tf1.Graph().as_default():
        opt = optimizers.Adam(0.5)
        op = opt.apply_gradients([])
        with session_of() as session:
            assert session.run(op) is None
            assert session.run([opt.iterations, opt.lr]) == [0, 0.5]


def test_finalized_graph_accepts_assigned_values() -> None:
    with tf1.Graph().as_default() as graph:
        w, opt, train = descent()
        with session_of() as session:
            graph.finalize()
            opt.learning_rate = 0.5
            session.run(train)
            assert session.run(w) == 7.5


def test_saver_and_checkpoint_have_the_hyperparameters(tmp_path: Any) -> None:
    with tf1.Graph().as_default():
        w, opt, train = descent(momentum=0.5)
        saver, objects = tf.train.Saver(), tf.train.Checkpoint(optimizer=opt)
        with session_of() as session:
            opt.learning_rate = 0.25
            session.run(train)
            path = saver.save(session, str(tmp_path / "names"))
            objects_path = objects.save(str(tmp_path / "objects"), session=session)
            names = [name for name, _ in tf.train.list_variables(path)]
            keys = [name for name, _ in tf.train.list_variables(objects_path)]
        with session_of() as session:
            saver.restore(session, path)
            assert session.run([opt.lr, w]) == [0.25, 7.75]
        with session_of() as session:
            objects.restore(objects_path).run_restore_ops(session)
            assert session.run([opt.lr, w]) == [0.25, 8.0]
    names_of_hypers = ["decay", "iter", "learning_rate", "momentum"]
    assert names == sorted(["w", "SGD/w/momentum", *(f"SGD/{name}" for name in names_of_hypers)])
    paths = [f"optimizer/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in names_of_hypers]
    assert set(paths) <= set(keys)


def test_eager_checkpoint_restores_the_graph_rate(tmp_path: Any) -> None:
    eager = optimizers.SGD(0.25)
    eager.apply_gradients([(torch.tensor(1.0), thalweg.Variable(1.0))])
    path = tf.train.Checkpoint(optimizer=eager).save(str(tmp_path / "eager"))
    with tf1.Graph().as_default():
        _, opt, _ = descent()
        status = tf.train.Checkpoint(optimizer=opt).restore(path)
        with session_of() as session:
            status.run_restore_ops(session)
            assert session.run([opt.lr, opt.iterations]) == [0.25, 1]
