"""Functions that formulas may use, called as plain Python, and properties of rules."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from thalweg import Hyper, Rule, RuleError, Slot
from thalweg import formula as f
from thalweg.formula import gradient_squares, variable_squares

NAN, INF = math.nan, math.inf
# A function, what it is given, and what it gives.
CASES: list[tuple[Callable[..., Any], tuple[float, ...], float]] = [
    (f.sqrt, (2.25,), 1.5),
    (f.absolute, (-2.5,), 2.5),
    (f.absolute, (2.5,), 2.5),
    (f.sign, (-3.0,), -1.0),
    (f.sign, (0.25,), 1.0),
    (f.sign, (0.0,), 0.0),
    (f.sign, (-0.0,), -0.0),
    (f.sign, (NAN,), NAN),
    (f.maximum, (1.0, 2.0), 2.0),
    (f.maximum, (2.0, 1.0), 2.0),
    (f.maximum, (NAN, 1.0), NAN),
    (f.maximum, (1.0, NAN), NAN),
    (f.maximum, (0.0, -0.0), -0.0),  # of two that are equal the second
    (f.moved, (1.0, 2.0), 3.0),
    (f.minimum, (1.0, 2.0), 1.0),
    (f.minimum, (2.0, 1.0), 1.0),
    (f.minimum, (NAN, 1.0), NAN),
    (f.minimum, (1.0, NAN), NAN),
    (f.minimum, (-0.0, 0.0), 0.0),
    (f.exp, (0.0,), 1.0),
    (f.exp, (-INF,), 0.0),
    (f.log, (1.0,), 0.0),
    (f.log, (0.0,), -INF),
    (f.power, (4.0, 0.5), 2.0),
    (f.power, (2.0, 3.0), 8.0),
    (gradient_squares, (3.0, 5.0), 25.0),
    (variable_squares, (3.0, 5.0), 9.0),
]
KINDS: dict[str, Callable[[float], Any]] = {
    "float": float,
    "float32": np.float32,
    "float64": np.float64,
    "array": lambda number: np.full(3, number, np.float32),
    "tensor": lambda number: torch.full((3,), number),
}


def numbers(value: Any) -> list[float]:
    return np.ravel(value.numpy() if isinstance(value, torch.Tensor) else value).tolist()


@pytest.mark.parametrize("kind", KINDS)
@np.errstate(all="ignore")
def test_functions_of_formulas_take_numbers_of_every_kind(kind: str) -> None:
    for function, args, expected in CASES:
        values = tuple(map(KINDS[kind], args))
        output = function(*values)
        got = numbers(output)
        assert got == pytest.approx([expected] * len(got), abs=0, nan_ok=True), (function, args)
        signs = {math.copysign(1, number) for number in got if number == number}
        assert signs <= {math.copysign(1, expected)}, (function, args)
        if kind in ("float32", "float64") and function is not f.sign:  # which is a number of Python
            assert output.dtype == kind, (function, args)
        if kind in ("array", "tensor"):
            assert type(output) is type(values[0]), (function, args)
            assert output.dtype == values[0].dtype, (function, args)


def test_where_selects_by_numbers_arrays_and_tensors() -> None:
    assert f.where(True, 1, 2) == 1
    assert f.where(np.bool_(False), 1, 2) == 2
    assert f.where(np.array([True, False]), 1.0, 2.0).tolist() == [1.0, 2.0]
    tensor = torch.tensor([True, False])
    for first, second in [(1.0, 2.0), (torch.ones(2), 2.0), (1.0, torch.full((2,), 2.0))]:
        assert f.where(tensor, first, second).tolist() == [1.0, 2.0]
    assert isinstance(f.where(np.array([True]), torch.ones(1).numpy(), 0.0), np.ndarray)


def test_float32_scalars_are_rounded_once() -> None:
    x, y = np.float32(1.1), np.float32(2.7)
    for actual, expected in [
        (f.exp(x), math.exp(x)),
        (f.log(x), math.log(x)),
        (f.power(x, y), math.pow(x, y)),
    ]:
        assert actual == np.float32(expected)
        assert type(actual) is np.float32
    assert f.exp(1.5) == np.exp(1.5)
    assert f.log(1.5) == np.log(1.5)
    assert f.power(1.5, 2.5) == 1.5**2.5
    assert f.power(torch.tensor(1.5), 2.0).item() == 2.25


def test_wide_and_narrow_convert_precision() -> None:
    third = np.float32(1 / 3)
    assert type(f.wide(third)) is np.float64
    assert f.wide(torch.tensor([1 / 3])).dtype == torch.float64
    assert f.wide(np.full(2, third)).dtype == np.float64
    assert f.narrow(np.float64(1 / 3), third) == third
    assert type(f.narrow(np.float64(1 / 3), third)) is np.float32
    narrow_tensor = f.narrow(torch.tensor([1 / 3], dtype=torch.float64), torch.ones(1))
    assert narrow_tensor.dtype == torch.float32
    assert narrow_tensor.item() == third


# Rules


def update(var: Any, grad: Any, *slots: Any, learning_rate: Any) -> Any:
    return var - learning_rate * grad


def own(var: Any, grad: Any) -> Any:
    return var * grad


def rule(**keywords: Any) -> Rule:
    return Rule(**{"name": "Mine", "update": update, **keywords})


def reading(**measures: Any) -> dict[str, Any]:
    return {"measures": measures, "per_variable": lambda **kwargs: {}}


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({}, False),
        ({"whole": True}, True),
        (reading(a=gradient_squares, b=variable_squares), False),
        (reading(a=gradient_squares, b=own), True),
        ({**reading(a=gradient_squares), "whole": True}, True),
    ],
)
def test_user_sums_cover_all_elements(keywords: Any, expected: bool) -> None:
    assert rule(**keywords).is_whole is expected


def test_slots_are_of_elements_or_scalars() -> None:
    m, count, v = Slot("m"), Slot("count", 1.0, scalar=True), Slot("v", dtype=torch.float64)
    new_rule = rule(slots=[m, count, v], per_variable=lambda **kwargs: {})
    assert new_rule.slots == (m, count, v)
    assert new_rule.element_slots == (m, v)
    assert new_rule.scalar_slots == (count,)
    assert (m.initial, m.dtype, m.scalar) == (0.0, None, False)
    assert rule(hypers=iter([Hyper("a", 1.0)])).hypers == (Hyper("a", 1.0, ""),)
    assert rule().hypers == (Hyper("learning_rate", 0.001),)
    assert (rule().whole, rule().linear, rule().duplicates) == (False, False, "sum")


def test_a_rule_is_its_own_copy() -> None:
    new_rule = rule()
    assert copy.deepcopy(new_rule) is new_rule
    assert new_rule != rule()  # two rules are two, whatever they say


@pytest.mark.parametrize("dtype", f.STORED)
def test_slots_may_be_of_any_stored_type(dtype: torch.dtype) -> None:
    assert Slot("m", dtype=dtype).dtype == dtype


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Slot("m", dtype=torch.int64),
         r"dtype of Slot 'm' must be None or one of float32, float64, .* not torch.int64"),
        (lambda: Slot(3), "The name of a Slot must be a text, not 3"),  # pyright: ignore
        (lambda: Hyper(""  , 1.0), "The name of a Hyper must be a text, not ''"),
        (lambda: rule(name=3), "The name of a rule must be a text, not 3"),
        (lambda: rule(slots=b"m"), "must be a tuple of thalweg.Slot, not b'm'"),
        (lambda: rule(slots=[3]), "must be a tuple of thalweg.Slot; 3 is a int.$"),
        (lambda: rule(before=1), "before of rule 'Mine' must be a function, not 1"),
        (lambda: rule(update_single=1), "update_single of rule 'Mine' must be a function"),
        (lambda: rule(update_untouched=1), "update_untouched of rule 'Mine' must be a function"),
        (lambda: rule(per_variable=1), "per_variable of rule 'Mine' must be a function"),
        (lambda: rule(per_variable=dict), "a per_variable, which is not called without measures"),
        (lambda: rule(measures=[own]), "measures of rule 'Mine' must be a dict of functions"),
        (lambda: rule(measures={"a": 1}), "measures of rule 'Mine' must be a dict of functions"),
        (lambda: rule(measures={"a": own}), "but no per_variable that reads them"),
        (lambda: rule(slots=[Slot("n", scalar=True)]), "but no per_variable that reads them"),
        (lambda: Slot("n", per="all"), "'row', 'column' or 'optimizer', not 'all'"),  # pyright: ignore
        (lambda: rule(slots=[Slot("n", per="optimizer")], prepare=dict),
         "has slots per optimizer, but no per_optimizer that makes them"),
        (lambda: rule(per_optimizer=3), "per_optimizer of rule .* must be a function, not 3"),
        (lambda: rule(hypers=(Hyper("b", 1), Hyper("a", 1)), powers={"p": "c"}),
         "has the power 'p' of 'c', which is none of its hyperparameters: a, b."),
        (lambda: rule(slots=[Slot("m"), Slot("v"), Slot("v")]), "two slots named 'v'"),
    ],
)  # fmt: skip
def test_invalid_rules_raise(make: Any, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        make()


def test_powers_are_of_hyperparameters() -> None:
    assert rule(powers={"p": "learning_rate"}).powers == {"p": "learning_rate"}
