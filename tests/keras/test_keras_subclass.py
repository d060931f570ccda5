"""Optimizers that users write: in plain torch code, by overriding a hook, or as a rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from keras_table import (
    ROWS,
    Row,
    all_rows,
    assert_same_bits,
    both_engines,
    gradients,
    pair,
    snapshot,
    train,
)
from thalweg.keras.optimizers import SGD, Adam, Nadam, Optimizer, schedules


class Momentum(Optimizer):
    """Plain torch code, as the documentation of `Optimizer` describes it."""

    def __init__(self, learning_rate: Any = 0.5, decay_rate: float = 0.5, **kwargs: Any) -> None:
        super().__init__(kwargs.pop("name", "Momentum"), **kwargs)
        self._set_hyper("learning_rate", learning_rate)
        self._set_hyper("decay_rate", decay_rate)

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            self.add_slot(var, "speed")

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        coefficients = apply_state[str(var.device), var.dtype]
        speed = self.get_slot(var, "speed")
        speed.mul_(self._get_hyper("decay_rate", var.dtype)).add_(grad)
        var.sub_(coefficients["lr_t"] * speed)

    def _resource_apply_sparse(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> None:
        var.index_add_(0, indices, -self._decayed_lr(var.dtype) * grad)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "learning_rate": self._serialize_hyperparameter("learning_rate"),
            "decay_rate": self._serialize_hyperparameter("decay_rate"),
        }


class WithoutState(Momentum):
    """Hooks as they were before `apply_state`."""

    def _resource_apply_dense(self, grad: Any, var: Any) -> None:
        speed = self.get_slot(var, "speed")
        speed.mul_(0.5).add_(grad)
        var.sub_(self._decayed_lr(var.dtype) * speed)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> None:
        var.index_add_(0, indices, -self._decayed_lr(var.dtype) * grad)


def passing_on(cls: type[Any], hook: str) -> type[Any]:
    """A subclass that overrides one hook, counts its calls and leaves the work to super()."""

    def override(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return getattr(cls, hook)(self, *args, **kwargs)

    return type(cls.__name__, (cls,), {hook: override})


@pytest.mark.parametrize("cls", [Momentum, WithoutState])
def test_overridden_dense_hook_updates_variables(cls: Any) -> None:
    w, opt = thalweg.Variable([0.0], "w"), cls(0.5)
    for _ in range(3):
        opt.apply_gradients([([1.0], w)])
    assert w.item() == -0.5 * (1 + 1.5 + 1.75)
    assert [weight.name for weight in opt.weights] == ["Momentum/iter:0", "Momentum/w/speed:0"]


@pytest.mark.parametrize("cls", [Momentum, WithoutState])
def test_sparse_hook_gets_each_row_once(cls: Any) -> None:
    w, opt = thalweg.Variable(np.zeros((4, 1), "f4")), cls(0.5)
    slices = thalweg.IndexedSlices(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([3, 1, 3]))
    opt.apply_gradients([(slices, w)])
    assert w.numpy().ravel().tolist() == [0.0, -1.0, 0.0, -2.5]


def test_users_hypers_schedules_and_decay_work() -> None:
    opt = Momentum(schedules.ExponentialDecay(1.0, 1, 0.5), decay_rate=0.0, decay=1.0)
    w = thalweg.Variable([0.0])
    for _ in range(2):
        opt.apply_gradients([([1.0], w)])
    assert w.item() == -1.25
    assert opt.decay_rate.item() == 0


@pytest.mark.parametrize("key", ["clipvalue", "clipnorm", "global_clipnorm"])
def test_users_hook_gets_clipped_gradients(key: str) -> None:
    w = thalweg.Variable([0.0])
    Momentum(1.0, **{key: 2.0}).apply_gradients([([4.0], w)])
    assert w.item() == -2.0


def test_users_config_round_trip() -> None:
    config = Momentum(0.25, decay_rate=0.75, clipnorm=1.0).get_config()
    assert Momentum.from_config(config).get_config() == config


def test_users_state_round_trip() -> None:
    opt, new_opt, variables = Momentum(), Momentum(), pair()
    train(opt, variables, 2)
    new_opt.load_state_dict(opt.state_dict(), variables)
    assert_same_bits(snapshot(new_opt, []), snapshot(opt, []))


def test_autograd_is_off_in_hooks() -> None:
    grad_modes: list[bool] = []

    class Look(SGD):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
            grad_modes.append(torch.is_grad_enabled())

    w = thalweg.Variable(1.0)
    Look().minimize(lambda: w * w, [w])
    assert grad_modes == [False]
    assert torch.is_grad_enabled()


@both_engines
@all_rows
def test_dense_hook_that_calls_super_does_not_change_steps(row: Row, engine: str) -> None:
    cls = passing_on(row.cls, "_resource_apply_dense")
    opt, plain_opt, variables, twins = cls(0.1), row.cls(0.1), pair(), pair()
    opt.engine = plain_opt.engine = engine
    train(opt, variables, 3), train(plain_opt, twins, 3)
    assert_same_bits(snapshot(opt, variables), snapshot(plain_opt, twins))
    assert opt.calls == 6


@pytest.mark.one_in(3)
@all_rows
@pytest.mark.parametrize(
    "hook", ["_resource_apply_sparse", "_resource_apply_sparse_duplicate_indices"]
)
def test_sparse_hook_that_calls_super_does_not_change_steps(row: Row, hook: str) -> None:
    opt, plain_opt = passing_on(row.cls, hook)(0.1), row.cls(0.1)
    tables = [thalweg.Variable(np.ones((5, 2)), "a") for _ in range(2)]
    values = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    for indices in ([1, 4, 1], [0, 1, 2]):
        slices = thalweg.IndexedSlices(values, torch.tensor(indices))
        opt.apply_gradients([(slices, tables[0])])
        plain_opt.apply_gradients([(slices, tables[1])])
    assert_same_bits(snapshot(opt, tables[:1]), snapshot(plain_opt, tables[1:]))
    # TensorFlow's SGD scatters, unless it has momentum, and calls no `_resource_apply_sparse`.
    assert getattr(opt, "calls", 0) == (
        0 if (row.cls, hook) == (SGD, "_resource_apply_sparse") else 2
    )


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_row_decay_in_a_hook_needs_sgd_momentum(momentum: float) -> None:
    class Decayed(SGD):
        def _resource_apply_sparse(
            self, grad: Any, var: Any, indices: Any, apply_state: Any = None
        ) -> Any:
            var[indices] *= 0.5
            return super()._resource_apply_sparse(grad, var, indices, apply_state)

    table = thalweg.Variable([[4.0], [4.0]])
    slices = thalweg.IndexedSlices([[1.0], [1.0]], [1, 1])
    Decayed(0.5, momentum=momentum).apply_gradients([(slices, table)])
    assert table.flatten().tolist() == [4.0, (2.0 if momentum else 4.0) - 1.0]


@both_engines
@pytest.mark.parametrize(
    "hook", ["_transform_gradients", "_aggregate_gradients", "_prepare", "_create_slots"]
)
def test_other_hooks_that_call_super_do_not_change_steps(hook: str, engine: str) -> None:
    opt, plain_opt = passing_on(Adam, hook)(clipvalue=0.5), Adam(clipvalue=0.5)
    variables, twins = pair(), pair()
    opt.engine = plain_opt.engine = engine
    train(opt, variables, 3), train(plain_opt, twins, 3)
    assert_same_bits(snapshot(opt, variables), snapshot(plain_opt, twins))
    assert opt.calls == (3 if hook != "_create_slots" else opt.calls)


def test_hook_may_change_the_gradient() -> None:
    class Negated(Adam):
        def _transform_gradients(self, grads_and_vars: Any) -> Any:
            return [(-g, v) for g, v in super()._transform_gradients(grads_and_vars)]

    variables, twins = pair(), pair()
    Negated(0.1).apply_gradients(gradients(variables))
    Adam(0.1).apply_gradients([(-g, v) for g, v in gradients(twins)])
    assert_same_bits(snapshot(Adam(), variables), snapshot(Adam(), twins))


@pytest.mark.parametrize("key", ["clipvalue", "clipnorm", "global_clipnorm"])
def test_overridden_hook_sees_gradients_clipped_once(key: str) -> None:
    cls = passing_on(SGD, "_resource_apply_dense")
    for subclass in (cls, passing_on(SGD, "_transform_gradients"), SGD):
        w = thalweg.Variable([0.0])
        subclass(1.0, **{key: 2.0}).apply_gradients([([4.0], w)])
        assert w.item() == -2.0


def test_overridden_hook_implements_decoupled_weight_decay() -> None:
    class Decayed(Nadam):
        def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
            var.mul_(0.5)
            return super()._resource_apply_dense(grad, var, apply_state)

    w, plain_w = thalweg.Variable([2.0]), thalweg.Variable([1.0])
    Decayed(0.1).apply_gradients([([1.0], w)])
    Nadam(0.1).apply_gradients([([1.0], plain_w)])
    assert w.item() == plain_w.item()


def test_subclass_inherits_slots_and_state() -> None:
    cls = passing_on(Adam, "_resource_apply_dense")
    opt, variables = cls(), pair()
    train(opt, variables, 1)
    assert opt.get_slot_names() == ["m", "v"]
    assert set(opt.state_dict()["slots"]) == {"a:0", "b:0"}


def test_table_has_eight_rows() -> None:
    assert len(ROWS) == 8


def test_engine_attribute_selects_the_engine() -> None:
    opt = SGD()
    assert opt.engine is None
    opt.engine = "reference"
    assert opt.engine == "reference"
    opt.engine = None
    with pytest.raises(
        ValueError, match="engine must be one of 'auto', 'cpu', 'cuda', 'reference', 'torch', not"
    ):
        opt.engine = "gpu"
    assert opt.engine is None


def test_engine_context_manager_selects_the_engine() -> None:
    opt, variables, twins = Adam(), pair(), pair()
    with thalweg.engine("reference"):
        train(opt, variables, 2)
    with thalweg.engine("cpu"):
        train(opt, variables, 2, first=3)
    plain_opt = Adam()
    train(plain_opt, twins, 4)
    assert_same_bits(snapshot(opt, variables), snapshot(plain_opt, twins))


@pytest.mark.parametrize("denormals", ["flush", "keep"])
@both_engines
def test_denormals_option_applies_to_optimizers(engine: str, denormals: Any) -> None:
    w, opt = thalweg.Variable([1e-40]), SGD(1.0)
    opt.engine = engine
    with thalweg.engine(denormals=denormals):
        opt.apply_gradients([([0.0], w)])
    assert w.item() == (0.0 if denormals == "flush" else np.float32(1e-40))
