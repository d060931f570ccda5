"""`tf.train.experimental`: loss scales, and the optimizer that uses them."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from case_batches import many
from thalweg import Variable
from thalweg._base.execution_context import eagerly
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib
from thalweg.v1.train.experimental import loss_scale as scales

v1, experimental = tf.compat.v1, train.experimental
LARGEST = float(np.finfo(np.float32).max)

# initial scale, period, multiplier; whether gradients are finite; the scale after each step
STEPS = {
    "grows": ((1, 2, 2), [True] * 6, [1, 2, 2, 4, 4, 8]),
    "shrinks to 1": ((8, 2, 2), [False] * 4, [4, 2, 1, 1]),
    "begins anew": (
        (4, 3, 3),
        [True, True, False, True, True, True],
        [4, 4, 4 / 3, 4 / 3, 4 / 3, 4],
    ),
    "stays finite": ((LARGEST / 2, 1, 2), [True] * 3, [LARGEST] * 3),
}


@many("in_graph", [False, True])
@many("case", list(STEPS))
def test_the_scale_follows_the_gradients(case: str, in_graph: bool) -> None:
    arguments, finite, expected = STEPS[case]
    values = [1.0 if is_finite else math.nan for is_finite in finite]
    if in_graph:
        with tf.Graph().as_default(), v1.Session() as session:
            scale, grad = experimental.DynamicLossScale(*arguments), v1.placeholder(tf.float32, [])
            update, should_apply = scale.update([grad, None])
            session.run(v1.global_variables_initializer())
            flags = [session.run([should_apply, update], {grad: x})[0] for x in values]
            assert flags == finite
            assert session.run(scale()).dtype == np.float32
            return
    scale, scales = experimental.DynamicLossScale(*arguments), []
    for value, is_finite in zip(values, finite, strict=True):
        _, should_apply = scale.update([torch.tensor(value), None])
        assert bool(should_apply) is is_finite
        scales.append(scale().item())
    np.testing.assert_allclose(scales, expected, rtol=1e-6)


def test_torch_sparse_gradients_are_accepted() -> None:
    w = Variable(torch.ones(3, 2), name="w")
    opt = experimental.MixedPrecisionLossScaleOptimizer(
        train.GradientDescentOptimizer(0.5), "dynamic"
    )
    for value, expected in ((1.0, 0.5), (math.inf, 0.5)):
        rows = torch.tensor([[1]]), torch.full((1, 2), value)
        grad = torch.sparse_coo_tensor(*rows, (3, 2), check_invariants=False)
        opt.apply_gradients([(grad, w)])
        assert w.tolist() == [[1.0, 1.0], [expected, expected], [1.0, 1.0]]


def test_the_scale_is_divided_in_float32() -> None:
    scale = experimental.DynamicLossScale(2**15, 3, 1.1)
    expected = np.float32(2**15)
    for _ in range(9):
        scale.update([torch.tensor(math.inf)])
        expected /= np.float32(1.1)
        assert scale().item() == expected


def test_loss_scales_are_named_copied_and_printed() -> None:
    fixed, moving = scales.get(123), scales.get("dynamic")
    assert repr(fixed) == "FixedLossScale(123.0)"
    assert type(fixed).from_config(fixed.get_config())().item() == 123.0
    scale = experimental.DynamicLossScale(1, 2, 3)
    scale_copy = experimental.DynamicLossScale.from_config(scale.get_config())
    assert (
        repr(scale_copy)
        == repr(scale)
        == (
            "DynamicLossScale(current_loss_scale=1.0, num_good_steps=0, initial_loss_scale=1.0,"
            " increment_period=2, multiplier=3.0)"
        )
    )
    assert moving.initial_loss_scale == 2.0**15
    assert scales.get(None) is None
    assert scales.get(scale) is scale
    for bad in ("no", object()):
        with pytest.raises(ValueError, match="Could not interpret loss scale"):
            scales.get(bad)
    with pytest.raises(ValueError, match="at least 1"):
        experimental.FixedLossScale(0.5)
    with pytest.raises(ValueError, match="cannot be None"):
        experimental.MixedPrecisionLossScaleOptimizer(train.GradientDescentOptimizer(1.0), None)


def scaled(kind: Any = None) -> Any:
    scale = experimental.DynamicLossScale(2, 1, 4) if kind is None else kind
    return experimental.MixedPrecisionLossScaleOptimizer(train.MomentumOptimizer(1.0, 1.0), scale)


def test_nonfinite_steps_are_skipped() -> None:
    w, step, opt = Variable([1.0, 2.0], name="w"), Variable(0), scaled()
    for factor, value, scale in (
        (1.0, [0.0, 1.0], 8),
        (math.nan, [0.0, 1.0], 2),
        (1.0, [-2.0, -1.0], 8),
    ):
        opt.minimize(lambda factor=factor: (w * factor).sum(), step, var_list=[w])
        assert w.tolist() == value
        assert opt._loss_scale().item() == scale
    assert step.item() == 2
    assert opt.get_slot_names() == ["momentum"]


def test_nonfinite_graph_steps_are_skipped() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        w, factor = v1.Variable([1.0, 2.0], name="w"), v1.placeholder(tf.float32, [])
        step = v1.train.get_or_create_global_step()
        opt = scaled()
        train_op = opt.minimize(v1.reduce_sum(w * factor), step)
        session.run(v1.global_variables_initializer())
        for fed_factor, value in ((1.0, [0.0, 1.0]), (math.nan, [0.0, 1.0]), (1.0, [-2.0, -1.0])):
            session.run(train_op, {factor: fed_factor})
            assert session.run(w).tolist() == value
        assert session.run([step, opt._loss_scale()]) == [2, 8.0]


@many("in_graph", [False, True])
def test_failed_step_does_not_change_the_scale(in_graph: bool) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(tf.Graph().as_default() if in_graph else eagerly())
        session: Any = stack.enter_context(v1.Session()) if in_graph else None
        w, opt = v1.Variable([1.0, 2.0], name="w"), scaled()
        gradient = v1.placeholder(tf.float32, None) if in_graph else torch.ones(3)
        if in_graph:
            train_op = opt.apply_gradients([(gradient, w)])
            session.run(v1.global_variables_initializer())
        with pytest.raises(ValueError, match=r"'w:0' has shape \(3,\)"):
            session.run(train_op, {gradient: [1.0] * 3}) if in_graph else opt.apply_gradients(
                [(gradient, w)]
            )
        scale = opt._loss_scale()
        assert (session.run(scale) if in_graph else scale.item()) == 2


def test_loss_gradient_is_scaled_and_applied_gradient_is_not() -> None:
    scaled_grads: list[float] = []
    w, opt = Variable(5.0, name="w"), scaled(8.0)

    def loss() -> Any:
        value = w * 1.0
        value.register_hook(lambda grad: scaled_grads.append(grad.item()))
        return value

    ((grad, _),) = opt.compute_gradients(loss, [w])
    assert (scaled_grads, grad.item()) == ([8.0], 1.0)


def test_a_checkpoint_has_the_optimizer_inside_and_the_scale(tmp_path: Any) -> None:
    w, opt = Variable([1.0], name="w"), scaled()
    opt.minimize(lambda: w.sum(), var_list=[w])
    checkpoint = train.Checkpoint(optimizer=opt, w=w)
    path = checkpoint.save(str(tmp_path / "ckpt"))
    opt.minimize(lambda: w.sum(), var_list=[w])
    checkpoint.restore(path).assert_consumed()
    assert (w.item(), opt._loss_scale().item()) == (0.0, 8.0)
    assert opt.get_slot(w, "momentum").item() == 1.0


class Counting(train.MomentumOptimizer):
    """Doubles gradients and counts its calls."""

    calls = 0

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        pairs = [(2 * grad, var) for grad, var in grads_and_vars]
        return super().apply_gradients(pairs, *args, **kwargs)


@pytest.mark.parametrize("in_graph", [False, True])
def test_the_inner_apply_gradients_is_called(in_graph: bool) -> None:
    inner = Counting(0.5, 0.0)
    if in_graph:
        with tf.Graph().as_default(), v1.Session() as session:
            opt = experimental.MixedPrecisionLossScaleOptimizer(inner, "dynamic")
            w, step = v1.get_variable("w", initializer=tf.zeros(2)), v1.train.create_global_step()
            train_op = opt.apply_gradients([(tf.ones(2), w)], global_step=step)
            session.run(v1.global_variables_initializer())
            session.run(train_op)
            values, count = session.run([w, step])
    else:
        opt = experimental.MixedPrecisionLossScaleOptimizer(inner, "dynamic")
        w, step = Variable(torch.zeros(2), name="w"), Variable(np.int64(0), trainable=False)
        opt.apply_gradients([(torch.ones(2), w)], global_step=step)
        values, count = w.numpy(), step.item()
    assert (values.tolist(), count, inner.calls) == ([-1, -1], 1, 1)


@pytest.mark.parametrize("inner", ["clipping", "averaging", "decaying"])
def test_loss_scale_can_wrap_another_wrapper(inner: str) -> None:
    w, sgd = Variable(torch.zeros(2), name="w"), train.GradientDescentOptimizer(0.5)
    wrapper: Any = {
        "clipping": lambda: contrib.VariableClippingOptimizer(sgd, {w: [0]}, 0.25),
        "averaging": lambda: contrib.MovingAverageOptimizer(sgd, 0.5),
        "decaying": lambda: contrib.MomentumWOptimizer(0.5, 0.5, 0.0),
    }[inner]()
    opt = experimental.MixedPrecisionLossScaleOptimizer(wrapper, "dynamic")
    for value in (1.0, math.inf, 1.0):
        opt.apply_gradients([(torch.full((2,), value), w)])
    if inner == "clipping":
        np.testing.assert_allclose(w.norm().item(), 0.25, rtol=1e-6)
    elif inner == "averaging":
        assert (w.tolist(), wrapper.average(w).tolist()) == ([-1, -1], [-0.75, -0.75])
    else:
        assert w.tolist() == [0.5 * -1 - 0.25, 0.5 * -1 - 0.25]
