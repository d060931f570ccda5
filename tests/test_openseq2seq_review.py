"""Steps of `optimize_loss` in unusual places: memory that moves, scales below 1, names, copies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from thalweg import Variable
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.mp_wrapper import (
    MixedPrecisionOptimizerWrapper,
    mp_regularizer_wrapper,
)
from thalweg.openseq2seq.optimizers.summaries import tags_of
from thalweg.v1 import train
from thalweg.v1.contrib.opt import AdamWOptimizer, MovingAverageOptimizer

HALF = torch.float16


def stepping(variables: Any, optimizer: Any = "SGD", rate: float = 0.5, **options: Any) -> Any:
    """A step whose gradients are given to it."""
    settings = {"dtype": "mixed", "loss_scaling": 1.0, **options}
    params = settings.pop("params", {})
    return optimize_loss(lambda: None, optimizer, params, lambda _: rate, variables, **settings)


def halves(*sizes: int) -> list[Parameter]:
    return [Parameter(torch.ones(size, dtype=HALF)) for size in sizes]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "processing",
    [{"clip_gradients": 1.0}, {"larc_params": {"larc_eta": 0.001}}, {}],
    ids=["clipping", "larc", "plain"],
)
def test_an_overflow_by_a_loss_scale_below_1_is_seen(
    dtype: torch.dtype, processing: dict[str, Any]
) -> None:
    w = Variable(torch.ones(4, dtype=dtype), name="w")
    scaling = {"scale_max": 1.0, "scale_min": 2.0**-10}
    step = stepping([w], loss_scaling="Backoff", loss_scaling_params=scaling, **processing)
    for bad in (float("inf"), 3e38, 3e38):  # the second time the scale is 1/2
        grad = torch.zeros(4, dtype=dtype)
        grad[0] = bad
        assert step.apply_gradients([grad]) is False
        assert w.detach().float().tolist() == [1.0] * 4
    assert float(step.loss_scale) == 0.125


def test_a_loaded_master_keeps_its_bits() -> None:
    w, v = (Variable(torch.ones(2, dtype=HALF), name="w") for _ in range(2))
    step, other = stepping([w], rate=1e-4), stepping([v], rate=1e-4)
    step.apply_gradients([torch.ones(2, dtype=HALF)])
    other.optimizer.load_state_dict(step.optimizer.state_dict(), [v])
    for each in (step, other):
        each.apply_gradients([torch.ones(2, dtype=HALF)])
    assert torch.equal(step.optimizer.get_master(w), other.optimizer.get_master(v))


@pytest.mark.parametrize("dtype", ["mixed", torch.float32], ids=str)
def test_the_state_of_a_wrapped_optimizer_is_refused_and_not_left_out(dtype: Any) -> None:
    w = Variable([1.0, 2.0], name="w")

    def wrapped(learning_rate: Any) -> Any:
        return MovingAverageOptimizer(train.AdamOptimizer(learning_rate))

    step = stepping([w], wrapped, dtype=dtype)
    step.apply_gradients([torch.ones(2)])
    with pytest.raises(TypeError, match="MovingAverageOptimizer wraps another optimizer"):
        step.state_dict()
    with pytest.raises(TypeError, match="MovingAverageOptimizer wraps another optimizer"):
        step.load_state_dict({})


def test_a_variable_that_becomes_of_another_dtype_gets_numbers_of_that_dtype() -> None:
    (p,) = halves(4)
    mp_regularizer_wrapper(lambda w: (w * 0).sum())(p)  # gradients become float32
    step = stepping([p])
    for _ in range(2):
        step.apply_gradients([torch.zeros(4, dtype=HALF)])
    p.data = p.data.view(torch.bfloat16)
    step.apply_gradients([torch.zeros(4, dtype=torch.bfloat16)])
    assert p.detach().tolist() == [1.0] * 4


def test_a_variable_that_is_transposed_in_place_is_copied_to_as_it_lies() -> None:
    p = Parameter(torch.arange(4.0).reshape(2, 2).to(HALF))
    step = stepping([p])
    for _ in range(2):
        step.apply_gradients([torch.zeros(2, 2, dtype=HALF)])
    p.data = p.data.t()
    with pytest.warns(UserWarning, match="has strides"):
        step.apply_gradients([torch.zeros(2, 2, dtype=HALF)])
    assert p.detach().tolist() == [[0.0, 1.0], [2.0, 3.0]]  # as the master has it


def test_a_graph_through_a_variable_that_a_step_has_written_is_refused() -> None:
    (p,) = halves(4)
    step = stepping([p])
    grad = torch.ones(4, dtype=HALF)
    step.apply_gradients([grad])
    stale = (p * p).sum()
    step.apply_gradients([grad])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()


@pytest.mark.parametrize("steps", [0, 2])
def test_a_gradient_inside_the_memory_of_a_copy_is_read_as_it_was(steps: int) -> None:
    a, b = halves(4, 4)
    step = stepping([a, b])
    zero = torch.zeros(4, dtype=HALF)
    for _ in range(steps):
        step.apply_gradients([zero, zero.clone()])
    step.apply_gradients([zero + 1, a.detach()])
    assert a.detach().tolist() == b.detach().tolist() == [0.5] * 4


def test_variables_that_share_memory_are_refused() -> None:
    memory = torch.ones(8, dtype=HALF)
    a, c = Parameter(memory[:4]), Parameter(memory[2:6])
    zero = torch.zeros(4, dtype=HALF)
    with pytest.raises(ValueError, match="share memory"):
        stepping([a, c]).apply_gradients([zero, zero.clone()])
    assert memory.tolist() == [1.0] * 8


def test_a_variable_that_was_freed_is_refused() -> None:
    a, b = halves(4, 4)
    step = stepping([a, b])
    zero = torch.zeros(4, dtype=HALF)
    for _ in range(2):
        step.apply_gradients([zero, zero.clone()])
    a.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="memory"):
        step.apply_gradients([zero + 1, zero + 1])
    assert b.detach().tolist() == [1.0] * 4


@pytest.mark.parametrize("names", [("a", "a", "a#1"), ("a#1", "a", "a"), ("a", "a#0", "a")])
def test_the_state_of_variables_with_like_names_is_whole(names: tuple[str, ...]) -> None:
    variables = [Variable([1.0], name=name) for name in names]
    step = stepping(variables, "Momentum", params={"momentum": 0.9}, dtype=torch.float32)
    step.apply_gradients([torch.ones(1) for _ in names])
    assert sum("/" in name for name in step.state_dict()) == 3


def test_tags_are_distinct() -> None:
    variables = [Variable([1.0], name=name) for name in ("w", "w", "w_0_1", "w_0_0")]
    assert len(set(tags_of(variables))) == 4


def test_runs_without_any_gradient_are_refused_whatever_their_number() -> None:
    w = Variable([1.0], name="w")
    for options in ({}, {"iter_size": 2, "skip_update_ph": False}):
        step = stepping([w], dtype=torch.float32, summaries=[], **options)
        with pytest.raises(ValueError, match=r"No gradients provided for any variable: \['w:0'\]"):
            step.apply_gradients([None])
        assert int(step.global_step) == 0


def test_a_variable_without_a_gradient_in_any_run_is_left_alone() -> None:
    w, u = Variable([1.0], name="w"), Variable([1.0], name="u")
    skips = iter([True, False] * 2)
    step = optimize_loss(
        lambda: None, AdamWOptimizer, {"weight_decay": 0.1}, lambda _: 0.5, [w, u],
        summaries=[], iter_size=2, skip_update_ph=lambda: next(skips),
    )  # fmt: skip
    for first, second in ((None, None), (torch.ones(1), None)):
        step.apply_gradients([torch.ones(1), first])
        step.apply_gradients([torch.ones(1), second])
        if first is None:
            assert u.item() == 1.0
    assert u.item() < 0.9
    assert int(step.global_step) == 2


def test_a_counter_that_others_move_does_not_hide_a_failure() -> None:
    count = Variable(np.int64(0), name="count", trainable=False)
    w = Variable([1.0], name="w")

    class Failing(train.GradientDescentOptimizer):
        def _prepare(self) -> None:
            count.assign_add(1)  # as a step of another thread does
            raise RuntimeError("burnt")

    step = stepping([w], Failing, dtype=torch.float32, global_step=count)
    with pytest.raises(RuntimeError, match="burnt") as caught:
        step.apply_gradients([torch.ones(1)])
    notes = " ".join(getattr(caught.value, "__notes__", []))
    assert "was not taken" in notes
    assert "The step was taken" not in notes
    assert w.item() == 1.0


@pytest.mark.parametrize("scale", [1e-50, 1e300, 1e-45, 1e-39])
def test_a_loss_scale_that_float32_does_not_hold_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="above 0 in float32"):
        MixedPrecisionOptimizerWrapper(train.GradientDescentOptimizer(1.0), scale)


def test_learning_rates_of_steps_can_be_collected() -> None:
    w = Variable([1.0], name="w")
    step = optimize_loss(lambda: None, "SGD", {}, lambda s: 0.5 / (int(s) + 1), var_list=[w])
    rates = []
    for _ in range(3):
        step.apply_gradients([torch.ones(1)])
        rates.append(step.learning_rate)
    assert [round(float(rate), 4) for rate in rates] == [0.5, 0.25, 0.1667]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_step_is_not_copied(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="load state_dict"):
        copied(stepping([Variable([1.0])], dtype=torch.float32))


def test_after_a_failure_the_scaler_is_as_before_and_plain_steps_work() -> None:
    w = Variable(torch.ones(3), name="w")
    armed = False

    class Failing(train.MomentumOptimizer):
        def _groups(self, *given: Any) -> Any:
            if armed:
                raise RuntimeError("burnt")
            return super()._groups(*given)

    step = stepping([w], Failing, params={"momentum": 0.9}, loss_scaling="Backoff")
    step.apply_gradients([torch.ones(3)])
    before = {name: value.clone() for name, value in step.state_dict().items()}
    armed = True
    with pytest.raises(RuntimeError, match="burnt"):
        step.apply_gradients([torch.ones(3)])
    armed = False
    assert all(torch.equal(before[name], value) for name, value in step.state_dict().items())
    inner = step.optimizer.optimizer
    kept: Tensor = w.detach().clone()
    inner.apply_gradients([(torch.zeros(3), w)])  # without unscaling and copies
    assert torch.equal(w.detach(), kept - 0.5 * inner.get_slot(w, "momentum"))
