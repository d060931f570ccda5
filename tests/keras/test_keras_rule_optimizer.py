"""`RuleOptimizer`: a rule of one's own as an optimizer, its arguments, names and configuration."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from keras_table import both_engines, gradients, pair
from thalweg import Hyper, Rule, RuleError, Variable, sign
from thalweg.keras.optimizers import RuleOptimizer, schedules


def plain(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    return (var - learning_rate * grad,)


PLAIN_RULE = Rule(name="Plain", update=plain)


def test_rule_optimizers_take_lr() -> None:
    w = Variable([1.0], name="w")
    with pytest.warns(DeprecationWarning, match="lr"):
        opt = RuleOptimizer(PLAIN_RULE, lr=0.5)
    opt.apply_gradients([([1.0], w)])
    assert w.numpy().tolist() == [0.5]


@pytest.mark.parametrize("name", ["clip_divisor", "clipvalue", "iterations", "name", "decay", "t"])
def test_reserved_hyperparameter_names_raise(name: str) -> None:
    rule = Rule(name="Plain", update=plain, hypers=(Hyper("learning_rate", 0.1), Hyper(name, 1.0)))
    with pytest.raises(RuleError, match=name):
        RuleOptimizer(rule)


@pytest.mark.parametrize("name", ["clip_divisor", "clip_scale", "clipvalue", "clipnorm", "t"])
def test_reserved_power_names_raise(name: str) -> None:
    rule = Rule(name="Plain", update=plain, powers={name: "learning_rate"})
    with pytest.raises(RuleError, match=f"has hyperparameters or powers named {name}, which"):
        RuleOptimizer(rule)


def test_power_named_as_a_hyperparameter_raises() -> None:
    rule = Rule(name="Plain", update=plain, powers={"learning_rate": "learning_rate"})
    with pytest.raises(RuleError, match="a hyperparameter and a power named learning_rate"):
        RuleOptimizer(rule)


def prepared_rule(**scalars: Any) -> Rule:
    return Rule(name="Plain", update=plain, prepare=lambda *, learning_rate: scalars)


@pytest.mark.parametrize("name", ["clip_divisor", "clip_scale", "clipvalue", "clipnorm"])
@pytest.mark.parametrize("options", [{}, {"clipnorm": 1.0}], ids=["plain", "clipped"])
def test_reserved_names_of_prepared_scalars_raise(name: str, options: dict[str, float]) -> None:
    w, opt = Variable([1.0], name="w"), RuleOptimizer(prepared_rule(**{name: 2.0}), **options)
    with pytest.raises(RuleError, match=f"makes scalars named {name}, which every step") as raised:
        opt.apply_gradients([([1.0], w)])
    assert "The step was not taken" in raised.value.__notes__[0]
    assert w.numpy().tolist() == [1]


@pytest.mark.parametrize("value", ["x", None, [1.0], torch.ones(2), 1j], ids=str)
def test_prepare_without_number_raises(value: Any) -> None:
    with pytest.raises(
        RuleError, match=r"takes the scalar learning_rate, which is .*, not a number"
    ):
        RuleOptimizer(prepared_rule(learning_rate=value))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2, -1.0),
        (2.0, -1.0),
        (torch.tensor(2.0), -1.0),
        (1e300, -torch.inf),
        (torch.nan, torch.nan),
    ],
)
def test_prepare_may_return_any_number_type(value: Any, expected: float) -> None:
    w, opt = Variable([1.0], name="w"), RuleOptimizer(prepared_rule(learning_rate=value))
    opt.apply_gradients([([1.0], w)])
    torch.testing.assert_close(w.item(), expected, equal_nan=True, rtol=0, atol=0)


def test_rule_optimizer_config_round_trips() -> None:
    rule = Rule(name="Mine", update=plain, hypers=(Hyper("learning_rate", 0.1),))
    opt = RuleOptimizer(rule, learning_rate=0.25, clipnorm=2.0, decay=0.5)
    config = opt.get_config()
    new_opt = RuleOptimizer.from_config(config, custom_objects={"Mine": rule})
    assert new_opt.get_config() == config
    assert new_opt.rule is rule


def test_unknown_rule_in_config_raises() -> None:
    config = RuleOptimizer(PLAIN_RULE).get_config()
    with pytest.raises(ValueError, match="Unknown rule: Plain"):
        RuleOptimizer.from_config(config)


SCALE = 0.5


def lion(var, grad, m, *, learning_rate, beta1, beta2):
    """A user's own formula."""
    step = sign(m * beta1 + grad * (1 - beta1))
    return var - learning_rate * step * SCALE, m * beta2 + grad * (1 - beta2)


LION = thalweg.Rule(
    name="Lion",
    update=lion,
    hypers=(
        thalweg.Hyper("learning_rate", 0.25),
        thalweg.Hyper("beta1", 0.9),
        thalweg.Hyper("beta2", 0.99),
    ),
    slots=(thalweg.Slot("m"),),
)


@pytest.mark.parametrize("engine", ["reference", "cpu", "auto"])
def test_users_rule_on_every_engine(engine: str) -> None:
    opt, variables = RuleOptimizer(LION), pair()
    opt.engine = engine
    start = [var.numpy() for var in variables]
    pairs = gradients(variables)
    opt.apply_gradients(pairs)
    for (grad, var), initial in zip(pairs, start, strict=True):
        expected = initial - np.float32(0.125) * np.sign(grad.numpy())
        assert np.array_equal(var.numpy(), expected)


def by_module(var, grad, *, learning_rate):
    return (var - learning_rate * thalweg.sign(grad),)


def test_uncompilable_formula_raises_in_the_constructor() -> None:
    rule = thalweg.Rule(name="SignSGD", update=by_module)
    with pytest.raises(thalweg.RuleError, match=r"'SignSGD': by_module .*thalweg\.sign"):
        RuleOptimizer(rule, 0.5)


@both_engines
def test_users_rule_takes_sparse_gradients(engine: str) -> None:
    opt, table = RuleOptimizer(LION), thalweg.Variable(np.ones((3, 1), "f4"))
    opt.engine = engine
    opt.apply_gradients([(thalweg.IndexedSlices(torch.ones(2, 1), torch.tensor([1, 1])), table)])
    assert table.numpy().ravel().tolist() == [1.0, 0.875, 1.0]


def test_rule_optimizer_validates_arguments() -> None:
    opt = RuleOptimizer(LION, 0.5, name="Mine", beta1=0.5, clipvalue=1.0)
    assert (opt.learning_rate.item(), opt.beta1.item(), opt.clipvalue) == (0.5, 0.5, 1.0)
    assert opt.beta2.item() == pytest.approx(0.99)
    assert opt.iterations.name == "Mine/iter:0"


def test_rule_optimizer_rejects_unknown_keywords() -> None:
    with pytest.raises(TypeError, match="foo"):
        RuleOptimizer(LION, foo=1)
    with pytest.raises(TypeError, match=r"rule must be a thalweg\.Rule"):
        RuleOptimizer("Lion")


def test_unknown_keyword_error_lists_rule_hyperparameters() -> None:
    rule = Rule(
        name="Mine", update=plain, hypers=(Hyper("learning_rate", 0.1), Hyper("beta1", 0.9))
    )
    message = "beta_1.*Rule 'Mine' has learning_rate, beta1. Did you mean 'beta1'"
    with pytest.raises(TypeError, match=message):
        RuleOptimizer(rule, beta_1=0.9)


def test_rules_hypers_may_be_schedules_and_callables() -> None:
    opt = RuleOptimizer(LION, schedules.ExponentialDecay(1.0, 1, 0.5), beta1=lambda: 0.0)
    w = thalweg.Variable([0.0])
    opt.apply_gradients([([1.0], w)]), opt.apply_gradients([([1.0], w)])
    assert w.item() == -0.75
