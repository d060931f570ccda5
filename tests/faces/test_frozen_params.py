"""Parameters frozen by `requires_grad_(False)` do not train; listed `trainable=False` ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thalweg
import thalweg._graph as tf
from sessions import initialized
from thalweg import rules
from thalweg.keras.optimizers import SGD, RuleOptimizer
from thalweg.v1 import train

Minimize = Callable[[Callable[[], Tensor], list[Any]], Any]


def _keras(loss: Callable[[], Tensor], variables: list[Any]) -> Any:
    return SGD(0.25).minimize(loss, variables)


def _of_rule(loss: Callable[[], Tensor], variables: list[Any]) -> Any:
    return RuleOptimizer(rules.SGD, learning_rate=0.25).minimize(loss, variables)


def _v1(gate: int) -> Minimize:
    def minimize(loss: Callable[[], Tensor], variables: list[Any]) -> Any:
        optimizer = train.GradientDescentOptimizer(0.25)
        return optimizer.minimize(loss, var_list=variables, gate_gradients=gate)

    return minimize


every_face = pytest.mark.parametrize(
    "minimize",
    [_keras, _of_rule, *map(_v1, (0, 1, 2))],
    ids=["keras", "RuleOptimizer", "v1-none", "v1-op", "v1-graph"],
)


def _frozen_parameter() -> Tensor:
    return torch.nn.Parameter(torch.ones(2), requires_grad=False)


def _frozen_variable() -> Tensor:
    return thalweg.Variable([1.0, 1.0]).requires_grad_(False)


frozen_ones = pytest.mark.parametrize("make", [_frozen_parameter, _frozen_variable])


@every_face
@frozen_ones
@pytest.mark.filterwarnings("error")
def test_frozen_parameter_is_unchanged(minimize: Minimize, make: Callable[..., Any]) -> None:
    free, frozen = torch.nn.Parameter(torch.ones(2)), make()

    def loss() -> Tensor:
        assert not frozen.requires_grad
        return (free * frozen).sum()

    minimize(loss, [free, frozen])
    assert (free.tolist(), frozen.tolist()) == ([0.75, 0.75], [1.0, 1.0])
    assert (free.requires_grad, frozen.requires_grad) == (True, False)


@every_face
@frozen_ones
def test_all_frozen_parameters_raise(minimize: Minimize, make: Callable[..., Any]) -> None:
    free, frozen = torch.nn.Parameter(torch.ones(2)), make()
    thalweg.named_variables([("still", frozen)])
    with pytest.raises(ValueError, match=r"Frozen by requires_grad_\(False\): \['[A-z]+:0'\]"):
        minimize(lambda: (free * frozen).sum(), [frozen])
    assert (frozen.tolist(), frozen.requires_grad) == ([1.0, 1.0], False)


@every_face
def test_listed_non_trainable_variable_is_trained(
    minimize: Minimize,
) -> None:
    """As in TensorFlow."""
    w = thalweg.Variable([1.0, 1.0], trainable=False)
    minimize(lambda: w.sum(), [w])
    assert (w.tolist(), w.requires_grad) == ([0.75, 0.75], False)


@every_face
def test_loss_error_keeps_parameters_frozen(minimize: Minimize) -> None:
    w, frozen = thalweg.Variable([1.0], trainable=False), _frozen_parameter()

    def loss() -> Tensor:
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        minimize(loss, [w, frozen])
    assert not w.requires_grad
    assert not frozen.requires_grad


@pytest.mark.usefixtures("graph")
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.parametrize("make", [lambda: SGD(0.25), lambda: train.GradientDescentOptimizer(0.25)])
def test_frozen_parameter_is_unchanged_in_a_graph(make: Callable[..., Any]) -> None:
    layer = torch.nn.Linear(1, 1)
    layer.weight.requires_grad_(False)
    loss = layer(tf.ones([1, 1])).sum()
    step = make().minimize(loss, var_list=[layer.weight, layer.bias])
    session = initialized()
    session.run(step)
    assert session.run(layer.weight) == layer.weight.item()
    assert session.run(layer.bias) == pytest.approx(layer.bias.item() - 0.25)
