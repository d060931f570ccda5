"""Modern rules and rules of matrices on a GPU, in Triton's interpreter: the bits of the CPU."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch

import modern_inputs
import thalweg
from matrix_inputs import MATRIX_CASES
from rulebook import assert_same
from thalweg import optim

STEPS = 3


def trained(engine, case, params, gradients, **options):
    copies = [param.detach().clone().requires_grad_() for param in params]
    optimizer = getattr(optim, case.cls)(
        copies, **case.arguments(0.1, for_own_class=True), **options
    )
    with thalweg.engine(engine):
        for step in range(STEPS):
            for param, grad in zip(copies, gradients(step), strict=True):
                param.grad = grad
            optimizer.step()
    slots = [tensor for param in copies for tensor in optimizer.state[param].values()]
    return [tensor.detach() for tensor in (*copies, *slots) if isinstance(tensor, torch.Tensor)]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [*zip(modern_inputs.CASES, cycle((torch.float32, torch.bfloat16)))],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_modern_rules_equal_the_reference(case, dtype):
    params = modern_inputs.params_of(dtype)[1:4]  # which an interpreter has done in time

    def gradients(step):
        return modern_inputs.gradients_of(step, dtype)[1:4]

    actual, expected = (trained(engine, case, params, gradients) for engine in ("cuda", "cpu"))
    assert_same(actual, expected)


@pytest.mark.parametrize(
    ("case", "options"),
    [*zip(MATRIX_CASES, cycle(({}, {"clip_grad_norm": 0.5}, {"ema_decay": 0.9})))],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_matrix_rules_equal_the_reference(case, options):
    params = case.params_of(torch.float32)[:2]

    def gradients(step):
        return case.gradients_of(step, torch.float32)[:2]

    actual, expected = (
        trained(engine, case, params, gradients, **options) for engine in ("cuda", "cpu")
    )
    assert_same(actual, expected)
