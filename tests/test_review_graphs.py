"""Defects that a reading of the whole found: each once, mended."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from thalweg import Variable, graph
from thalweg import tf as facade
from thalweg.graph import Graph, Operation, Session, global_variables_initializer, placeholder
from thalweg.graph import Variable as GraphVariable
from thalweg.keras import optimizers
from thalweg.v1 import contrib, train


def test_a_refused_state_leaves_callables_known() -> None:
    w = Variable([0.0, 0.0, 0.0, 0.0], name="w")
    moves: list[bool] = []

    def rate() -> float:
        if moves:
            w.data = torch.zeros(4)
        return 0.5

    opt = optimizers.SGD(rate)
    for _ in range(2):
        opt.apply_gradients([(torch.ones(4), w)])
    with pytest.raises(ValueError, match="'none' belongs to nothing here"):
        opt.load_state_dict({**opt.state_dict(), "hyperparameters": {"none": 1.0}})
    old = w.data
    before = old.clone()
    moves.append(True)
    opt.apply_gradients([(torch.ones(4), w)])
    assert w.tolist() == [-0.5] * 4
    assert torch.equal(old, before)


@pytest.mark.parametrize(
    "make", [lambda: train.GradientDescentOptimizer(1.0), lambda: optimizers.SGD(1.0)]
)
def test_a_graph_that_is_built_takes_no_step(make: Any) -> None:
    w, opt = Variable([2.0], name="w"), make()
    pairs = [(torch.ones(1), w)]
    for _ in range(2):
        opt.apply_gradients(pairs)
    with Graph().as_default():
        made = opt.apply_gradients(pairs)
    assert isinstance(made, Operation)
    assert w.tolist() == [0.0]


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_finish_that_fails_says_that_the_step_was_taken(repeats: int) -> None:
    failing: list[bool] = []

    class Failing(train.GradientDescentOptimizer):
        def _finish(self, update_ops: Any, name_scope: str) -> None:
            if failing:
                raise RuntimeError("no")

    w, step = Variable([8.0]), Variable(np.int64(0), trainable=False)
    opt, pairs = Failing(1.0), [(torch.ones(1), w)]
    for _ in range(repeats - 1):
        opt.apply_gradients(pairs, step)
    failing.append(True)
    with pytest.raises(RuntimeError, match="no") as info:
        opt.apply_gradients(pairs, step)
    assert any("The step was taken" in note for note in info.value.__notes__)
    assert (w.item(), step.item()) == (8.0 - repeats, repeats)


def test_variables_updated_one_by_one_are_let_go() -> None:
    opt = train.GradientDescentOptimizer(0.1)
    seen = []
    for _ in range(60):
        w = Variable(np.ones(10, np.float32))
        seen.append(weakref.ref(w))
        opt.minimize(lambda w=w: w.sum(), var_list=[w], gate_gradients=opt.GATE_NONE)
        del w
    gc.collect()
    assert sum(each() is not None for each in seen) < 30


@pytest.mark.parametrize(
    "decay",
    [
        lambda step, x: train.cosine_decay(0.1, step, 10, alpha=x),
        lambda step, x: train.cosine_decay_restarts(0.1, step, 10, alpha=x),
        lambda step, x: train.linear_cosine_decay(0.1, step, 10, beta=x),
    ],
)
def test_every_argument_of_a_decay_may_be_a_tensor(decay: Any) -> None:
    with Graph().as_default():
        x = placeholder("float32", [])
        rate = decay(3, x)
        with Session() as session:
            got = session.run(rate, {x: 0.5})
    assert got == decay(3, 0.5)().numpy()


@pytest.mark.parametrize("rate", [float("nan"), torch.tensor(1j)])
def test_learning_rates_of_v1_are_real_numbers(rate: Any) -> None:
    w = Variable([1.0])
    with pytest.raises(ValueError, match="learning_rate"):
        train.GradientDescentOptimizer(rate).apply_gradients([(torch.ones(1), w)])
    assert w.item() == 1.0


@pytest.mark.parametrize("bound", [float("nan"), -1.0])
def test_norms_to_clip_to_are_not_negative(bound: float) -> None:
    with pytest.raises(ValueError, match="max_norm must be 0 or more"):
        contrib.opt.VariableClippingOptimizer(
            train.GradientDescentOptimizer(0.1), {Variable([[1.0]]): [0]}, bound
        )


def test_averages_check_their_decay_and_can_be_copied() -> None:
    with pytest.raises(TypeError, match="decay must be a number"):
        train.ExponentialMovingAverage(lambda: 0.9)  # type: ignore[arg-type]
    w, averages = Variable([1.0]), train.ExponentialMovingAverage(0.5)
    for value in (1.0, 2.0, 3.0):
        averages.apply([w.assign([value])])
    assert averages.average(w).item() == 2.25
    assert copy.deepcopy(averages)._decay == 0.5


def gradient(function: Any, *values: Any) -> list[list[float]]:
    tensors = [torch.tensor(value, requires_grad=True) for value in values]
    function(*tensors).sum().backward()
    return [tensor.grad.tolist() for tensor in tensors]  # type: ignore[union-attr]


def test_gradients_where_formulas_bend() -> None:
    entropy = facade.nn.sigmoid_cross_entropy_with_logits
    (grad,) = gradient(lambda x: entropy(torch.tensor([0.0, 1.0]), x), [0.0, 0.0])
    assert grad == [0.5, -0.5]
    assert gradient(facade.maximum, [0.0, 1.0], [0.0, 2.0]) == [[1.0, 0.0], [0.0, 1.0]]
    assert gradient(facade.minimum, [0.0, 1.0], [0.0, 2.0]) == [[1.0, 1.0], [0.0, 0.0]]


def test_ranges_have_the_dtype_of_their_ends() -> None:
    assert facade.range(torch.tensor(3.0)).dtype == torch.float32
    assert facade.range(np.float32(3)).tolist() == [0.0, 1.0, 2.0]
    assert facade.range(3).dtype == torch.int32


def test_parts_are_equal_and_limits_may_be_zero() -> None:
    with pytest.raises(ValueError, match="cannot be split into 2 equal parts"):
        facade.split(torch.arange(5.0), 2)
    (clipped,), _ = facade.clip_by_global_norm([torch.ones(2)], 0.0)
    assert clipped.tolist() == [0.0, 0.0]
    assert facade.clip_by_norm(torch.zeros(2), 0.0).tolist() == [0.0, 0.0]


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


@pytest.mark.parametrize(
    "function", [graph.convert_to_tensor, lambda x: graph.cast(x, torch.float64)]
)
def test_in_eager_mode_gradients_flow_through_conversions(function: Any) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    (grad,) = torch.autograd.grad(function(w).square().sum(), [w])
    assert grad.tolist() == [2.0, 4.0]
