"""`state_dict` and `load_state_dict` of v1 optimizers: to the bit, by name, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

import thalweg.v1 as tf
from files import through_a_file
from thalweg import CheckpointMismatchError, FailedPreconditionError, Variable, named_variables, v1
from thalweg._cli.registry import applied, by_class
from thalweg.errors import InvalidTypeError
from thalweg.v1 import train
from thalweg.v1.contrib.opt import MovingAverageOptimizer, VariableClippingOptimizer

State = dict[str, Any]


class Rows(train.Optimizer):
    """A subclass in plain torch code whose slot has another shape and dtype than its variable."""

    def __init__(self) -> None:
        super().__init__(False, "Rows")

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self._get_or_make_slot(var, torch.zeros(len(var), dtype=torch.float64), "rows", "Rows")

    def _apply_dense(self, grad: torch.Tensor, var: Any) -> None:
        self.get_slot(var, "rows").add_(grad.reshape(len(var), -1).sum(1))
        var.sub_(0.1 * self.get_slot(var, "rows").to(var.dtype).reshape(-1, *[1] * (var.dim() - 1)))


MAKE: dict[str, Callable[[], Any]] = {
    **{
        name: lambda entry=entry: entry.make(0.1)
        for name, entry in by_class().items()
        if ":" in name
    },
    "subclass": Rows,
}
every_optimizer = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


def variables() -> list[Any]:
    return [
        Variable(np.linspace(-1, 1, 3, dtype="f4"), "a"),
        Variable(np.linspace(1, 2, 6, dtype="f8").reshape(2, 3), "b"),
    ]


def step(opt: Any, trained: list[Any], number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    applied(opt)(
        [(torch.randn(var.shape, generator=generator, dtype=var.dtype), var) for var in trained]
    )


def trained(make: Callable[..., Any] = train.AdamOptimizer) -> tuple[Any, list[Any]]:
    opt, weights = make(), variables()
    step(opt, weights, 0)
    step(opt, weights, 1)
    return opt, weights


def same(state: State, twin: State) -> bool:
    return list(state) == list(twin) and all(torch.equal(state[key], twin[key]) for key in state)


@pytest.mark.one_in(3)
@every_optimizer
@pytest.mark.parametrize("convert", [through_a_file, lambda state: load(save(state))])
def test_fresh_optimizer_resumes(make: Callable[..., Any], convert: Callable[[State], State]):
    opt, weights = trained(make)
    new_opt, twins = make(), [Variable(var.detach(), var.name.split(":")[0]) for var in weights]
    new_opt.load_state_dict(convert(opt.state_dict()), twins)
    if isinstance(opt, train.AdagradDAOptimizer):  # the counter is the caller's
        new_opt._global_step.assign(opt._global_step)
    step(opt, weights, 2)
    step(new_opt, twins, 2)
    assert same(new_opt.state_dict(), opt.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(weights, twins, strict=True))


@every_optimizer
def test_loading_in_place_goes_back(make: Callable[..., Any]) -> None:
    opt, weights = trained(make)
    saved_state = opt.state_dict()
    slots = {name: opt.get_slot(weights[0], name) for name in opt.get_slot_names()}
    step(opt, weights, 2)
    opt.load_state_dict(saved_state)
    assert same(opt.state_dict(), saved_state)
    assert all(opt.get_slot(weights[0], name) is slot for name, slot in slots.items())


def test_state_dict_has_documented_names() -> None:
    opt, _ = trained()
    assert list(opt.state_dict()) == ["a/m", "a/v", "b/m", "b/v", "beta1_power", "beta2_power"]
    assert opt.state_dict()["beta1_power"].dtype == torch.float32


def test_a_state_is_a_copy() -> None:
    opt, weights = trained()
    state = opt.state_dict()
    state_before = through_a_file(state)
    step(opt, weights, 2)
    assert same(state, state_before)


def test_state_before_the_first_step_is_empty() -> None:
    opt = train.AdamOptimizer()
    assert opt.state_dict() == {}
    opt.load_state_dict({})
    assert opt.variables() == []


def test_variables_are_matched_by_name_in_any_order() -> None:
    opt, (a, b) = trained()
    new_opt = train.AdamOptimizer()
    new_opt.load_state_dict(opt.state_dict(), [b, a])
    assert torch.equal(new_opt.get_slot(a, "v"), opt.get_slot(a, "v"))


def test_variables_of_one_name_are_numbered_in_the_order_given() -> None:
    module = torch.nn.Linear(2, 2)
    weights = list(module.parameters())
    opt, new_opt = train.MomentumOptimizer(0.1, 0.9), train.MomentumOptimizer(0.1, 0.9)
    opt.minimize(lambda: module(torch.ones(1, 2)).square().sum())  # meets the bias first
    state = opt.state_dict(weights)
    assert [tuple(value.shape) for value in state.values()] == [(2, 2), (2,)]
    new_opt.load_state_dict(state, weights)
    assert same(new_opt.state_dict(weights), state)
    with pytest.raises(ValueError, match=r"2 variables are called 'Variable': give them as var_l"):
        opt.state_dict()
    named_variables(module)
    assert sorted(opt.state_dict()) == ["bias/momentum", "weight/momentum"]


MUTATIONS: dict[str, tuple[Callable[[State], Any], str]] = {
    "missing": (lambda state: state.pop("a/m"), "'a/m' is missing"),
    "missing power": (lambda state: state.pop("beta1_power"), "'beta1_power' is missing"),
    "more": (lambda state: state.update(c=torch.ones(1)), "'c' belongs to nothing here"),
    "renamed": (
        lambda state: state.update({"c/m": state.pop("a/m")}),
        "'a/m' is missing; 'c/m' belongs to nothing here",
    ),
    "reshaped": (
        lambda state: state.update({"b/m": torch.zeros(3, 2, dtype=torch.float64)}),
        r"'b/m' is float64 of shape \(3, 2\), not float64 of shape \(2, 3\)",
    ),
    "other dtype": (
        lambda state: state.update({"b/m": torch.zeros(2, 3)}),
        "'b/m' is float32 of shape .*, not float64",
    ),
    "without values": (
        lambda state: state.update({"a/m": torch.zeros(3, device="meta")}),
        r"'a/m' is float32 of shape \(3,\) on the meta device",
    ),
    "sparse": (
        lambda state: state.update({"a/m": torch.zeros(3).to_sparse()}),
        r"'a/m' is float32 of shape \(3,\), torch.sparse_coo",
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_fresh", [True, False], ids=["fresh", "trained"])
@pytest.mark.parametrize(("change", "message"), MUTATIONS.values(), ids=MUTATIONS)
def test_mismatched_state_raises(change: Callable[..., Any], message: str, is_fresh: bool) -> None:
    opt, weights = trained()
    state = opt.state_dict()
    change(state)
    if is_fresh:
        opt = train.AdamOptimizer()
    else:
        step(opt, weights, 2)
    state_before = opt.state_dict()
    with pytest.raises(CheckpointMismatchError, match=message) as raised:
        opt.load_state_dict(state, weights)
    assert str(raised.value).endswith("Nothing was loaded.")
    assert same(opt.state_dict(), state_before)


def test_fresh_optimizer_needs_the_variables() -> None:
    opt, _ = trained()
    with pytest.raises(
        FailedPreconditionError, match=r"before its first step\. Give the variables"
    ):
        train.AdamOptimizer().load_state_dict(opt.state_dict())


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict"])
def test_var_list_without_a_slot_variable_raises(method: str) -> None:
    opt, (a, _) = trained()
    state = [] if method == "state_dict" else [opt.state_dict()]
    with pytest.raises(ValueError, match=r"not in it: \['b'\]"):
        getattr(opt, method)(*state, [a])


def test_graph_state_belongs_to_a_session() -> None:
    with tf.Graph().as_default():
        w = tf.Variable([1.0])
        opt = train.AdamOptimizer()
        opt.minimize((w * w).sum())
        with pytest.raises(FailedPreconditionError, match=r"thalweg\.v1\.train\.Saver"):
            opt.state_dict()
    with pytest.raises(FailedPreconditionError, match=r"thalweg\.v1\.train\.Saver"):
        opt.load_state_dict({})


def test_state_with_grown_variable_is_not_partially_loaded() -> None:
    v, w = (Variable([1.0, 2.0], name=name) for name in ("v", "w"))
    opt = v1.train.MomentumOptimizer(0.1, 0.9)
    opt.apply_gradients([(torch.ones(2), v), (torch.ones(2), w)])
    w.data = torch.zeros(3)
    state = {"v/momentum": torch.full((2,), 7.0), "w/momentum": torch.full((3,), 5.0)}
    state_before = opt.state_dict()
    with pytest.raises(CheckpointMismatchError, match=r"'w/momentum' is float32 of shape \(3,\)"):
        opt.load_state_dict(state)
    assert all(torch.equal(state_before[name], value) for name, value in opt.state_dict().items())


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
def test_non_state_argument_raises(state: Any, message: str) -> None:
    var, opt = Variable([1.0], name="v"), v1.train.MomentumOptimizer(0.1, 0.9)
    with pytest.raises(InvalidTypeError, match=message):
        opt.load_state_dict(state, [var])


def test_module_as_var_list_raises() -> None:
    opt = v1.train.MomentumOptimizer(0.1, 0.9)
    with pytest.raises(InvalidTypeError, match=r"give list\(module\.parameters\(\)\)"):
        opt.state_dict(torch.nn.Linear(1, 1))  # pyright: ignore


def test_wrapper_state_is_the_inner_state() -> None:
    opt, weights = trained(lambda: VariableClippingOptimizer(train.AdamOptimizer(), {}, 1.0))
    assert same(opt.state_dict(), opt._opt.state_dict())
    new_opt = VariableClippingOptimizer(train.AdamOptimizer(), {}, 1.0)
    new_opt.load_state_dict(opt.state_dict(), weights)
    assert torch.equal(new_opt.get_slot(weights[0], "v"), opt.get_slot(weights[0], "v"))


def test_averages_are_part_of_the_state() -> None:
    opt, weights = trained(lambda: MovingAverageOptimizer(train.MomentumOptimizer(0.1, 0.9), 0.5))
    names = ["a/momentum", "a/ExponentialMovingAverage", "b/momentum", "b/ExponentialMovingAverage"]
    state = opt.state_dict()
    assert list(state) == names
    assert torch.equal(state["b/ExponentialMovingAverage"], opt.average(weights[1]))
    old_parts = opt._opt, opt._ema, opt.average(weights[0]), opt.get_slot(weights[0], "momentum")
    step(opt, weights, 2)
    opt.load_state_dict(state)
    assert same(opt.state_dict(), state)
    new_parts = opt._opt, opt._ema, opt.average(weights[0]), opt.get_slot(weights[0], "momentum")
    assert all(new is old for new, old in zip(new_parts, old_parts, strict=True))


def test_state_without_averages_raises_for_averages() -> None:
    opt, weights = trained(lambda: train.MomentumOptimizer(0.1, 0.9))
    averages, _ = trained(lambda: MovingAverageOptimizer(train.MomentumOptimizer(0.1, 0.9)))
    fresh = MovingAverageOptimizer(train.MomentumOptimizer(0.1, 0.9))
    with pytest.raises(CheckpointMismatchError, match="'a/ExponentialMovingAverage' belongs to no"):
        opt.load_state_dict(averages.state_dict(), weights)
    fresh.load_state_dict(opt.state_dict(), weights)  # as before a first update of several batches
    assert fresh.average(weights[0]) is None
    with pytest.raises(CheckpointMismatchError, match="'a/ExponentialMovingAverage' is missing"):
        averages.load_state_dict(opt.state_dict())


def test_moving_averages_alone_have_a_state() -> None:
    averages, weights = train.ExponentialMovingAverage(0.5, name="EMA"), variables()
    assert averages.state_dict() == {}
    averages.apply(weights)
    weights[0].assign_add([1.0, 2.0, 3.0])
    averages.apply(weights)
    state = through_a_file(averages.state_dict())
    assert list(state) == ["a/EMA", "b/EMA"]
    new_averages = train.ExponentialMovingAverage(0.5, name="EMA")
    with pytest.raises(FailedPreconditionError, match=r"EMA has no slots before its first step"):
        new_averages.load_state_dict(state)
    new_averages.load_state_dict(state, weights[::-1])
    assert torch.equal(new_averages.average(weights[0]), averages.average(weights[0]))
    with pytest.raises(CheckpointMismatchError, match=r"of EMA: 'a/EMA' is missing; 'a/E' belongs"):
        new_averages.load_state_dict({"a/E": state["a/EMA"], "b/EMA": state["b/EMA"]})
    complex_ = Variable(torch.zeros(1, dtype=torch.complex64), "z")
    with pytest.raises(InvalidTypeError, match="must be half, float, or double: z"):
        train.ExponentialMovingAverage(0.5).load_state_dict(state, [complex_])


def test_wrapped_user_optimizer_is_loaded_atomically() -> None:
    class Around(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.inner = train.MomentumOptimizer(0.1, 0.9)

        def _create_slots(self, var_list: Any) -> None:
            super()._create_slots(var_list)
            self.inner._create_slots(var_list)

    opt, (a, _) = trained(Around)
    new_opt = Around()
    inner = new_opt.inner
    with pytest.raises(CheckpointMismatchError, match="'a/rows' is missing"):
        new_opt.load_state_dict({"x": torch.zeros(1)}, [a])
    assert inner.get_slot(a, "momentum") is None
    new_opt.load_state_dict(opt.state_dict(), variables())
    assert new_opt.inner is inner
    assert len(inner.variables()) == 2
