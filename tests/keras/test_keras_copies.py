"""Copies of optimizers: `copy.deepcopy` and `pickle`."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from keras_table import Row, all_rows, assert_same_bits, both_engines, pair, snapshot, train
from thalweg import v1
from thalweg.keras.optimizers import SGD, Adam, Optimizer, RuleOptimizer
from thalweg.rules import ADAGRAD


@pytest.mark.one_in(3)
@both_engines
@all_rows
@pytest.mark.parametrize("steps", [0, 2])
def test_deepcopy_continues_with_the_same_variables(row: Row, engine: str, steps: int) -> None:
    opt, variables = row.make(), pair()
    opt.engine = engine
    train(opt, variables, steps)
    start = [var.numpy() for var in variables]
    opt_copy = copy.deepcopy(opt)
    train(opt, variables, 2, first=5)
    state_before = snapshot(opt, variables)
    for var, value in zip(variables, start, strict=True):
        var.assign(value)
    train(opt_copy, variables, 2, first=5)
    assert_same_bits(snapshot(opt_copy, variables), state_before)


@all_rows
def test_deepcopy_has_its_own_state(row: Row) -> None:
    opt, variables = row.make(), pair()
    train(opt, variables, 2)
    state_before = snapshot(opt, [])
    opt_copy = copy.deepcopy(opt)
    train(opt_copy, variables, 2, first=3)
    assert_same_bits(snapshot(opt, []), state_before)
    assert opt_copy.iterations.item() == 4


@all_rows
def test_variables_copied_together_go_with_the_copy(row: Row) -> None:
    opt, variables = row.make(), pair()
    train(opt, variables, 2)
    opt_copy, copies = copy.deepcopy((opt, variables))
    train(opt, variables, 2, first=3), train(opt_copy, copies, 2, first=3)
    assert_same_bits(snapshot(opt_copy, copies), snapshot(opt, variables))
    assert len(opt_copy.weights) == len(opt.weights)


def test_deepcopy_copies_hyperparameters() -> None:
    opt = SGD(0.5)
    _ = opt.learning_rate
    opt_copy = copy.deepcopy(opt)
    opt_copy.learning_rate = 0.25
    assert (opt.learning_rate.item(), opt_copy.learning_rate.item()) == (0.5, 0.25)


@both_engines
@all_rows
def test_optimizer_pickles_with_its_variables(row: Row, engine: str) -> None:
    opt, variables = row.make(clipnorm=0.5), pair()
    opt.engine = engine
    train(opt, variables, 2)
    opt_copy, copies = pickle.loads(pickle.dumps((opt, variables)))
    assert opt_copy.get_config() == opt.get_config()
    train(opt, variables, 2, first=3), train(opt_copy, copies, 2, first=3)
    assert_same_bits(snapshot(opt_copy, copies), snapshot(opt, variables))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("make", [Adam, v1.train.AdamOptimizer])
def test_optimizer_pickles_with_every_protocol(make: Any, protocol: int) -> None:
    opt, w = make(0.1), thalweg.Variable([1.0, 2.0])
    opt.apply_gradients([([1.0, 1.0], w)])
    opt.engine = "reference"
    opt_copy, w_copy = pickle.loads(pickle.dumps((opt, w), protocol))
    for optimizer, var in ((opt, w), (opt_copy, w_copy)):
        optimizer.apply_gradients([([1.0, 1.0], var)])
    assert opt_copy.engine == "reference"
    assert w_copy.tolist() == w.tolist()


def test_optimizer_pickles_with_torch_parameters() -> None:
    opt, model = Adam(), torch.nn.Linear(2, 1)
    variables = thalweg.named_variables(model)
    train(opt, variables, 2)
    opt_copy, twin = pickle.loads(pickle.dumps((opt, model)))
    train(opt, variables, 1, first=3), train(opt_copy, list(twin.parameters()), 1, first=3)
    assert torch.equal(twin.weight, model.weight)
    assert opt_copy.iterations.item() == 3


def update(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    return (var - learning_rate * grad,)


def prepare(*, learning_rate: Any) -> dict[str, Any]:
    return {"learning_rate": learning_rate * 2}


RULES = {
    "plain": thalweg.Rule(name="Mine", update=update),
    "prepared": thalweg.Rule(name="Mine", update=update, prepare=prepare),
    "library": ADAGRAD,
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_rule_optimizer_copies_continue(rule: Any, duplicate: Any) -> None:
    opt, variables = RuleOptimizer(rule), pair()
    train(opt, variables, 2)
    opt_copy, copies = duplicate((opt, variables))
    train(opt, variables, 2, first=3), train(opt_copy, copies, 2, first=3)
    assert_same_bits(snapshot(opt_copy, copies), snapshot(opt, variables))


class Plain(Optimizer):
    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "count")

    def _resource_apply_dense(self, grad: Any, var: Any) -> None:
        self.get_slot(var, "count").add_(1)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_user_optimizer_copies_have_separate_slots(duplicate: Any) -> None:
    opt, variables = Plain("Plain"), pair()
    train(opt, variables, 2)
    opt_copy, copies = duplicate((opt, variables))
    train(opt_copy, copies, 1)
    assert np.array_equal(opt_copy.get_slot(copies[0], "count").numpy(), [3, 3, 3])
    assert np.array_equal(opt.get_slot(variables[0], "count").numpy(), [2, 2, 2])
