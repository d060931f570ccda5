"""Graphs and eager mode beside each other: what passes over, and what is refused with advice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.v1 as tf
from thalweg import GradientTape, Variable
from thalweg._graph import Graph, Operation, Session, global_variables_initializer
from thalweg._graph import Variable as GraphVariable
from thalweg.keras import optimizers
from thalweg.keras.optimizers import SGD
from thalweg.v1 import train

Use = Callable[[Any, Any], Any]
ONES = torch.ones(2)


def placeholder() -> Any:
    with tf.Graph().as_default():
        return tf.placeholder(tf.float32, [2], name="x")


def descent(rate: Any = 0.1) -> Any:
    return tf.train.GradientDescentOptimizer(rate)


def taped(x: Any, w: Any) -> Any:
    with GradientTape() as tape:
        loss = (x * w.detach()).sum()
    return tape.gradient(loss, w)


USES: dict[str, tuple[Use, type[Exception], str]] = {
    "numpy": (lambda x, w: x.numpy(), TypeError, "feed it: feed_dict"),
    "float": (lambda x, w: float(x), TypeError, "feed it: feed_dict"),
    "sum": (lambda x, w: float(x.sum()), TypeError, r"'sum:0' .* Session\.run"),
    "bool": (lambda x, w: bool(x), TypeError, "feed it: feed_dict"),
    "asarray": (lambda x, w: np.asarray(x), TypeError, "feed it: feed_dict"),
    "torch.tensor": (lambda x, w: torch.tensor(x), TypeError, "feed it: feed_dict"),
    "Variable": (lambda x, w: Variable(x), TypeError, "feed it: feed_dict"),
    "assign": (lambda x, w: w.assign(x), TypeError, "feed it: feed_dict"),
    "copy_": (lambda x, w: torch.ones(2).copy_(x), TypeError, "Use assign"),
    "keras gradient": (
        lambda x, w: SGD(0.1).apply_gradients([(x, w)]), ValueError, "This is eager mode: fetch",
    ),
    "keras variable": (
        lambda x, w: SGD(0.1).apply_gradients([(ONES, x)]), NotImplementedError, "computed or fed",
    ),
    "keras loss": (lambda x, w: SGD(0.1).minimize(x, [w]), RuntimeError, "This is eager mode"),
    "keras loss function": (
        lambda x, w: SGD(0.1).minimize(lambda: x, [w]), TypeError, "belongs to a graph",
    ),
    "keras rate": (
        lambda x, w: SGD(x).apply_gradients([(ONES, w)]), TypeError, "belongs to a graph",
    ),
    "v1 gradient": (
        lambda x, w: descent().apply_gradients([(x, w)]), ValueError, "This is eager mode: fetch",
    ),
    "v1 variable": (
        lambda x, w: descent().apply_gradients([(ONES, x)]), NotImplementedError, "computed or fed",
    ),
    "v1 loss": (lambda x, w: descent().minimize(x), RuntimeError, "This is eager mode: fetch"),
    "v1 loss function": (
        lambda x, w: descent().minimize(lambda: x, var_list=[w]), TypeError, "belongs to a graph",
    ),
    "v1 rate": (
        lambda x, w: descent(x[0]).apply_gradients([(ONES, w)]), TypeError, "Session.run",
    ),
    "gradients": (lambda x, w: tf.gradients(x, [x]), RuntimeError, "This is eager mode: fetch"),
    "tape": (taped, TypeError, "belongs to a graph"),
}  # fmt: skip


@pytest.mark.parametrize(("use", "error", "message"), USES.values(), ids=USES.keys())
def test_placeholder_in_eager_mode_raises(use: Use, error: type[Exception], message: str) -> None:
    w = Variable([1.0, 2.0], name="w")
    with pytest.raises(error, match=message):
        use(placeholder(), w)
    assert w.tolist() == [1.0, 2.0]


def test_repr_of_a_placeholder_needs_no_value() -> None:
    assert f"{placeholder()}" == "<tf.Tensor 'x:0' shape=(2,) dtype=float32>"


@pytest.mark.parametrize(
    "make", [lambda: train.GradientDescentOptimizer(1.0), lambda: optimizers.SGD(1.0)]
)
def test_building_a_graph_takes_no_step(make: Any) -> None:
    w, opt = Variable([2.0], name="w"), make()
    pairs = [(torch.ones(1), w)]
    for _ in range(2):
        opt.apply_gradients(pairs)
    with Graph().as_default():
        train_op = opt.apply_gradients(pairs)
    assert isinstance(train_op, Operation)
    assert w.tolist() == [0.0]


def test_a_variable_of_a_graph_can_be_trained_by_a_used_optimizer() -> None:
    opt = train.GradientDescentOptimizer(1.0)
    opt.apply_gradients([(torch.ones(1), Variable([1.0]))])
    with Graph().as_default():
        w = GraphVariable([3.0])
        op = opt.minimize((w * 1.0).sum())
        with Session() as session:
            session.run(global_variables_initializer())
            session.run(op)
            assert session.run(w).tolist() == [2.0]


@pytest.mark.parametrize("function", [tf.convert_to_tensor, lambda x: tf.cast(x, torch.float64)])
def test_eager_gradients_flow_through_conversions(function: Any) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    (grad,) = torch.autograd.grad(function(w).square().sum(), [w])
    assert grad.tolist() == [2.0, 4.0]
