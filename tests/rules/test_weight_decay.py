"""Decoupled decay in the pass of a rule: the bits of a pass of its own before the rule's."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import rulebook
from case_batches import many
from pairwise import cover_values
from rulebook import (
    CASES,
    DTYPES,
    FIRST,
    FLUSH,
    KEEP,
    LENGTHS,
    Case,
    Problem,
    Row,
    assert_same,
    label,
    sparse,
    take,
    update_case,
)
from thalweg import IndexedSlices, Rule, RuleError, Slot, Variable, check_rule
from thalweg.openseq2seq.optimizers.novograd import NovoGrad
from thalweg.rules.weight_decay import WEIGHT_DECAY, with_decay
from thalweg.v1 import train
from thalweg.v1.contrib import opt as contrib

SHARE = 0.03
DECAY = Case(Row(WEIGHT_DECAY), "default", {"weight_decay": SHARE})
FUSED = [case for case in FIRST if with_decay(case.rule)]
WIDTHS = {"dense": None, "rows": (3,), "single": ()}


def fused(case: Case) -> Case:
    decayed_case = replace(case, row=replace(case.row, rule=with_decay(case.rule)))
    return decayed_case.with_hypers(decoupled_decay=SHARE)


def make(case: Case, dtype: Any, kind: str, special: float) -> Problem:
    """Dense gradients of many lengths, or a sparse one with rows that are named again."""
    width, rng = WIDTHS[kind], np.random.default_rng(1)
    if width is None:
        return Problem.make(case.row, LENGTHS, [dtype] * len(LENGTHS), 0, special)
    problem, indices = Problem.make(case.row, [(12, *width)], [dtype], 0, special), [7, 2, 7, 0, 7]
    rows = rulebook.values((len(indices), *width), dtype, rng, special)
    problem.gradients = [sparse(rows, indices, problem.variables[0])]
    return problem


def in_two_passes(case: Case, problem: Problem, selection: Any) -> Problem:
    """The decay, written to the variables, and then the rule."""
    bare = Problem(problem.variables, [[] for _ in problem.variables], problem.gradients)
    take(DECAY, bare, selection)
    return take(case, problem, selection)


@pytest.mark.parametrize(
    ("engine", "case", "dtype", "kind"),
    # Each rule meets each engine, dtype and kind of gradient.
    cover_values(itertools.product(("reference", "cpu"), FUSED, DTYPES, WIDTHS), 2),
    ids=label,
)
@pytest.mark.one_in(3)
def test_fused_weight_decay_equals_two_passes(
    engine: str, case: Case, dtype: Any, kind: str
) -> None:
    for selection, special in ((KEEP, 0.0), (FLUSH, 0.3)):
        got = make(case, dtype, kind, special)
        expected = got.copy()
        for _ in range(2):
            take(fused(case), got, selection._replace(name=engine))
            in_two_passes(case, expected, selection._replace(name="reference"))
        assert_same(got.written(), expected.written(), case.rule.name)


def test_rules_without_fused_decay_are_known() -> None:
    excluded = {case.rule.name for case in CASES if with_decay(case.rule) is None}
    assert excluded == {"LARS", "NesterovLARS", "NovoGrad"}


@pytest.mark.parametrize("engine", ["cpu", "reference"])
@pytest.mark.parametrize("duplicates", ["sum", "successive"])
def test_variable_unchanged_by_its_rule_decays(engine: str, duplicates: str) -> None:
    def update(var: Any, grad: Any) -> Any:
        return var

    case = fused(update_case(update, duplicates=duplicates)).with_hypers(decoupled_decay=0.5)
    w, v = torch.tensor([4.0, -2.0]), torch.ones(3, 1)
    grads = [torch.zeros(2), sparse(torch.zeros(3, 1), [2, 0, 2], v)]
    take(case, Problem([w, v], [[], []], grads), KEEP._replace(name=engine))
    assert (w.tolist(), v.tolist()) == ([2.0, -1.0], [[0.5], [1.0], [0.5]])


def test_before_formula_takes_only_the_variable() -> None:
    def update(var: Any, grad: Any, m: Any) -> Any:
        return var - grad, m

    def before(var: Any, m: Any) -> Any:
        return var - m

    rule = Rule(name="R", update=update, before=before, slots=(Slot("m"),), hypers=())
    with pytest.raises(
        RuleError, match="takes 2 values and returns 1; with 0 slots it must take 1"
    ):
        check_rule(rule)


# Optimizers

OPTIMIZERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "GradientDescent": (train.GradientDescentOptimizer, (0.1,)),
    "Momentum": (train.MomentumOptimizer, (0.1, 0.9)),
    "Adagrad": (train.AdagradOptimizer, (0.1,)),
    "AdagradDA": (train.AdagradDAOptimizer, (0.1, Variable(np.int64(1), trainable=False))),
    "Adadelta": (train.AdadeltaOptimizer, (0.1,)),
    "Adam": (train.AdamOptimizer, (0.1,)),
    "RMSProp": (train.RMSPropOptimizer, (0.1, 0.9, 0.5)),
    "Ftrl": (train.FtrlOptimizer, (0.1,)),
    "ProximalAdagrad": (train.ProximalAdagradOptimizer, (0.1,)),
    "LazyAdam": (contrib.LazyAdamOptimizer, (0.1,)),
    "Nadam": (contrib.NadamOptimizer, (0.1,)),
    "AdaMax": (contrib.AdaMaxOptimizer, (0.1,)),
    "LARS": (contrib.LARSOptimizer, (0.1,)),
    "NovoGrad": (NovoGrad, (0.1,)),
}


def trained(cls: Any, args: tuple[Any, ...], dtype: Any, has_list: bool) -> list[torch.Tensor]:
    """Variables and slots after steps with dense, sparse and missing gradients."""
    rng = np.random.default_rng(5)
    names = {"w": (5,), "table": (6, 2), "idle": (3,)}
    params = [
        Variable(torch.tensor(rng.normal(size=s)).to(dtype), name=n) for n, s in names.items()
    ]
    opt = cls(0.25, *args)
    opt.engine = "reference"
    for _ in range(3):
        rows = torch.tensor(rng.normal(size=(3, 2))).to(dtype)
        grads = [
            torch.tensor(rng.normal(size=5)).to(dtype),
            IndexedSlices(rows, torch.tensor([4, 1, 4])),
            None,
        ]
        pairs = list(zip(grads, params, strict=True))
        opt.apply_gradients(pairs, decay_var_list=params[1:] if has_list else None)
    slots = [opt.get_slot(var, name) for name in opt.get_slot_names() for var in params[:2]]
    return [*params, *slots]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "dtype", [DTYPES[0], pytest.param(DTYPES[1], marks=pytest.mark.slow)], ids=str
)
@many("has_list", [False, True])
def test_an_optimizer_whose_hook_is_called_takes_the_same_steps(
    name: str, dtype: Any, has_list: bool
) -> None:
    cls, args = OPTIMIZERS[name]
    extended = contrib.extend_with_decoupled_weight_decay(cls)

    class Hooked(extended):
        def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
            return super()._resource_apply_dense(grad, handle)

    got, expected = (trained(cls, args, dtype, has_list) for cls in (extended, Hooked))
    assert_same(got, expected, name)


def test_a_hook_sees_a_variable_that_has_decayed() -> None:
    seen_values: list[float] = []

    class Seeing(train.GradientDescentOptimizer):
        def _apply_dense(self, grad: Any, var: Any) -> Any:
            seen_values.append(var.item())

    w = Variable([1.0])
    contrib.extend_with_decoupled_weight_decay(Seeing)(0.5, 0.1).apply_gradients([([1.0], w)])
    assert (seen_values, w.item()) == ([0.5], 0.5)


@pytest.mark.parametrize("has_list", [False, True], ids=["all", "listed"])
def test_decayed_and_other_variables_share_one_cached_plan(has_list: bool) -> None:
    params = [Variable([8.0]), Variable([8.0])]
    opt = contrib.extend_with_decoupled_weight_decay(train.MomentumOptimizer)(0.5, 1.0, 0.5)
    plans = []
    for _ in range(2):
        pairs = [(torch.zeros(1), var) for var in params]
        opt.apply_gradients(pairs, decay_var_list=params[:1] if has_list else None)
        plan = opt._plans.now().last
        assert plan is not None
        plans.append(plan.ready)
    assert plans[0] is plans[1]
    assert [var.item() for var in params] == [2.0, 8.0 if has_list else 2.0]
