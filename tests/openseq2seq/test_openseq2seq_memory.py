"""Steps of `optimize_loss` over memory that moves, is shared, is seen otherwise, or is freed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from openseq2seq_small import HALF, half_params, make_step
from thalweg import IndexedSlices, Variable
from thalweg.errors import LayoutError
from thalweg.openseq2seq.optimizers.mp_wrapper import (
    mp_regularizer_wrapper,
)


def test_variable_with_changed_dtype_gets_copies_of_that_dtype() -> None:
    (p,) = half_params(4)
    mp_regularizer_wrapper(lambda w: (w * 0).sum())(p)  # gradients become float32
    step = make_step([p])
    for _ in range(2):
        step.apply_gradients([torch.zeros(4, dtype=HALF)])
    p.data = p.data.view(torch.bfloat16)
    step.apply_gradients([torch.zeros(4, dtype=torch.bfloat16)])
    assert p.detach().tolist() == [1.0] * 4


def test_variable_transposed_in_place_is_copied_in_its_layout() -> None:
    p = Parameter(torch.arange(4.0).reshape(2, 2).to(HALF))
    step = make_step([p])
    for _ in range(2):
        step.apply_gradients([torch.zeros(2, 2, dtype=HALF)])
    p.data = p.data.t()
    with pytest.warns(UserWarning, match="has strides"):
        step.apply_gradients([torch.zeros(2, 2, dtype=HALF)])
    assert p.detach().tolist() == [[0.0, 1.0], [2.0, 3.0]]  # as the master has it


def test_backward_through_a_written_variable_raises() -> None:
    (p,) = half_params(4)
    step = make_step([p])
    grad = torch.ones(4, dtype=HALF)
    step.apply_gradients([grad])
    stale = (p * p).sum()
    step.apply_gradients([grad])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()


@pytest.mark.parametrize("steps", [0, 2])
def test_gradient_aliasing_a_copy_is_read_before_writing(steps: int) -> None:
    a, b = half_params(4, 4)
    step = make_step([a, b])
    zero = torch.zeros(4, dtype=HALF)
    for _ in range(steps):
        step.apply_gradients([zero, zero.clone()])
    step.apply_gradients([zero + 1, a.detach()])
    assert a.detach().tolist() == b.detach().tolist() == [0.5] * 4


def test_overlapping_variables_raise() -> None:
    memory = torch.ones(8, dtype=HALF)
    a, c = Parameter(memory[:4]), Parameter(memory[2:6])
    zero = torch.zeros(4, dtype=HALF)
    with pytest.raises(ValueError, match="share memory"):
        make_step([a, c]).apply_gradients([zero, zero.clone()])
    assert memory.tolist() == [1.0] * 8


def test_freed_variable_raises() -> None:
    a, b = half_params(4, 4)
    step = make_step([a, b])
    zero = torch.zeros(4, dtype=HALF)
    for _ in range(2):
        step.apply_gradients([zero, zero.clone()])
    a.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="memory"):
        step.apply_gradients([zero + 1, zero + 1])
    assert b.detach().tolist() == [1.0] * 4


# What is read before the update: gradients that are added up, unscaled, averaged or get a penalty.


def regularized(var: Tensor) -> None:
    mp_regularizer_wrapper(lambda w: (w * w).sum())(var)


ADDING: dict[str, Any] = {"iter_size": 2, "skip_update_ph": True}
READ_EARLY: dict[str, dict[str, Any]] = {
    "added up": ADDING,
    "added up, float32": {**ADDING, "dtype": torch.float32},
    "added up and written": {**ADDING, "skip_update_ph": False},
    "averaged": {"on_horovod": True, "all_reduce": lambda grad: grad * 1},
    "averaged, float32": {"on_horovod": True, "all_reduce": lambda grad: grad, "dtype": None},
    "penalised": {},
}
PARTS = ("gradient", "values", "indices")


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("options", READ_EARLY)
def test_truncated_gradient_raises_before_reading(options: str, part: str, size: int) -> None:
    dtype = torch.float32 if "float32" in options else HALF
    w, v = (Variable(torch.ones(4, 2, dtype=dtype), name) for name in ("w", "v"))
    if options == "penalised":
        regularized(w)
    step = make_step([v, w], **READ_EARLY[options])
    gradient = torch.ones(4, 2, dtype=dtype)
    step.apply_gradients([gradient, gradient])
    state_before = step.state_dict()
    grad, values, indices = (tensor.clone() for tensor in (gradient, gradient, torch.arange(4)))
    rows = IndexedSlices(values, indices, (4, 2))
    {"gradient": grad, "values": values, "indices": indices}[part].untyped_storage().resize_(size)
    with pytest.raises(LayoutError, match=r"gradient of 'w:0' has no memory that holds its"):
        step.apply_gradients([gradient, grad if part == "gradient" else rows])
    state_after = step.state_dict()
    assert all(torch.equal(state_after[name], state_before[name]) for name in state_before)


@pytest.mark.parametrize("size", [0, 4, 28])
@pytest.mark.parametrize("skip", [True, False])
def test_truncated_gradient_sum_raises(skip: bool, size: int) -> None:
    w = Variable(torch.ones(8), name="w")
    step = make_step([w], dtype=None, **{**ADDING, "skip_update_ph": skip})
    step.apply_gradients([torch.ones(8)])
    step._accumulators.get(w).untyped_storage().resize_(size)
    with pytest.raises(LayoutError, match="'w/gradient_sum:0' has no memory that holds its 8"):
        step.apply_gradients([torch.ones(8)])
    assert w.tolist() == ([1.0] * 8 if skip else [0.75] * 8)


@pytest.mark.parametrize("role", ["variable", "master"])
def test_truncated_penalty_memory_raises(role: str) -> None:
    w = Variable(torch.ones(8, dtype=HALF), name="w")
    regularized(w)
    step = make_step([w])
    grad = torch.ones(8, dtype=HALF)
    if role == "master":
        step.apply_gradients([grad])
    cut = w if role == "variable" else step.optimizer.get_master(w)
    cut.untyped_storage().resize_(8)
    with pytest.raises(LayoutError, match=r"w:0' has no memory that holds its 8 elements"):
        step.apply_gradients([grad])


@pytest.mark.parametrize("skips", [True, False])
def test_self_overlapping_sum_raises_before_other_sums_change(
    skips: bool,
) -> None:
    params = [Variable([1.0, 1.0], name="w"), Variable([1.0, 1.0], name="u")]
    skip = [True, skips]
    step = make_step(
        params, dtype=torch.float32, summaries=[], iter_size=2, skip_update_ph=lambda: skip.pop(0)
    )
    step.apply_gradients([torch.ones(2)] * 2)
    first, second = step._accumulators.of(params)
    second.data = second.detach()[:1].clone().expand(2)
    first_before = first.detach().clone()
    with pytest.raises(LayoutError, match="slot of 'u:0' in place: its elements share memory"):
        step.apply_gradients([torch.ones(2)] * 2)
    assert torch.equal(first, first_before)
