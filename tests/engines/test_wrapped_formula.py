"""Formulas around the steps of others: one formula, and what is measured of a step."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from rulebook import assert_same
from thalweg import Hyper, Rule, Slot, optim, sqrt, where
from thalweg._engines.codegen import Update
from thalweg._engines.cpu.codegen import generate_update
from thalweg._engines.formula_graph import in_order
from thalweg._engines.formula_parser import bind_formula, trace_formula
from thalweg.errors import RuleError
from thalweg.formula import StepMeasure, WrappedStepFormula, moved

F = np.float32
NUMPY = {"sqrt": np.sqrt, "where": np.where, "square": np.square}


def ahead(var: Any, grad: Any, m: Any, *, rate: Any) -> Any:
    m = m + grad
    return moved(var * 0.5, rate * m), m


def back(var: Any, grad: Any, m: Any, *, rate: Any) -> Any:
    m = m + grad
    return moved(var, -(rate * m / 3)), m


def named(var: Any, grad: Any, m: Any, *, rate: Any) -> Any:
    before = var
    grad = grad * 2
    var = var * 0.5
    var = moved(var, -(rate * grad))
    return var, m + (var - before)


def unnamed(var: Any, grad: Any, m: Any, *, rate: Any) -> Any:
    var = var - rate * grad
    return var * 0.5, m + var


def as_sum(var: Any, grad: Any, m: Any, *, rate: Any) -> Any:
    m = m + grad
    return var * 0.5 + rate * m, m


def as_difference(var: Any, grad: Any, m: Any, *, rate: Any) -> Any:
    m = m + grad
    return var - rate * m / 3, m


def doubled(var: Any, grad: Any, base: Any, step: Any, *, by: Any) -> Any:
    step = step * by
    kept = where(grad * step < 0, step, 0)
    return moved(base, kept)


def tenth(var: Any, grad: Any, base: Any, step: Any) -> Any:
    grad = var + grad
    made = moved(base, step * 0.125)
    return made


def product(var: Any, grad: Any, base: Any, step: Any) -> Any:
    return var * step + base * grad


def values() -> Any:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(1000).astype(F) for _ in range(3)]


def run(formula: Any, *args: Any, **scalars: Any) -> Any:
    arguments = {name: scalars[name] for name in trace_formula(formula).scalars}
    return bind_formula(formula, NUMPY, F)(*args, **arguments)


@pytest.mark.parametrize(("formula", "other"), [(ahead, as_sum), (back, as_difference)])
def test_moved_base_is_traced_as_sum_or_difference(formula: Any, other: Any) -> None:
    results = [graph.results for graph in map(trace_formula, (formula, other))]
    assert all(first is second for first, second in zip(*results, strict=True))
    kernels = [
        generate_update(Update(f, ("float32",) * 3), "float32").name for f in (formula, other)
    ]
    assert kernels[0] == kernels[1]
    args = values()
    assert_same(*([*map(torch.from_numpy, f(*args, rate=F(0.1)))] for f in (formula, other)))


@pytest.mark.parametrize("formula", [ahead, back, named, unnamed])
def test_wrapped_step_formula_is_applied(formula: Any) -> None:
    var, grad, m = args = values()
    got, slot = run(WrappedStepFormula(formula, doubled), *args, rate=F(0.25), by=F(2))
    _, plain_slot = run(formula, *args, rate=F(0.25))
    base, step = {
        ahead: (var * F(0.5), F(0.25) * (m + grad)),
        back: (var, -(F(0.25) * (m + grad) / F(3))),
        named: (var * F(0.5), -(F(0.25) * (grad * F(2)))),
        unnamed: (var, (var - F(0.25) * grad) * F(0.5) - var),
    }[formula]
    expected = base + np.where(grad * (step * F(2)) < 0, step * F(2), F(0))
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(slot, m + (expected - var) if formula is named else plain_slot)
    (product_sum,) = run(StepMeasure(formula, product), *args, rate=F(0.25))
    np.testing.assert_array_equal(product_sum, var * step + base * grad)


@pytest.mark.parametrize("formula", [ahead, back, named, unnamed])
def test_nested_wrappers_compose(formula: Any) -> None:
    args = values()
    inner = WrappedStepFormula(formula, doubled)
    numbers = {"rate": F(0.25), "by": F(2)}
    got, _ = run(WrappedStepFormula(WrappedStepFormula(inner, tenth), tenth), *args, **numbers)
    (step,) = run(StepMeasure(inner, the_step), *args, **numbers)
    (base,) = run(StepMeasure(inner, the_base), *args, **numbers)
    np.testing.assert_array_equal(got, base + step * F(0.125) * F(0.125))


def the_step(var: Any, grad: Any, base: Any, step: Any) -> Any:
    return step


def the_base(var: Any, grad: Any, base: Any, step: Any) -> Any:
    return base


def test_step_measure_reads_only_its_dependencies() -> None:
    def update(var: Any, grad: Any, m: Any, v: Any, *, rate: Any, beta: Any) -> Any:
        v = v * beta + grad * grad
        m = m + grad
        return moved(var, -(rate * m)), m, sqrt(v)

    graph = trace_formula(StepMeasure(update, the_step))
    assert graph.scalars == ("rate",)
    assert graph.streams == [1, 2]  # the gradient and m
    assert not any(node.op == "sqrt" for node in in_order(graph.results))


def _two(var: Any, grad: Any) -> Any:
    var = moved(var, grad)
    return (moved(var, grad),)


def _inside(var: Any, grad: Any) -> Any:
    return (moved(var, grad) * 2,)


def _slot(var: Any, grad: Any, m: Any) -> Any:
    return var, moved(m, grad)


def _of_helper(var: Any, grad: Any) -> Any:
    return moved(var, grad)


def _helped(var: Any, grad: Any) -> Any:
    return (_of_helper(var, grad),)


def _three(var: Any, grad: Any) -> Any:
    return (moved(var, grad, 1),)  # pyright: ignore


def _more_after_it(var: Any, grad: Any) -> Any:
    step = moved(var, grad)
    return (step * 2,)


def _another_of_its_name(var: Any, grad: Any) -> Any:
    var = moved(var, grad)
    var = var * 2
    return (var,)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        (_more_after_it, "`step` is assigned from `moved`, so it must be the first result"),
        (_another_of_its_name, "`var` is assigned from `moved`, so it must be"),
        (_two, r"test_wrapped_formula.py:\d+\): call `moved\(base, step\)` once"),
        (_inside, r"call `moved\(base, step\)` once, as the first result or"),
        (_slot, r"call `moved\(base, step\)` once, as the first result or"),
        (_helped, "_of_helper .*: `moved` is for the formula itself, not for its helpers"),
        (_three, r"`moved\(var, grad, 1\)` needs 2 arguments"),
    ],
)
def test_invalid_step_declaration_raises(update: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        trace_formula(update)


def _with_helper(var: Any, grad: Any, base: Any, step: Any) -> Any:
    return _of_step(base, step)


def _of_step(base: Any, step: Any) -> Any:
    return base + step


def _of_two(var: Any, grad: Any, base: Any, step: Any) -> Any:
    return base, step


def _of_others(var: Any, grad: Any, m: Any) -> Any:
    return var


def test_wrappers_may_call_helpers() -> None:
    args = values()
    got, _ = run(WrappedStepFormula(ahead, _with_helper), *args, rate=F(0.25))
    np.testing.assert_array_equal(got, run(ahead, *args, rate=F(0.25))[0])


@pytest.mark.parametrize("outer", [_of_two, _of_others])
def test_wrappers_need_matching_signatures(outer: Any) -> None:
    with pytest.raises(
        RuleError, match=f"{outer.__name__} .* lies around a step: it takes var, gr"
    ):
        trace_formula(WrappedStepFormula(ahead, outer))


@pytest.mark.parametrize("formula", [3, None, partial(tenth, step=1)], ids=["3", "None", "partial"])
def test_a_wrapper_must_be_a_function(formula: Any) -> None:
    for formulas in ((ahead, formula), (formula, tenth)):
        with pytest.raises(RuleError, match="A formula must be a function written with def, not"):
            WrappedStepFormula(*formulas)


def test_wrapper_of_decay_raises_for_formula_without_decay() -> None:
    trace_formula(WrappedStepFormula(ahead, tenth, decays=True))
    trace_formula(WrappedStepFormula(named, tenth, decays=True))
    for formula in (back, unnamed):
        with pytest.raises(RuleError, match=f"{formula.__name__} .* has no decay beside its step"):
            trace_formula(WrappedStepFormula(formula, tenth, decays=True))


def test_only_engines_run_wrapped_formulas() -> None:
    with pytest.raises(RuleError, match="ahead within tenth is run by engines alone"):
        WrappedStepFormula(ahead, tenth)(1.0, 2.0, 3.0)


def test_wrapped_rule_works_with_average_and_rows() -> None:
    rule = Rule(
        name="Wrapped",
        update=WrappedStepFormula(named, tenth),
        slots=(Slot("m"),),
        hypers=(Hyper("rate", 0.25),),
    )
    thalweg.check_rule(rule)
    results: list[Any] = []
    for engine in ("cpu", "reference"):
        with thalweg.engine(engine):
            param = torch.linspace(-1, 1, 12).reshape(6, 2).requires_grad_()
            optimizer = optim.RuleOptimizer([param], rule, ema_decay=0.5)
            for row in (0, 3):
                rows = torch.full((1, 2), 2.0)
                param.grad = torch.sparse_coo_tensor([[row]], rows, (6, 2), check_invariants=True)
                optimizer.step()
            results.append([param.detach(), *optimizer.state[param].values()])
    assert_same(*results)
