"""GATE_NONE: values as with the other gates, one gradient at a time, errors that name the rest."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from thalweg import Variable, embedding_lookup
from thalweg.v1 import train

NO_GATE, OP, GRAPH = (
    train.Optimizer.GATE_NONE,
    train.Optimizer.GATE_OP,
    train.Optimizer.GATE_GRAPH,
)
MAKERS: dict[str, Any] = {
    "GradientDescent": lambda: train.GradientDescentOptimizer(0.1),
    "Momentum": lambda: train.MomentumOptimizer(0.1, 0.9),
    "Adam": lambda: train.AdamOptimizer(0.1),
    "Ftrl": lambda: train.FtrlOptimizer(0.1),
    "RMSProp": lambda: train.RMSPropOptimizer(0.1, centered=True),
}


class Problem:
    """A small network with an embedding, a weight that is used twice, and one that is not used."""

    def __init__(self) -> None:
        seed = np.random.default_rng(0)
        self.table = Variable(seed.normal(size=(6, 4)).astype(np.float32), "table")
        self.twice = Variable(seed.normal(size=(4, 4)).astype(np.float32), "twice")
        self.bias = Variable(np.zeros(4, np.float32), "bias", constraint=torch.relu)
        self.unused = Variable([1.0], "unused")
        self.variables = [self.table, self.twice, self.bias, self.unused]

    def loss(self) -> Tensor:
        x = embedding_lookup(self.table, torch.tensor([1, 4, 1]))
        for _ in range(2):
            x = torch.tanh(x @ self.twice + self.bias)
        return (x**2).mean()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", list(MAKERS))
@pytest.mark.parametrize("gate", [OP, GRAPH])
def test_gate_none_equals_the_other_gates(kind: str, gate: int) -> None:
    problems = [Problem(), Problem()]
    steps = [Variable(np.int64(0), trainable=False) for _ in problems]
    for problem, step, gate_used in zip(problems, steps, (NO_GATE, gate), strict=True):
        opt = MAKERS[kind]()
        for _ in range(4):
            opt.minimize(problem.loss, step, problem.variables, gate_gradients=gate_used)
    for var, twin in zip(problems[0].variables, problems[1].variables, strict=True):
        assert torch.equal(var, twin), var.name
    assert [step.item() for step in steps] == [4, 4]


def test_ungated_gradients_are_freed() -> None:
    problem = Problem()
    grad = torch.ones(4)
    problem.bias.grad = grad
    train.AdamOptimizer().minimize(problem.loss, gate_gradients=NO_GATE)
    assert problem.bias.grad is grad
    assert problem.table.grad is problem.twice.grad is None
    assert grad.tolist() == [1.0] * 4


def test_ungated_minimize_keeps_one_gradient_alive() -> None:
    layers = [nn.Linear(32, 32, bias=False) for _ in range(6)]
    weights = [layer.weight for layer in layers]
    alive: list[int] = []
    grads: list[weakref.ref[Tensor]] = []

    class Counting(train.GradientDescentOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> Any:
            grads.append(weakref.ref(grad))
            alive.append(sum(ref() is not None for ref in grads))
            alive.append(sum(weight.grad is not None for weight in weights))
            return super()._apply_dense(grad, var)

    def loss() -> Tensor:
        x = torch.ones(2, 32)
        for layer in layers:
            x = torch.tanh(layer(x))
        return x.sum()

    Counting(0.1).minimize(loss, var_list=weights, gate_gradients=NO_GATE)
    assert alive == [1, 0] * 6


def test_ungated_error_names_updated_variables() -> None:
    class Failing(train.GradientDescentOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> Any:
            if var.name == "a:0":
                raise RuntimeError("no")
            return super()._apply_dense(grad, var)

    a, b = Variable(2.0, "a"), Variable(3.0, "b")
    step = Variable(np.int64(0), trainable=False)
    with pytest.raises(RuntimeError, match="no") as info:
        Failing(1.0).minimize(lambda: torch.tanh(a) * 1.0 + b, step, gate_gradients=NO_GATE)
    assert any("had been updated before: ['b:0']" in note for note in info.value.__notes__)
    assert (a.item(), b.item(), step.item()) == (2.0, 2.0, 0)
    assert a.grad is b.grad is None


def test_ungated_minimize_without_gradients_raises() -> None:
    a = Variable(2.0, "a")
    with pytest.raises(ValueError, match="No gradients provided for any variable, check"):
        train.GradientDescentOptimizer(1.0).minimize(
            lambda: torch.ones(()), var_list=[a], gate_gradients=NO_GATE
        )


@pytest.mark.parametrize("method", ["compute_gradients", "apply_gradients"])
def test_overridden_methods_get_all_gradients(method: str) -> None:
    calls = []

    def override(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(method)
        return getattr(train.GradientDescentOptimizer, method)(self, *args, **kwargs)

    custom = type("Custom", (train.GradientDescentOptimizer,), {method: override})
    problem = Problem()
    custom(0.1).minimize(problem.loss, gate_gradients=NO_GATE)
    assert calls == [method]


def test_grad_loss_weighs_ungated_gradients() -> None:
    a = Variable([1.0, 1.0])
    train.GradientDescentOptimizer(1.0).minimize(
        lambda: 2 * a, gate_gradients=NO_GATE, grad_loss=torch.tensor([1.0, 10.0])
    )
    assert a.tolist() == [-1.0, -19.0]


def test_ungated_variables_are_freed() -> None:
    opt = train.GradientDescentOptimizer(0.1)
    refs = []
    for _ in range(60):
        w = Variable(np.ones(10, np.float32))
        refs.append(weakref.ref(w))
        opt.minimize(lambda w=w: w.sum(), var_list=[w], gate_gradients=opt.GATE_NONE)
        del w
    gc.collect()
    assert sum(ref() is not None for ref in refs) < 30
