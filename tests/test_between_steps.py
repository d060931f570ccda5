"""What is done to variables and optimizers between two steady steps is noticed by the next."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch

import thalweg.v1 as tf
from thalweg import CheckpointMismatchError, Variable, keras, v1
from thalweg.engines.cpu.plan import DensePlan
from thalweg.errors import InvalidTypeError
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.mp_wrapper import MixedPrecisionOptimizerWrapper

OPTIMIZERS = {
    "keras": lambda: keras.optimizers.SGD(0.1),
    "v1": lambda: v1.train.GradientDescentOptimizer(0.1),
}
each_face = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


@each_face
@pytest.mark.parametrize("kind", [torch.nn.Parameter, Variable])
def test_a_constraint_given_later_holds_from_then_on(make: Any, kind: Any) -> None:
    var, opt = kind(torch.zeros(2)), make()
    for count in range(6):
        if count == 3:
            var.constraint = lambda value: value.clamp(max=0.35)  # pyright: ignore
        opt.apply_gradients([(torch.full((2,), -1.0), var)])
    assert var.tolist() == pytest.approx([0.35] * 2)


@each_face
def test_a_constraint_elsewhere_leaves_plans_in_force(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    var, opt, other = Variable(torch.zeros(2)), make(), Variable(0.0)
    opt.apply_gradients([(torch.ones(2), var)])
    found: list[bool] = []
    again = DensePlan.again
    monkeypatch.setattr(
        DensePlan, "again", lambda self, asked: found.append(again(self, asked)) or found[-1]
    )
    for _ in range(3):
        other.constraint = torch.relu
        opt.apply_gradients([(torch.ones(2), var)])
    assert found
    assert all(found)


@pytest.mark.parametrize("kind", [torch.nn.Parameter, Variable])
def test_a_constraint_given_later_ends_swept_steps(kind: Any) -> None:
    var = kind(torch.zeros(2))
    step = optimize_loss(
        lambda: -var.sum(),
        "Momentum",
        {"momentum": 0.0},
        lambda global_step: 0.1,
        var_list=[var],
        clip_gradients=100.0,
    )
    for count in range(6):
        if count == 3:
            var.constraint = lambda value: value.clamp(max=0.35)  # pyright: ignore
        step()
    assert var.tolist() == pytest.approx([0.35] * 2)


@each_face
def test_another_16_bit_dtype_of_a_variable_is_refused(make: Any) -> None:
    var, opt = Variable(torch.ones(4, dtype=torch.bfloat16)), make()
    grad = torch.ones(4, dtype=torch.bfloat16)
    for _ in range(3):
        opt.apply_gradients([(grad, var)])
    var.data = var.data.view(torch.float16)
    before = var.detach().clone()
    with pytest.raises(InvalidTypeError, match="bfloat16 but the variable is float16"):
        opt.apply_gradients([(grad, var)])
    assert torch.equal(var, before)


@each_face
def test_a_deferred_sign_of_several_elements_counts(make: Any) -> None:
    var, opt = Variable(torch.ones(2)), make()
    for _ in range(3):
        opt.apply_gradients([(torch.zeros(2), var)])
    opt.apply_gradients([(torch._neg_view(torch.full((2,), 10.0)), var)])
    assert var.tolist() == [2.0, 2.0]


def wrapped() -> tuple[MixedPrecisionOptimizerWrapper, Variable]:
    var = Variable(torch.tensor([1.0], dtype=torch.float16), name="w")
    opt = MixedPrecisionOptimizerWrapper(v1.train.MomentumOptimizer(2.0**-13, 0.9), 128.0)
    for _ in range(3):
        opt.minimize(lambda: var.float().sum(), var_list=[var])
    return opt, var


def test_a_copied_wrapper_goes_on_with_the_same_variables() -> None:
    opt, var = wrapped()
    copied = copy.deepcopy(opt)
    assert copied.get_master(var) is not None
    before = copied.state_dict()
    assert all(torch.equal(before[name], value) for name, value in opt.state_dict().items())
    copied.minimize(lambda: var.float().sum(), var_list=[var])
    assert copied.state_dict().keys() == opt.state_dict().keys()


def test_a_pickled_wrapper_goes_on_with_its_variables() -> None:
    opt, var = pickle.loads(pickle.dumps(wrapped()))
    state = opt.state_dict()
    opt.minimize(lambda: var.float().sum(), var_list=[var])
    assert opt.state_dict().keys() == state.keys()


def test_a_variable_that_has_grown_does_not_get_half_a_state() -> None:
    one, other = (Variable([1.0, 2.0], name=name) for name in ("v", "w"))
    opt = v1.train.MomentumOptimizer(0.1, 0.9)
    opt.apply_gradients([(torch.ones(2), one), (torch.ones(2), other)])
    other.data = torch.zeros(3)
    state = {"v/momentum": torch.full((2,), 7.0), "w/momentum": torch.full((3,), 5.0)}
    before = opt.state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"'w/momentum' is float32 of shape \(3,\)"):
        opt.load_state_dict(state)
    assert all(torch.equal(before[name], value) for name, value in opt.state_dict().items())


def test_a_wrapper_whose_variable_has_grown_does_not_get_half_a_state() -> None:
    opt, var = wrapped()
    before = opt.state_dict()
    var.data = torch.zeros(2, dtype=torch.float16)
    state = {name: torch.full((2,), 5.0) for name in before}
    with pytest.raises(CheckpointMismatchError, match="Nothing was loaded"):
        opt.load_state_dict(state, [var])
    assert var.tolist() == [0.0, 0.0]
    assert all(torch.equal(before[name], value) for name, value in opt.state_dict().items())


def test_a_state_from_before_the_first_step_is_loaded() -> None:
    var, opt = Variable([1.0], name="v"), v1.train.AdamOptimizer(0.1)
    opt.load_state_dict(v1.train.AdamOptimizer(0.1).state_dict(), [var])
    assert opt.state_dict() == {}
    opt.apply_gradients([(torch.ones(1), var)])
    assert var.item() == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "a dict of tensors by name, not None"),
        ([1], r"a dict of tensors by name, not \[1\]"),
        ({"v/momentum": None}, "'v/momentum' of the state: Cannot convert None"),
    ],
)
def test_what_is_no_state_is_refused(state: Any, message: str) -> None:
    var, opt = Variable([1.0], name="v"), v1.train.MomentumOptimizer(0.1, 0.9)
    with pytest.raises(InvalidTypeError, match=message):
        opt.load_state_dict(state, [var])


def test_a_module_is_no_list_of_variables() -> None:
    opt = v1.train.MomentumOptimizer(0.1, 0.9)
    with pytest.raises(InvalidTypeError, match=r"give list\(module\.parameters\(\)\)"):
        opt.state_dict(torch.nn.Linear(1, 1))  # pyright: ignore


def test_a_slice_may_be_shorter_than_it_asks_for() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(torch.float32, [None, None])
        product, total = x[:, :128] @ torch.ones(64, 2), x[:10] + torch.ones(4, 1)
        assert session.run(product, {x: torch.ones(4, 64).numpy()}).shape == (4, 2)
        assert session.run(total, {x: torch.ones(4, 2).numpy()}).shape == (4, 2)
        assert x[:10].shape == (None, None)
