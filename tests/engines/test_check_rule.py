"""`check_rule`: what could not take a step is refused before the first, by name and place."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from rulebook import KEEP, Problem, assert_same, reference, take, update_case
from thalweg import Hyper, Rule, RuleError, Slot, check_rule, sqrt, where
from thalweg._engines.formula_parser import check_counts
from thalweg.formula import ChainedFormula, WrappedStepFormula
from thalweg.rules import RULES

RATE = Hyper("learning_rate", 0.1)
PI = math.pi


def rule(update: Any, slots: str = "m", **keywords: Any) -> Rule:
    options = {"hypers": (RATE,), "slots": tuple(map(Slot, slots)), **keywords}
    return Rule(name="Mine", update=update, **options)


def refusal(checked_rule: Rule) -> str:
    with pytest.raises(RuleError) as caught:
        check_rule(checked_rule)
    return str(caught.value)


def fine(var, grad, m, *, learning_rate):
    return var - learning_rate * grad, m


def rooted(var, grad, m, *, learning_rate):
    return var - learning_rate * math.sqrt(grad), m


def by_position(var, grad, m, learning_rate):
    return var - learning_rate * grad, m


def behind(var, grad, *, m, learning_rate):
    return var - learning_rate * grad, m


def forgetful(var, grad, m, *, learning_rate):
    return var - learning_rate * grad


def greedy(var, grad, m, *, learning_rate, beta):
    return var - learning_rate * beta * grad, m


def untouched(var, m, *, learning_rate):
    return var, m


def turned(var, grad, v, m, *, learning_rate):
    return var - learning_rate * grad, v, m


def turned_first(grad, var, m, v, *, learning_rate):
    return var - learning_rate * grad, m, v


def turned_results(var, grad, m, v, *, learning_rate):
    m = m + grad
    v = v + grad * grad
    return var - learning_rate * m, v, m


def turned_variable(var, grad, m, v, *, learning_rate):
    m = m + grad
    return m, var, v


def turned_round(var, grad, a, b, c, *, learning_rate):
    return var - learning_rate * grad, b, c, a


def turned_measure(var, grad, v, m):
    return m * m


def halved(var):
    return var * 0.5


def stepped(var, grad, base, step):
    return base + step


def remembering(var, grad, m, v, *, learning_rate):
    new_m = m + grad
    return var - learning_rate * new_m, new_m, m


def renamed(var, gradient, mean, square, *, learning_rate):
    return var - learning_rate * gradient, mean, square


NEEDY = ("Nadam", "LARS", "NesterovLARS", "NovoGrad")


# What passes


@pytest.mark.parametrize("library_rule", RULES, ids=lambda rule: rule.name)
def test_library_rules_pass(library_rule: Rule) -> None:
    # What these optimizers keep or measure besides hyperparameters.
    values = {"momentum_cache": 1.0, "trust_ratio": 1.0, "grad_scale": 1.0, "share": 1.0}
    check_rule(library_rule, values if library_rule.name in NEEDY else None)


@pytest.mark.parametrize("update", [remembering, renamed])
def test_local_names_and_old_values_pass(update: Any) -> None:
    check_rule(rule(update, "mv"))


def test_prepare_gets_the_scalars_of_the_first_step() -> None:
    arguments: dict[str, Any] = {}

    def prepare(*, learning_rate, beta, beta_power, t):
        arguments.update(learning_rate=learning_rate, beta=beta, beta_power=beta_power, t=t)
        return {"beta": beta * 2}

    hypers = (RATE, Hyper("beta", 0.5))
    new_rule = rule(greedy, hypers=hypers, powers={"beta_power": "beta"}, prepare=prepare)
    check_rule(new_rule, {"learning_rate": lambda: 3.0, "beta": 0.25})
    assert arguments == {"learning_rate": np.float32(0.1), "beta": 0.25, "beta_power": 0.25, "t": 1}
    assert all(type(value) is np.float32 for value in arguments.values())


# What does not


def test_errors_name_rule_file_and_line() -> None:
    line = rooted.__code__.co_firstlineno + 1
    expected = f"Rule 'Mine': rooted ({__file__}:{line}): a formula cannot call `math.sqrt(grad)`"
    assert refusal(rule(rooted)).startswith(expected)


@pytest.mark.parametrize("part", ["update_sparse", "update_single"])
def test_every_formula_is_checked(part: str) -> None:
    assert "math.sqrt" in refusal(replace(rule(fine), **{part: rooted}))


@pytest.mark.parametrize(
    ("checked_rule", "message"),
    [
        (
            rule(by_position),
            r"takes learning_rate by position; scalars come after \*:"
            r" `def by_position\(var, grad, m, \*, learning_rate\)`",
        ),
        (
            rule(behind),
            r"takes m after the \*; slots come before it:"
            r" `def behind\(var, grad, m, \*, learning_rate\)`",
        ),
        (
            rule(forgetful),
            r"takes 3 values and returns 1; with 1 slot it must take 3 \(var, grad, \*slots\) and"
            r" return 2 \(var, \*slots\)",
        ),
        (rule(fine, ""), r"takes 3 values and returns 2; with 0 slots it must take 2"),
        (
            rule(fine, update_untouched=fine),
            r"takes 3 values and returns 2; with 1 slot it must take 2 \(var, \*slots\)",
        ),
        (
            rule(greedy),
            r"asks for beta, which is neither a hyperparameter nor a power of one\. There are"
            r" learning_rate, t\.",
        ),
        (
            rule(fine, update_untouched=untouched, hypers=()),
            "asks for learning_rate, which is neither",
        ),
        (
            rule(turned, "mv"),
            r"turned.* takes var, grad, v, m: v is where m comes\..*: var, grad, m, v\.",
        ),
        (rule(turned_first, "mv"), r"takes grad, var, m, v: grad is where var comes"),
        (
            rule(turned_results, "mv"),
            r"returns \.\.\., v, m, in another order than the rule's slots: var, m, v\.",
        ),
        (rule(turned_variable, "mv"), r"returns m, var, v, in another order"),
        (rule(turned_round, "abc"), r"returns \.\.\., b, c, a, in another order"),
        (
            rule(ChainedFormula(turned_results, halved), "mv"),
            r"turned_results .* returns \.\.\., v, m, in another order",
        ),
        (
            rule(WrappedStepFormula(turned_round, stepped), "abc"),
            r"turned_round .* returns \.\.\., b, c, a, in another order",
        ),
        (
            rule(renamed, "mv", update_sparse=turned),
            r"takes var, grad, v, m: v is where m comes",
        ),
        (
            rule(renamed, "mv", measures={"sum": turned_measure}, per_variable=lambda sum: {}),
            r"turned_measure.* takes var, grad, v, m: v is where m comes",
        ),
    ],
)
def test_signatures_and_results_are_checked(checked_rule: Rule, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        check_rule(checked_rule)


def scaled(var, grad, m, *, scale):
    return var - scale * grad, m


def names_nothing(*, learning_rate):
    return [learning_rate]


def names_text(*, learning_rate):
    return {"scale": "large"}


def names_other(*, learning_rate):
    return {"scaled": learning_rate}


def fails(*, learning_rate):
    raise KeyError("rate")


def asks(*, beta):
    return {"scale": beta}


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (names_nothing, r"must return a dict of scalars by name, not \["),
        (names_text, "takes the scalar scale, which is 'large', not a number"),
        (names_other, r"asks for scale, .*, and not made by prepare\. There are .*scaled"),
        (fails, "fails at the first step: KeyError: 'rate'"),
        (asks, "asks for beta, which is neither"),
    ],
)
def test_results_of_prepare_are_checked(prepare: Any, message: str) -> None:
    text = refusal(rule(scaled, prepare=prepare))
    with pytest.raises(RuleError, match=message):
        raise RuleError(text)
    assert __file__ in text
    assert "Mine" in text


def squares(var, grad, m):
    return grad * grad


def before_it_is_made(var, grad, m, *, scale):
    return grad * grad * scale


def slot_by_name(var, grad, *, m):
    return grad * m


def scales(*, squares):
    return {"scale": squares}


def branches(*, squares):
    return {"scale": squares if squares > 0 else 1.0}


@pytest.mark.parametrize(
    ("measure", "per_variable", "message"),
    [
        (before_it_is_made, scales, "before_it_is_made .* asks for scale, .* There are learning"),
        (slot_by_name, scales, r"takes m after the \*; slots come before it"),
        (squares, branches, r"first step, where it is given arrays .*: ValueError: The truth"),
    ],
)
def test_measures_are_checked(measure: Any, per_variable: Any, message: str) -> None:
    new_rule = rule(scaled, measures={"squares": measure}, per_variable=per_variable)
    with pytest.raises(RuleError, match=message):
        check_rule(new_rule)


def counted(*, squares, count):
    return {"scale": squares, "count": count + 1}


def by_count(var, grad, m, *, scale, count):
    return var - scale * grad / count, m


def test_scalar_slot_is_not_an_update_scalar() -> None:
    slots = (Slot("m"), Slot("count", scalar=True))
    new_rule = rule(scaled, measures={"squares": squares}, per_variable=counted)
    check_rule(replace(new_rule, slots=slots))
    with pytest.raises(RuleError, match=r"by_count .* asks for count, which is neither"):
        check_rule(replace(new_rule, slots=slots, update=by_count))


def test_interrupted_prepare_is_not_a_rule_error() -> None:
    def prepare(*, learning_rate):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_rule(rule(fine, prepare=prepare))


def test_counts_of_one_are_singular() -> None:
    with pytest.raises(RuleError, match="with 1 slot it must take 3"):
        check_counts(forgetful, True, 1)


# Advice


def an_if(var, grad, m, *, learning_rate):
    if grad > 0:
        m = grad
    return var, m


def a_choice(var, grad, m, *, learning_rate):
    return var, grad if grad > 0 else m


def an_and(var, grad, m, *, learning_rate):
    return var, where(grad > 0 and m > 0, grad, m)


def a_loop(var, grad, m, *, learning_rate):
    for _ in range(2):
        m = m * m
    return var, m


def a_type(var, grad, m, *, learning_rate):
    new: float = m * m
    return var, new


def a_deletion(var, grad, m, *, learning_rate):
    del m
    return var, grad


def a_list(var, grad, m, *, learning_rate):
    return [var, m]


def by_numpy(var, grad, m, *, learning_rate):
    return var, np.sqrt(m)


def by_torch(var, grad, m, *, learning_rate):
    return var, torch.abs(m)


def by_method(var, grad, m, *, learning_rate):
    return var, m.exp()


def by_builtin(var, grad, m, *, learning_rate):
    return var, max(m, 0)


def by_module(var, grad, m, *, learning_rate):
    return var, thalweg.sign(m)


def a_constant(var, grad, m, *, learning_rate):
    return var, m * math.pi


def by_keyword(var, grad, m, *, learning_rate):
    return var, sqrt(x=m)


ADVICE = {
    an_if: "cannot contain `if grad > 0:`; choose with where(condition, a, b).",
    a_choice: "; write `where(grad > 0, grad, m)`.",
    an_and: "; combine comparisons with `&` and choose with where(condition, a, b).",
    a_loop: "cannot contain `for _ in range(2):`; write its steps one below the other.",
    a_type: "; assign without a type.",
    a_deletion: "cannot contain `del m`.",
    a_list: "; return several results as `return var, slot`.",
    by_numpy: "cannot call `np.sqrt(m)`; write `sqrt(...)`, from thalweg import sqrt.",
    by_torch: "; write `absolute(...)`, from thalweg import absolute.",
    by_method: "; write `exp(...)`, from thalweg import exp.",
    by_builtin: "; write `maximum(...)`, from thalweg import maximum.",
    by_module: "; write `sign(...)`, from thalweg import sign.",
    a_constant: "; give the number a name outside the formula, `pi = math.pi`.",
    by_keyword: "; give the arguments by position.",
}
BRANCHES = (an_if, a_choice, an_and)


def by_rows(var, grad, m, *, learning_rate):
    return var, m * grad.mean(axis=1)


def a_norm(var, grad, m, *, learning_rate):
    return var, m * torch.linalg.norm(grad)


def a_sum(var, grad, m, *, learning_rate):
    return var, m * sum(grad)


def a_largest(var, grad, m, *, learning_rate):
    return var, m * grad.max()


def without_nan(var, grad, m, *, learning_rate):
    return var, m * np.nanmean(grad)


SUM_ADVICE = (
    "; a formula is for one element: sums over a whole variable are `measures` of the rule"
    " (docs/formulas.md#reductions-and-per-variable-scalars), those of rows and columns are made by"
    " a `Measure` (docs/matrix-rules.md#row-and-column-reductions)."
)
ADVICE |= dict.fromkeys((by_rows, a_norm, a_sum, a_largest, without_nan), SUM_ADVICE)


@pytest.mark.parametrize(("formula", "advice"), ADVICE.items(), ids=[f.__name__ for f in ADVICE])
def test_an_error_suggests_a_replacement(formula: Any, advice: str) -> None:
    text = refusal(rule(formula))
    assert text.endswith(advice)
    assert ("where(" in text) is (formula in BRANCHES)


# What Python is allowed


def bounded(x, width):
    x += 0
    return where(x > width, width, x)


def rich(var: Any, grad: Any, m: Any, *, learning_rate: float) -> Any:
    m **= 2
    m += abs(grad) * PI
    in_range = (m < 1e3) & (grad != 0)
    step = where(in_range, bounded(-m, 0.5), 1)
    return var + learning_rate * step, m


def test_allowed_formulas_run_on_both_engines() -> None:
    rich_case = update_case(rich, 1, hypers=(RATE,))
    check_rule(rich_case.rule)
    problem = Problem.make(rich_case.row, [300], [torch.float32], 6, 0.2)
    expected = reference(rich_case, problem, KEEP)
    assert_same(take(rich_case, problem, KEEP).written(), expected.written())


# What a rule is made of


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"hypers": RATE}, r"must be a tuple of thalweg\.Hyper, not one alone: a comma is missing"),
        ({"hypers": "learning_rate"}, r"must be a tuple of thalweg\.Hyper, not 'learning_rate'"),
        ({"hypers": {"learning_rate": 0.1}}, r"must be a tuple of thalweg\.Hyper, not \{"),
        ({"hypers": ("beta",)}, r"'beta' is a str\. Write Hyper\('beta', \.\.\.\)\."),
        ({"hypers": (Slot("m"),)}, "is a Slot"),
        ({"slots": Slot("m")}, r"must be a tuple of thalweg\.Slot, not one alone"),
        ({"slots": "m"}, r"must be a tuple of thalweg\.Slot, not 'm'"),
        ({"slots": ("m", "v")}, r"'m' is a str\. Write Slot\('m', \.\.\.\)\."),
        ({"slots": None}, r"must be a tuple of thalweg\.Slot, not None"),
        ({"update": None}, "update of rule 'Mine' must be a function, not None"),
        ({"prepare": {}}, r"prepare of rule 'Mine' must be a function, not \{\}"),
        ({"update_sparse": "lazy"}, "update_sparse of rule 'Mine' must be a function"),
        ({"powers": ("beta1",)}, "powers of rule 'Mine' must be a dict"),
        ({"name": ""}, "The name of a rule must be a text, not ''"),
    ],
)
def test_fields_of_wrong_type_raise(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        Rule(**{"name": "Mine", "update": fine, **keywords})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hyper("beta", "0.9"), "default of Hyper 'beta' must be a number, not '0.9'"),  # pyright: ignore
        (lambda: Slot("m", None), "initial of Slot 'm' must be a number, not None"),  # pyright: ignore
        (lambda: Hyper(0.9, 0.9), r"name of a Hyper must be a text, not 0\.9"),  # pyright: ignore
        (lambda: Slot(""), "name of a Slot must be a text, not ''"),
    ],
)
def test_slots_and_hyperparameters_of_wrong_type_raise(make: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        make()


def test_numpy_numbers_are_accepted() -> None:
    assert Hyper("beta", np.float32(0.5)).default == 0.5  # pyright: ignore
    assert Slot("m", np.int64(1)).initial == 1  # pyright: ignore


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"powers": {"p": "nope"}}, "'nope', which is none of its hyperparameters"),
        ({"slots": (Slot("m"), Slot("m"))}, "two slots named 'm'"),
        ({"hypers": (Hyper("a", 1.0), Hyper("a", 2.0))}, "two hyperparameters named 'a'"),
        ({"duplicates": "last"}, "must be 'sum' or 'successive'"),
    ],
)
def test_rules_are_checked_when_made(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        Rule(name="Wrong", update=fine, **keywords)
