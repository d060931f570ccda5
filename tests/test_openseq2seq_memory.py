"""Steps of `optimize_loss` over memory that moves, is shared, is seen otherwise, or is freed."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Parameter

from openseq2seq_small import HALF, halves, stepping
from thalweg.openseq2seq.optimizers.mp_wrapper import (
    mp_regularizer_wrapper,
)


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
