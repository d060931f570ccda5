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
    ("rule", "cls"), RULES, ids=lambda entry: getattr(entry, "name", "")
)


def variables(dtype: torch.dtype = torch.float32) -> list[Variable]:
    dice = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=dice).to(dtype) for shape in SHAPES]
    return [Variable(value, name=f"w{place}") for place, value in enumerate(tensors)]


def pairs(variables: list[Variable], step: int) -> list[Any]:
    dice = torch.Generator().manual_seed(1 + step)
    return [(torch.randn(var.shape, generator=dice).to(var.dtype), var) for var in variables]


def values(opt: Any, variables: list[Variable]) -> list[Tensor]:
    return [torch.as_tensor(var).detach().as_subclass(Tensor) for var in (*variables, *opt.weights)]


@pytest.mark.one_in(2)
@both_engines
@by_rule
def test_keras_row_rules_equal_torch_style_rules(rule: Rule, cls: Any, engine: str) -> None:
    weights, opt = variables(torch.float64), RuleOptimizer(rule, 0.1)
    opt.engine = engine
    params = [var.detach().clone().as_subclass(Tensor).requires_grad_() for var in weights]
    judge = cls(params, lr=0.1)
    for step in range(3):
        grads_and_vars = pairs(weights, step)
        opt.apply_gradients(grads_and_vars)
        for param, (grad, _) in zip(params, grads_and_vars, strict=True):
            param.grad = grad
        judge.step()
    for var, param in zip(weights, params, strict=True):
        torch.testing.assert_close(var.detach().as_subclass(Tensor), param.detach())
        for slot in rule.slots:
            slot_value = opt.get_slot(var, slot.name).detach().as_subclass(Tensor)
            torch.testing.assert_close(slot_value, judge.state[param][slot.name])


@pytest.mark.one_in(2)
@by_rule
def test_training_resumes_from_its_weights(rule: Rule, cls: Any) -> None:
    weights, opt = variables(), RuleOptimizer(rule, 0.1, clipnorm=0.5)
    for step in range(2):
        opt.apply_gradients(pairs(weights, step))
    twins = variables()
    for var, twin in zip(weights, twins, strict=True):
        twin.assign(var)
    config = opt.get_config()
    new_opt = RuleOptimizer.from_config(config, custom_objects={rule.name: rule})
    new_opt.apply_gradients(pairs(twins, 2))  # which makes its slots
    new_opt.set_weights(opt.get_weights())
    for var, twin in zip(weights, twins, strict=True):
        twin.assign(var)
    for optimizer, optimizer_variables in ((opt, weights), (new_opt, twins)):
        optimizer.apply_gradients(pairs(optimizer_variables, 3))
    assert_same(values(opt, weights), values(new_opt, twins))


@pytest.mark.one_in(3)
@by_rule
@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (torch.ones(3), InvalidArgumentError, "'b:0' has shape (3,), and rule .* is for matrices"),
        (torch.ones(()), InvalidArgumentError, "'b:0' has shape (), and rule .* is for matrices"),
        (torch.ones(3, 2).half(), InvalidTypeError, "'b:0' is float16, and rule"),
    ],
    ids=str,
)
def test_variable_without_rows_raises_with_its_name(
    rule: Rule, cls: Any, value: Tensor, error: Any, message: str
) -> None:
    weights, opt = variables(), RuleOptimizer(rule, 0.1)
    opt.apply_gradients(pairs(weights, 0))
    tensors_before = [tensor.clone() for tensor in values(opt, weights)]
    variable = Variable(value, name="b")
    with pytest.raises(error, match=message.replace("(", r"\(").replace(")", r"\)")):
        opt.apply_gradients([*pairs(weights, 1), (torch.ones_like(value), variable)])
    assert_same(values(opt, weights), tensors_before)
