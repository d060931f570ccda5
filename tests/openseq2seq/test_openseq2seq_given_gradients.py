"""Steps of `optimize_loss` whose gradients were computed elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bit_comparison import assert_same
from openseq2seq_small import make_step
from thalweg import Variable
from thalweg._graph import Graph
from thalweg.openseq2seq import from_config
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.lr_policies import fixed_lr
from thalweg.v1.contrib.opt import AdamWOptimizer

KINDS: dict[str, dict[str, Any]] = {
    "plain": {"dtype": torch.float32},
    "clipped": {"dtype": torch.float32, "clip_gradients": 0.5},
    "larc": {"dtype": "mixed", "larc_params": {"larc_eta": 0.01}, "loss_scaling": 64.0},
    "backoff": {"dtype": "mixed", "loss_scaling": "Backoff"},
}


def variables(dtype: Any) -> list[Variable]:
    kind = torch.float16 if dtype == "mixed" else torch.float32
    values = torch.linspace(-1, 1, 12).to(kind)
    return [Variable(values[:8].reshape(2, 4), name="w"), Variable(values[8:], name="b")]


def loss_of(params: list[Variable]) -> Tensor:
    w, b = (param.float() for param in params)
    return ((w @ w.t()).sum() + (b * b).sum()) * 3


def made(params: list[Variable] | None, loss: Any, **options: Any) -> Any:
    return optimize_loss(
        loss, "Momentum", {"momentum": 0.9}, lambda s: fixed_lr(s, 0.01), var_list=params, **options
    )


@pytest.mark.parametrize("kind", KINDS)
def test_given_gradients_make_the_step_of_the_loss(kind: str) -> None:
    options = KINDS[kind]
    params, twins = variables(options["dtype"]), variables(options["dtype"])
    step = made(params, lambda: pytest.fail("the loss is not asked for"), **options)
    twin_step = made(twins, lambda: loss_of(twins), **options)
    for _ in range(4):
        scaled_loss = loss_of(params) * step.loss_scale
        has_updated = step.apply_gradients(torch.autograd.grad(scaled_loss, params))
        twin_step()
        assert has_updated is twin_step.was_applied
    for a, b in zip(params, twins, strict=True):
        assert_same([a.detach()], [b.detach()])
    assert 0 < int(step.global_step) <= 4
    for name, value in twin_step.state_dict().items():
        assert_same([step.state_dict()[name]], [value], f"{name}")


def test_an_overflow_makes_no_update_and_halves_the_scale() -> None:
    params = variables("mixed")
    step = made(params, lambda: None, **KINDS["backoff"])
    initial, scale = [var.detach().clone() for var in params], float(step.loss_scale)
    gradients = [torch.ones_like(var.detach()) for var in params]
    gradients[1][2] = float("inf")
    assert step.apply_gradients(gradients) is False
    assert step.was_applied is False
    assert float(step.loss_scale) == scale / 2
    assert all(torch.equal(a, b.detach()) for a, b in zip(initial, params, strict=True))


def test_mismatched_gradients_raise_and_change_nothing() -> None:
    params = variables("mixed")
    step = made(params, lambda: None, **KINDS["backoff"])
    good = [torch.ones_like(var.detach()) for var in params]
    step.apply_gradients(good)
    state = {name: value.clone() for name, value in step.state_dict().items()}
    for bad, error, words in (
        (good[:1], ValueError, r"1 gradients for 2 variables: \['w:0', 'b:0'\]"),
        ([good[0], good[1].float()], TypeError, "'b:0' is torch.float32 but the variable is"),
        ([good[0], good[1][:2]], ValueError, r"shape \(2,\)"),
        ([good[0], None], ValueError, "'b:0' has no gradient"),
    ):
        with pytest.raises(error, match=words):
            step.apply_gradients(bad)
        assert all(torch.equal(state[name], value) for name, value in step.state_dict().items())
    with Graph().as_default(), pytest.raises(RuntimeError, match="made in eager mode"):
        step.apply_gradients(good)


def test_variables_must_be_known() -> None:
    with pytest.raises(RuntimeError, match="Give var_list"):
        made(None, lambda: None, dtype=torch.float32).apply_gradients([])


def test_loss_scale_is_1_without_mixed_precision() -> None:
    params = variables(torch.float32)
    assert made(params, lambda: None, dtype=torch.float32).loss_scale == 1.0


def test_given_gradients_count_as_batches() -> None:
    params = variables(torch.float32)
    config = {
        "optimizer": "SGD", "lr_policy": fixed_lr, "lr_policy_params": {"learning_rate": 1.0},
        "iter_size": 2, "max_steps": 9,
    }  # fmt: skip
    step = from_config(config).optimize(lambda: None, params)
    gradients = [torch.ones_like(var.detach()) for var in params]
    assert [step.apply_gradients(gradients) for _ in range(4)] == [False, True, False, True]
    assert int(step.global_step) == 2


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, "<TrainingStep of MomentumOptimizer>"),
        (variables(torch.float32), "<TrainingStep of MomentumOptimizer, 2 variables>"),
    ],
)
def test_repr_of_a_step_lists_its_variables(params: list[Variable] | None, expected: str) -> None:
    assert repr(made(params, lambda: None, dtype=torch.float32)) == expected


def test_runs_without_any_gradient_raise_for_any_iter_size() -> None:
    w = Variable([1.0], name="w")
    for options in ({}, {"iter_size": 2, "skip_update_ph": False}):
        step = make_step([w], dtype=torch.float32, summaries=[], **options)
        with pytest.raises(ValueError, match=r"No gradients provided for any variable: \['w:0'\]"):
            step.apply_gradients([None])
        assert int(step.global_step) == 0


def test_variable_without_gradient_in_all_runs_is_unchanged() -> None:
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


def test_learning_rates_of_steps_can_be_collected() -> None:
    w = Variable([1.0], name="w")
    step = optimize_loss(lambda: None, "SGD", {}, lambda s: 0.5 / (int(s) + 1), var_list=[w])
    rates = []
    for _ in range(3):
        step.apply_gradients([torch.ones(1)])
        rates.append(step.learning_rate)
    assert [round(float(rate), 4) for rate in rates] == [0.5, 0.25, 0.1667]
