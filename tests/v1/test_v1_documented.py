"""Statements of TensorFlow's documentation and source that other tests do not cover."""

from __future__ import annotations

import pydoc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from thalweg import Variable, distribute
from thalweg._graph import GraphKeys
from thalweg.openseq2seq.optimizers import automatic_loss_scaler, mp_wrapper, novograd
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib
from thalweg.v1.train import optimizer as base
from thalweg.v1.train.experimental import MixedPrecisionLossScaleOptimizer

v1 = tf.compat.v1


class WithoutTarget(base._OptimizableVariable):
    def update_op(self, optimizer: object, g: object) -> Any:
        return super().update_op(optimizer, g)


class Complete(WithoutTarget):
    def target(self) -> Any:
        return super().target()


def test_optimizable_variable_is_abstract() -> None:
    assert base._OptimizableVariable.__abstractmethods__ == {"target", "update_op"}
    for cls in (base._OptimizableVariable, WithoutTarget):
        with pytest.raises(TypeError, match="abstract method"):
            cls()
    for call in (Complete().target, lambda: Complete().update_op(None, None)):
        with pytest.raises(NotImplementedError, match=r"^Calling an abstract method\.$"):
            call()


@pytest.mark.parametrize("gradient", ["x", 3.0, [1.0], None, np.ones(2)], ids=str)
def test_reference_variables_reject_other_gradients(gradient: object) -> None:
    w = Variable(torch.ones(2), name="w")
    processor = base._RefVariableProcessor(w)
    with pytest.raises(AssertionError, match="is neither a tensor nor IndexedSlices"):
        processor.update_op(train.GradientDescentOptimizer(1.0), gradient)
    assert w.tolist() == [1, 1]


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    "gradient", ["x", object(), {"a": 1}, [1.0, "a"], b"x"], ids=lambda value: type(value).__name__
)
def test_gradients_of_other_types_raise(gradient: object, in_graph: bool) -> None:
    with tf.Graph().as_default() if in_graph else torch.enable_grad():
        w = tf.Variable([1.0, 2.0], name="w")
        with pytest.raises(TypeError, match="Gradient must be convertible to a Tensor or Inde"):
            train.GradientDescentOptimizer(1.0).apply_gradients([(gradient, w)])


OPTIMIZERS: dict[str, tuple[Callable[[], Any], str]] = {
    "sgd": (lambda: train.GradientDescentOptimizer(0.5), "GradientDescent"),
    "momentum": (lambda: train.MomentumOptimizer(0.5, 0.9), "Momentum"),
    "adam": (lambda: train.AdamOptimizer(0.5), "Adam"),
    "rmsprop": (lambda: train.RMSPropOptimizer(0.5), "RMSProp"),
    "ftrl": (lambda: train.FtrlOptimizer(0.5), "Ftrl"),
    "adagrad": (lambda: train.AdagradOptimizer(0.5), "Adagrad"),
    "scaled": (
        lambda: MixedPrecisionLossScaleOptimizer(train.GradientDescentOptimizer(0.5), 8.0),
        "GradientDescent",
    ),
}


@pytest.mark.parametrize("use_resource", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_of_variables_have_operations(name: str, use_resource: bool) -> None:
    make, kernel = OPTIMIZERS[name]
    with tf.Graph().as_default() as graph, v1.Session() as session:
        w, b = (
            v1.get_variable(
                title, [2], initializer=tf.zeros_initializer(), use_resource=use_resource
            )
            for title in ("enc/w", "b")
        )
        step, optimizer = v1.train.create_global_step(), make()
        pairs = [(tf.ones(2), w), (tf.ones(2), b)]
        train_op = optimizer.apply_gradients(pairs, global_step=step)
        assert train_op.name == optimizer.get_name()
        kind = f"ResourceApply{kernel}" if use_resource else f"Apply{kernel}"
        updates = [
            graph.get_operation_by_name(f"{train_op.name}/update_{title}/{kind}")
            for title in ("enc/w", "b")
        ]
        assert graph.get_collection(GraphKeys.TRAIN_OP) == [train_op]
        session.run(v1.global_variables_initializer())
        session.run([train_op, *updates])
        first = session.run([w, b])
        session.run(updates[0])
        second, count = session.run([w, b]), session.run(step)
        assert count == 2
        assert all((low < 0).all() and (two < low).all() for low, two in zip(first, second))
        op = optimizer.apply_gradients(pairs)
        assert graph.get_operation_by_name(f"{op.name}/update_b/{kind}") not in updates


EMPTY: dict[str, Callable[[], Any]] = {
    "sgd": OPTIMIZERS["sgd"][0],
    "scaled": OPTIMIZERS["scaled"][0],
    "averaged": lambda: contrib.MovingAverageOptimizer(OPTIMIZERS["sgd"][0]()),
    "clipped": lambda: contrib.VariableClippingOptimizer(OPTIMIZERS["sgd"][0](), {}, 1.0),
    "decayed": lambda: contrib.MomentumWOptimizer(0.5, 0.5, 0.9),
    "masters": lambda: mp_wrapper.MixedPrecisionOptimizerWrapper(OPTIMIZERS["sgd"][0]()),
    "novograd": lambda: novograd.NovoGrad(),
}


@pytest.mark.parametrize("pairs", [[], (), iter(())], ids=["list", "tuple", "iterator"])
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("name", EMPTY)
def test_apply_gradients_without_variables_raises(name: str, in_graph: bool, pairs: Any) -> None:
    mode = tf.Graph().as_default() if in_graph else torch.enable_grad()
    with mode, pytest.raises(ValueError, match=r"^No variables provided\.") as raised:
        EMPTY[name]().apply_gradients(pairs)
    assert str(raised.value) == "No variables provided."


class Noting(train.GradientDescentOptimizer):
    """Keeps what `_distributed_apply` is given."""

    grads_and_vars: Any = None

    def _distributed_apply(self, distribution: Any, grads_and_vars: Any, *args: Any) -> Any:
        self.grads_and_vars = list(grads_and_vars)
        return super()._distributed_apply(distribution, self.grads_and_vars, *args)


@pytest.mark.parametrize("as_attribute", [False, True])
def test_distributed_apply_gets_no_missing_gradients(as_attribute: bool) -> None:
    w, b = Variable(torch.zeros(2), name="w"), Variable(torch.zeros(2), name="b")
    optimizer: Any = train.GradientDescentOptimizer(1.0) if as_attribute else Noting(1.0)
    if as_attribute:
        inner = optimizer._distributed_apply

        def note(distribution: Any, grads_and_vars: Any, *args: Any) -> Any:
            optimizer.grads_and_vars = list(grads_and_vars)
            return inner(distribution, optimizer.grads_and_vars, *args)

        optimizer._distributed_apply = note
    gradient = torch.ones(2)
    pairs = ((grad, var) for grad, var in [(None, b), (gradient, w)])
    distribute.Strategy().run(lambda: optimizer.apply_gradients(pairs))
    assert [(grad is gradient, var is w) for grad, var in optimizer.grads_and_vars] == [
        (True, True)
    ]
    assert (w.tolist(), b.tolist()) == ([-1, -1], [0, 0])


def test_help_describes_compute_gradients() -> None:
    doc = train.Optimizer.__doc__
    assert doc is not None
    assert "`compute_gradients`" in doc
    for method in ("minimize", "apply_gradients"):
        assert "compute_gradients" in pydoc.render_doc(getattr(train.Optimizer, method))


def test_automatic_loss_scaler_has_only_object_as_base() -> None:
    assert automatic_loss_scaler.AutomaticLossScaler.__bases__ == (object,)
