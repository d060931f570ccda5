"""`RuleOptimizer` with rules of rows and columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from keras_table import both_engines
from rulebook import assert_same
from thalweg import Rule, Variable, optim
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.keras.optimizers import RuleOptimizer
from thalweg.rules.modern import SM3
from thalweg.rules.torch import TORCH_ADAFACTOR

RULES: list[tuple[Rule, Any]] = [(SM3, optim.SM3), (TORCH_ADAFACTOR, optim.Adafactor)]
SHAPES = ((70, 5), (2, 3, 7), (3, 1030))
by_rule = pytest.mark.parametrize(
    ("rule", "cls"), RULES, ids=lambda each: getattr(each, "name", "")
)


def variables(dtype: torch.dtype = torch.float32) -> list[Variable]:
    dice = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=dice).to(dtype) for shape in SHAPES]
    return [Variable(value, name=f"w{place}") for place, value in enumerate(made)]


def pairs(own: list[Variable], step: int) -> list[Any]:
    dice = torch.Generator().manual_seed(1 + step)
    return [(torch.randn(var.shape, generator=dice).to(var.dtype), var) for var in own]


def values(opt: Any, own: list[Variable]) -> list[Tensor]:
    return [torch.as_tensor(each).detach().as_subclass(Tensor) for each in (*own, *opt.weights)]


@both_engines
@by_rule
def test_matrices_move_as_those_of_torchs_kind(rule: Rule, cls: Any, engine: str) -> None:
    own, opt = variables(torch.float64), RuleOptimizer(rule, 0.1)
    opt.engine = engine
    params = [var.detach().clone().as_subclass(Tensor).requires_grad_() for var in own]
    judge = cls(params, lr=0.1)
    for step in range(3):
        given = pairs(own, step)
        opt.apply_gradients(given)
        for param, (grad, _) in zip(params, given, strict=True):
            param.grad = grad
        judge.step()
    for var, param in zip(own, params, strict=True):
        torch.testing.assert_close(var.detach().as_subclass(Tensor), param.detach())
        for slot in rule.slots:
            kept = opt.get_slot(var, slot.name).detach().as_subclass(Tensor)
            torch.testing.assert_close(kept, judge.state[param][slot.name])


@by_rule
def test_a_training_goes_on_from_its_weights(rule: Rule, cls: Any) -> None:
    own, opt = variables(), RuleOptimizer(rule, 0.1, clipnorm=0.5)
    for step in range(2):
        opt.apply_gradients(pairs(own, step))
    others = variables()
    for var, other in zip(own, others, strict=True):
        other.assign(var)
    config = opt.get_config()
    again = RuleOptimizer.from_config(config, custom_objects={rule.name: rule})
    again.apply_gradients(pairs(others, 2))  # which makes its slots
    again.set_weights(opt.get_weights())
    for var, other in zip(own, others, strict=True):
        other.assign(var)
    for each, several in ((opt, own), (again, others)):
        each.apply_gradients(pairs(several, 3))
    assert_same(values(opt, own), values(again, others))


@by_rule
@pytest.mark.parametrize(
    ("value", "error", "said"),
    [
        (torch.ones(3), InvalidArgumentError, "'b:0' has shape (3,), and rule .* is for matrices"),
        (torch.ones(()), InvalidArgumentError, "'b:0' has shape (), and rule .* is for matrices"),
        (torch.ones(3, 2).half(), InvalidTypeError, "'b:0' is float16, and rule"),
    ],
    ids=str,
)
def test_what_has_no_rows_is_refused_by_name(
    rule: Rule, cls: Any, value: Tensor, error: Any, said: str
) -> None:
    own, opt = variables(), RuleOptimizer(rule, 0.1)
    opt.apply_gradients(pairs(own, 0))
    before = [each.clone() for each in values(opt, own)]
    other = Variable(value, name="b")
    with pytest.raises(error, match=said.replace("(", r"\(").replace(")", r"\)")):
        opt.apply_gradients([*pairs(own, 1), (torch.ones_like(value), other)])
    assert_same(values(opt, own), before)
