"""Wrapped rules through Keras' `RuleOptimizer`: engines agree on every kind of gradient."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

import thalweg
from modern_inputs import gradients_of, params_of
from pairwise import cover_values
from rule_trainings import KINDS, ROWS, train_rule
from rulebook import DTYPES, assert_same, label
from thalweg import Rule, Variable, optim
from thalweg.errors import InvalidTypeError, RuleError
from thalweg.formula import Hyper, moved
from thalweg.keras.optimizers import RuleOptimizer
from thalweg.rules import ADAM, ADAM_W, LARS, MOMENTUM, NOVOGRAD, PROXIMAL_ADAGRAD, SGD, modern
from thalweg.rules.modern.adafactor_hf import adafactor_hf
from thalweg.rules.torch.adafactor import TORCH_ADAFACTOR
from thalweg.rules.weight_decay import with_decay
from thalweg.rules.wrappers import (
    cautious,
    cautious_decay,
    radial_brake,
    row_floor,
    sphere,
    trust_ratio,
)

MEASURING = (modern.LAMB, modern.STABLE_ADAMW, modern.PRODIGY, modern.MARS, LARS)
WRAPPED = [
    *(
        wrap(rule)
        for wrap in (cautious, trust_ratio, sphere, radial_brake)
        for rule in (ADAM, MOMENTUM, PROXIMAL_ADAGRAD)
    ),
    *(wrap(rule) for wrap in (cautious, radial_brake) for rule in MEASURING),
    *(trust_ratio(rule) for rule in (modern.LAMB, NOVOGRAD, cautious(SGD))),
    *(sphere(rule) for rule in (LARS, modern.STABLE_ADAMW, cautious(ADAM))),
    radial_brake(trust_ratio(cautious(ADAM_W))),
    radial_brake(modern.ADAMH),
    *(cautious_decay(rule) for rule in (ADAM_W, modern.ADAMW_DECOUPLED, modern.STABLE_ADAMW)),
    *(wrap(cautious_decay(ADAM_W)) for wrap in (cautious, trust_ratio)),
]
OF_ROWS = [
    *(row_floor(rule) for rule in (ADAM, MOMENTUM, modern.MUON, modern.SOAP, modern.SM3)),
    *(wrap(modern.ADAFACTOR_HF) for wrap in (cautious, radial_brake)),
    *(wrap(adafactor_hf(is_relative=False)) for wrap in (trust_ratio, sphere)),
    *(wrap(modern.SM3) for wrap in (cautious, trust_ratio, sphere, radial_brake)),
    *(wrap(TORCH_ADAFACTOR) for wrap in (cautious, trust_ratio, sphere, radial_brake, row_floor)),
    sphere(cautious(row_floor(modern.NORMUON))),
]


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    ("rule", "dtype", "kind"),
    [
        *cover_values(product(WRAPPED, DTYPES, KINDS), 1),
        *cover_values(product(OF_ROWS, (torch.float32, torch.float64, torch.bfloat16), KINDS), 1),
    ],
    ids=lambda value: getattr(value, "name", label(value)),
)
@pytest.mark.one_in(7)
def test_engines_agree_on_wrapped_rules(rule: Any, dtype: torch.dtype, kind: str) -> None:
    results: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            results.append(train_rule(rule, dtype, kind))
    assert_same(*results)
    assert all(tensor.isfinite().all() for tensor in results[0])


@pytest.mark.parametrize("rule", WRAPPED, ids=lambda rule: rule.name)
@pytest.mark.one_in(3)
def test_sparse_rows_equal_a_dense_gradient(rule: Any) -> None:
    def dense(step: int) -> list[torch.Tensor]:
        grads_made: list[torch.Tensor] = []
        for grad in gradients_of(step, torch.float32)[2:]:
            zeros = torch.zeros_like(grad)
            grads_made.append(zeros.index_add(0, torch.tensor(ROWS), grad[: len(ROWS)]))
        return grads_made

    variables = [Variable(tensor.detach().clone(), "w") for tensor in params_of(torch.float32)[2:]]
    opt = RuleOptimizer(rule, learning_rate=0.05)
    for step in range(4):
        opt.apply_gradients(zip(dense(step), variables, strict=True))
    assert_same(variables, train_rule(rule, torch.float32, "sparse")[: len(variables)])


@pytest.mark.parametrize("rule", [*WRAPPED, *OF_ROWS], ids=lambda rule: rule.name)
@pytest.mark.one_in(7)
def test_a_wrapped_rule_is_a_rule(rule: Rule) -> None:
    thalweg.check_rule(rule)
    copied = pickle.loads(pickle.dumps(rule))
    thalweg.check_rule(copied)
    assert repr((copied.name, copied.slots)) == repr((rule.name, rule.slots))  # some begin at NaN
    with thalweg.engine("reference"):
        assert_same(*(train_rule(each, torch.float32, "dense") for each in (rule, copied)))
    custom_objects = {rule.name: rule}
    config = RuleOptimizer(rule).get_config()
    assert RuleOptimizer.from_config(config, custom_objects=custom_objects).rule is rule


@pytest.mark.parametrize("rule", MEASURING, ids=lambda rule: rule.name)
def test_rows_are_measured_before_variables(rule: Rule) -> None:
    reason = "follows from sums over whole" if rule.per_optimizer is None else "finds by itself how"
    with pytest.raises(RuleError, match=f"Rule {rule.name!r} with floors of rows: it.* {reason}"):
        row_floor(rule)


@pytest.mark.parametrize("wrap", [trust_ratio, sphere], ids=lambda function: function.__name__)
def test_rules_that_choose_step_lengths_raise(wrap: Any) -> None:
    with pytest.raises(RuleError, match=r"Rule .Prodigy' .*: it finds by itself how long steps"):
        wrap(modern.PRODIGY)


@pytest.mark.parametrize(
    ("wrap", "rule"),
    [(wrap, ADAM) for wrap in (cautious, trust_ratio, sphere, radial_brake, row_floor)]
    + [(sphere, modern.LAMB), (radial_brake, LARS), (row_floor, modern.SM3)],
    ids=lambda function: getattr(function, "__name__", "") or function.name,
)
def test_wrapping_a_rule_twice_raises(wrap: Any, rule: Rule) -> None:
    with pytest.raises(RuleError, match=f"Rule '{rule.name} (with|on) .*' is .* already"):
        wrap(wrap(rule))
    with pytest.raises(RuleError, match="Rule 'AdamH' is on a sphere already"):
        sphere(modern.ADAMH)


@pytest.mark.parametrize("argument", [True, "0.5", [0.5], -0.1, 1.5, float("nan")], ids=str)
def test_invalid_shares_raise_with_their_name(argument: Any) -> None:
    radial_brake(ADAM, 1), row_floor(ADAM, 1)  # which hash as True does
    with pytest.raises((ValueError, TypeError), match="kept must be"):
        radial_brake(ADAM, argument)
    if argument != 1.5:
        with pytest.raises((ValueError, TypeError), match="least must be"):
            row_floor(ADAM, argument)


@pytest.mark.parametrize("argument", ["Adam", None, {}, optim.AdamW], ids=str)
@pytest.mark.parametrize(
    "wrap", [cautious, cautious_decay, trust_ratio, sphere, radial_brake, row_floor]
)
def test_wrapping_a_non_rule_raises(wrap: Any, argument: Any) -> None:
    reason = rf"{wrap.__name__} wraps a thalweg.Rule, not .*an option, {wrap.__name__}=True"
    for call in (lambda: wrap(argument), lambda: wrap(rule=argument)):
        with pytest.raises(InvalidTypeError, match=reason):
            call()
    assert wrap(ADAM_W) is wrap(ADAM_W)


def own(var: Any, grad: Any, *, rate: Any) -> Any:
    return (moved(var, -(rate * grad)),)


OWN_RULE = Rule(name="Own", update=own, hypers=(Hyper("rate", 0.5),))


@pytest.mark.parametrize("wrap", [trust_ratio, sphere], ids=lambda function: function.__name__)
def test_length_is_independent_of_the_rate(wrap: Any) -> None:
    with pytest.raises(RuleError, match=r"Rule .Own' .* needs a hyperparameter named 'learning_ra"):
        wrap(OWN_RULE)


def test_a_mask_needs_no_rate() -> None:
    var = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    var.grad = torch.tensor([1.0, 0.0, -2.0, torch.nan])
    thalweg.optim.RuleOptimizer([var], cautious(OWN_RULE)).step()
    # Two of four elements move, twice as far.
    torch.testing.assert_close(
        var.detach(), torch.tensor([0.0, 2.0, 5.0, torch.nan]), equal_nan=True
    )


def test_options_that_leave_the_sphere_raise() -> None:
    rule = with_decay(SGD)
    assert rule is not None
    with pytest.raises(
        RuleError, match=r"Rule .SGD with decay' on a sphere: its decay, which come"
    ):
        sphere(rule)


def test_cautious_decay_needs_a_decay() -> None:
    with pytest.raises(RuleError, match=r"Rule .Adam with cautious decay.: update .* has no decay"):
        RuleOptimizer(cautious_decay(ADAM))


def test_a_rule_is_wrapped_once() -> None:
    renamed = replace(SGD, name="other")
    assert cautious(SGD) is cautious(SGD)
    assert cautious(renamed).name == "other with cautious steps"
