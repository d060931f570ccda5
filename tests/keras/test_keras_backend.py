"""`tf.keras.backend`: values of variables in either mode, and the session of graph mode."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg
import thalweg.tf as tf
from thalweg import _graph as tf1
from thalweg.errors import FailedPreconditionError
from thalweg.keras import backend, optimizers

K = tf.keras.backend


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """No test leaves its session behind."""
    yield
    K.set_session(None)


def test_the_facade_has_the_functions_under_both_names() -> None:
    modules = (K, tf.compat.v1.keras.backend)
    for name in ("get_value", "set_value", "batch_get_value", "batch_set_value", "get_session"):
        assert all(getattr(module, name) is getattr(backend, name) for module in modules)


def test_eager_set_value_takes_effect_immediately() -> None:
    opt = optimizers.SGD(0.5)
    w = thalweg.Variable([1.0, 2.0])
    K.set_value(opt.lr, 0.25)
    K.batch_set_value([(w, np.array([3, 4])), (opt.iterations, 7)])
    assert K.get_value(opt.lr) == opt.get_config()["learning_rate"] == 0.25
    values = K.batch_get_value([w, opt.iterations, "no tensor"])
    assert [np.asarray(value).tolist() for value in values] == [[3.0, 4.0], 7, "no tensor"]
    assert isinstance(K.get_value(w), np.ndarray)


def test_backend_functions_accept_keras_3_variables() -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    opt = tf.keras.optimizers.SGD(0.5)
    model.compile(opt, loss="mse")
    assert model.optimizer is opt
    model.build((None, 2))
    K.set_value(model.optimizer.lr, 0.25)
    K.set_value(model.layers[0].kernel, np.ones((2, 1)))
    assert K.get_value(model.optimizer.lr) == opt.lr.item() == 0.25
    assert K.get_value(model.layers[0].kernel).tolist() == [[1.0], [1.0]]
    model.optimizer.lr = 0.125
    assert float(opt.learning_rate) == 0.125


@pytest.mark.parametrize(
    ("value", "message"),
    [([1.0], "of shape"), ("x", "Cannot convert"), ([[1.0, 2.0]], "of shape")],
)
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_mismatched_value_raises(mode: str, value: Any, message: str) -> None:
    if mode == "eager":
        w = thalweg.Variable([1.0, 2.0])
        with pytest.raises(ValueError, match=message):
            K.batch_set_value([(w, [3.0, 4.0]), (w, value)])
        assert w.tolist() == [1.0, 2.0]
        return
    with tf1.Graph().as_default(), tf1.Session() as session:
        u = tf1.Variable([1.0, 2.0])
        session.run(u.initializer)
        with pytest.raises(ValueError, match=message):
            K.batch_set_value([(u, [3.0, 4.0]), (u, value)])
        assert session.run(u).tolist() == [1.0, 2.0]


def test_values_of_a_graph_are_those_of_the_default_session() -> None:
    with tf1.Graph().as_default():
        w, x = tf1.Variable([1.0, 2.0]), tf1.placeholder("float32", [])
        first, second = tf1.Session(), tf1.Session()
        for session in (first, second):
            session.run(tf1.global_variables_initializer())
        with first.as_default():
            K.set_value(w, np.float64([3, 4]))
            assert K.get_value(w * 2.0).tolist() == [6.0, 8.0]
            assert K.get_session() is first
            with pytest.raises(ValueError, match="feed"):
                K.get_value(x)
        assert second.run(w).tolist() == [1.0, 2.0]


def test_get_session_creates_or_returns_the_set_session() -> None:
    with tf1.Graph().as_default() as graph:
        w = tf1.Variable(8.0)
        opt = optimizers.SGD(1.0)
        train = opt.minimize(1.0 * w, [w])
        with pytest.raises(FailedPreconditionError, match="set_session"):
            K.get_value(opt.lr)
        session = K.get_session()
        assert session is K.get_session()
        assert session.graph is graph
        session.run(w.initializer)  # the optimizer's own have their values by now
        session.run(train)
        opt.lr = 0.5
        session.run(train)
        assert K.batch_get_value([w, opt.lr, opt.iterations]) == [6.5, 0.5, 2]
        other_session = tf1.Session()
        K.set_session(other_session)
        assert K.get_value(opt.lr) == 1.0
        assert session.run(opt.lr) == 0.5
    with tf1.Graph().as_default():
        assert K.get_session() not in (session, other_session)


def test_a_new_variable_of_an_optimizer_needs_no_initializer_to_be_read() -> None:
    with tf1.Graph().as_default(), tf1.Session() as session:
        w = tf1.Variable(8.0)
        session.run(w.initializer)
        opt = optimizers.SGD(1.0)
        train = opt.minimize(1.0 * w, [w])
        assert K.get_value(opt.lr) == 1.0
        session.run(train)
        with pytest.raises(FailedPreconditionError, match="uninitialized"):
            K.get_value(tf1.Variable(1.0))


def test_backend_has_keras_settings_and_missing_names_advise() -> None:
    assert K.floatx() == "float32"
    assert K.epsilon() == 1e-7
    K.clear_session()
    with pytest.raises(AttributeError, match=r"use tf\.keras\.ops, or torch"):
        _ = K.conv2d
