"""Hooks of subclasses in the one flow of a step: what they see, and what is put back."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bit_comparison import assert_same
from thalweg import IndexedSlices, Variable, _graph
from thalweg._core.gradient_transforms import Decision, GradientTransforms
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.v1 import contrib, train
from thalweg.v1.train.apply_gradients import StepArguments

with_and_without_hook = pytest.mark.parametrize("hooked", [False, True], ids=["rule", "hook"])


class Hooked(train.MomentumOptimizer):
    """Momentum whose hook hands each variable to the rule, and fails at one of them if told to."""

    call_count = 0
    fails_at = ""

    def _apply_dense(self, grad: Any, var: Any) -> Any:
        self.call_count += 1
        super()._apply_dense(grad, var)
        if var.name == self.fails_at:
            raise RuntimeError("burnt")


def maker(hooked: bool) -> Any:
    return Hooked if hooked else train.MomentumOptimizer


@with_and_without_hook
def test_a_constraint_follows_each_update_once(hooked: bool) -> None:
    calls = []

    def halved(x: Tensor) -> torch.Tensor:
        calls.append(x.tolist())
        return x / 2

    w = Variable([4.0], constraint=halved)
    opt = maker(hooked)(1.0, 0.0)
    for _ in range(2):
        opt.apply_gradients([(torch.ones(1), w)])
    assert calls == [[3.0], [0.5]]
    assert w.item() == 0.25


@pytest.mark.parametrize("gate", [0, 1, 2])
def test_hook_is_called_in_every_step(gate: int) -> None:
    w, v = Variable([1.0, 2.0]), Variable([1.0, 2.0])
    opt, plain_opt = Hooked(0.1, 0.9), train.MomentumOptimizer(0.1, 0.9)
    for _ in range(4):
        opt.minimize(lambda: (w * w).sum(), var_list=[w], gate_gradients=gate)
        plain_opt.minimize(lambda: (v * v).sum(), var_list=[v])
    assert opt.call_count == 4
    assert_same([w], [v])


def test_a_callable_is_called_once_a_step() -> None:
    calls: list[None] = []
    opt = Hooked(lambda: calls.append(None) or 0.5, 0.9)
    variables = [Variable([1.0]), Variable([1.0]), Variable(np.ones(1))]
    for step in range(1, 4):
        opt.apply_gradients([(torch.ones_like(var), var) for var in variables])
        assert len(calls) == step


def test_hyperparameter_tensors_in_hooks_are_current() -> None:
    rates = iter([1.0, 2.0, 3.0, 4.0])
    rates_seen = []

    class Reading(train.AdamOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> None:
            rates_seen.append(self._lr_t.item())

    opt = Reading(lambda: next(rates))
    w, v = Variable([1.0]), Variable([1.0])
    for _ in range(2):
        opt.apply_gradients([(torch.ones(1), w), (torch.ones(1), v)])
    assert rates_seen == [1.0, 1.0, 2.0, 2.0]
    assert opt._lr_t.item() == 3.0  # no step is under way


@pytest.mark.parametrize("calls_super", [False, True])
def test_overridden_adam_finish_updates_powers_if_it_calls_super(calls_super: bool) -> None:
    class Finishing(train.AdamOptimizer):
        def _finish(self, update_ops: Any, name_scope: str) -> Any:
            if calls_super:
                super()._finish(update_ops, name_scope)

    opt, w = Finishing(0.1, beta1=0.5), Variable([1.0])
    for _ in range(3):
        opt.apply_gradients([(torch.ones(1), w)])
    assert opt._get_beta_accumulators()[0].item() == (0.5**4 if calls_super else 0.5)


def extended(fused: bool) -> Any:
    if fused:
        return contrib.opt.MomentumWOptimizer
    return contrib.opt.extend_with_decoupled_weight_decay(Hooked)


def test_a_step_that_fails_leaves_no_decay() -> None:
    a, b = Variable([1.0], name="a"), Variable([1.0], name="b")
    opt = extended(False)(0.5, 1.0, 0.9)
    opt.fails_at = "b:0"
    with pytest.raises(RuntimeError, match="burnt") as excinfo:
        opt.apply_gradients([(torch.ones(1), a), (torch.ones(1), b)])
    assert [note for note in excinfo.value.__notes__ if "step" in note] == [
        "The step was not taken: no variable and no slot has changed."
    ]
    assert (a.item(), b.item(), opt.get_slot(a, "momentum").item()) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("fused", [False, True])
def test_decay_and_step_alternate_where_a_variable_comes_twice(fused: bool) -> None:
    w, grad = Variable([8.0]), torch.ones(1)
    extended(fused)(0.5, 1.0, 0.5).apply_gradients([(grad, w), (grad, w)])
    assert w.item() == (8.0 * 0.5 - 1.0) * 0.5 - 1.5


@pytest.mark.parametrize("fused", [False, True])
def test_decay_list_applies_to_one_call(fused: bool) -> None:
    a, b, zero = Variable([8.0]), Variable([8.0]), torch.zeros(1)
    opt = extended(fused)(0.5, 1.0, 0.5)
    opt.apply_gradients([(zero, a), (zero, b)], decay_var_list=[a])
    assert (a.item(), b.item()) == (4.0, 8.0)
    opt.apply_gradients([(zero, a), (zero, b)])
    assert (a.item(), b.item()) == (2.0, 4.0)
    opt.minimize(lambda: (a * 0 + b * 0).sum(), var_list=[a, b], decay_var_list=[b])
    assert (a.item(), b.item()) == (2.0, 2.0)


def test_optimizers_with_overrides_take_no_transforms() -> None:
    class Own(train.AdamOptimizer):
        def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply_gradients(*args, **kwargs)

    adam, patched = train.AdamOptimizer(), train.AdamOptimizer()
    patched.apply_gradients = adam.apply_gradients
    assert adam.takes_transforms()
    assert Hooked(0.1, 0.9).takes_transforms()
    assert extended(True)(0.1, 0.1, 0.9).takes_transforms()
    assert extended(False)(0.1, 0.1, 0.9).takes_transforms()
    extended_own = contrib.opt.extend_with_decoupled_weight_decay(Own)
    moving = contrib.opt.MovingAverageOptimizer(adam)
    for opt in (Own(), patched, extended_own(0.1), moving):
        assert not opt.takes_transforms()


@with_and_without_hook
def test_hooked_steps_process_gradients_and_write_copies(hooked: bool) -> None:
    w, v = Variable([3.0, 4.0]), Variable([[1.0], [2.0]])
    opt = maker(hooked)(1.0, 0.0)
    rows = IndexedSlices(torch.ones(1, 1), torch.tensor([1]))
    copies = [torch.zeros(2).half(), v.detach().bfloat16()]
    transforms = GradientTransforms(unscaling=np.array([0.5, 0.25], np.float32), clipvalue=0.75)
    step = Variable(np.int64(0))
    outcome = opt._take(
        [(torch.tensor([1.0, 4.0]), w), (rows, v)], StepArguments(step, "s"), transforms, copies
    )
    assert outcome == (True, [])
    assert (w.tolist(), v.tolist(), step.item()) == ([2.5, 3.25], [[1.0], [1.75]], 1)
    assert [copy.tolist() for copy in copies] == [w.tolist(), v.tolist()]


@with_and_without_hook
def test_skipped_step_changes_only_the_decided_state(hooked: bool) -> None:
    w, step, skipped = Variable([3.0]), Variable(np.int64(0)), torch.zeros(())
    opt = maker(hooked)(1.0, 0.0)

    def decide(has_nan: bool, largest: float) -> Decision:
        is_finite = bool(np.isfinite(largest))
        return Decision(is_finite, [] if is_finite else [partial(skipped.add_, 1)])

    transforms = GradientTransforms(decide=decide)
    for value, is_committed in ((1.0, True), (float("inf"), False), (1.0, True)):
        outcome = opt._take([(torch.tensor([value]), w)], StepArguments(step, "s"), transforms)
        assert outcome == (is_committed, [])
    assert (w.item(), step.item(), skipped.item()) == (1.0, 2, 1.0)


def test_scalar_slot_is_created_in_a_graph() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable(np.ones(3), name="w")
        opt = NovoGrad(0.5)
        op = opt.apply_gradients([(torch.ones(3, dtype=torch.float64), w)])
        session.run(_graph.global_variables_initializer())
        session.run(op)
        slot = opt.get_slot(w, "grads_ema")
        assert (slot.name, slot.dtype, session.run(slot)) == (
            "w/NovoGrad/grads_ema:0",
            torch.float64,
            3.0,
        )


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


def test_replaced_class_method_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(train.AdamOptimizer):
        pass

    adam = Own(0.1)
    assert adam.takes_transforms()
    monkeypatch.setattr(Own, "apply_gradients", lambda *args, **kwargs: None, raising=False)
    assert not adam.takes_transforms()
