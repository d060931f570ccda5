"""Changes to variables between two replayed steps are noticed by the next step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from thalweg import Variable, keras, v1
from thalweg._engines.dense_plan import DensePlan
from thalweg.errors import InvalidTypeError
from thalweg.openseq2seq.optimizers import optimize_loss

OPTIMIZERS = {
    "keras": lambda: keras.optimizers.SGD(0.1),
    "v1": lambda: v1.train.GradientDescentOptimizer(0.1),
}
each_face = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


@each_face
@pytest.mark.parametrize("kind", [torch.nn.Parameter, Variable])
def test_constraint_set_later_is_applied(make: Any, kind: Any) -> None:
    var, opt = kind(torch.zeros(2)), make()
    for count in range(6):
        if count == 3:
            var.constraint = lambda value: value.clamp(max=0.35)  # pyright: ignore
        opt.apply_gradients([(torch.full((2,), -1.0), var)])
    assert var.tolist() == pytest.approx([0.35] * 2)


@each_face
def test_constraint_of_other_variable_keeps_plans(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    var, opt, unused = Variable(torch.zeros(2)), make(), Variable(0.0)
    opt.apply_gradients([(torch.ones(2), var)])
    rebinds: list[bool] = []
    try_rebind = DensePlan.try_rebind

    def spied(*args: Any) -> bool:
        rebinds.append(try_rebind(*args))
        return rebinds[-1]

    monkeypatch.setattr(DensePlan, "try_rebind", spied)
    for _ in range(3):
        unused.constraint = torch.relu
        opt.apply_gradients([(torch.ones(2), var)])
    assert rebinds[:2] == [True] * 2  # the second repeats the first, the third plans what follows
    assert all(rebinds)
    assert opt._plans.now().replay.taken == 2


@pytest.mark.parametrize("kind", [torch.nn.Parameter, Variable])
def test_constraint_set_later_ends_swept_steps(kind: Any) -> None:
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
def test_changed_16_bit_dtype_raises(make: Any) -> None:
    var, opt = Variable(torch.ones(4, dtype=torch.bfloat16)), make()
    grad = torch.ones(4, dtype=torch.bfloat16)
    for _ in range(3):
        opt.apply_gradients([(grad, var)])
    var.data = var.data.view(torch.float16)
    initial = var.detach().clone()
    with pytest.raises(InvalidTypeError, match="bfloat16 but the variable is float16"):
        opt.apply_gradients([(grad, var)])
    assert torch.equal(var, initial)


@each_face
def test_lazy_negation_is_resolved_in_replay(make: Any) -> None:
    var, opt = Variable(torch.ones(2)), make()
    for _ in range(3):
        opt.apply_gradients([(torch.zeros(2), var)])
    opt.apply_gradients([(torch._neg_view(torch.full((2,), 10.0)), var)])
    assert var.tolist() == [2.0, 2.0]
