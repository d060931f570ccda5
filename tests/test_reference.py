"""The reference engine's arithmetic: with torch, off the CPU, it is what it is with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rulebook import KEEP, Case, Problem, by_rule, take
from thalweg import IndexedSlices
from thalweg.engines import reference, saturated
from thalweg.engines.layout import compute_dtype
from thalweg.formula import FORMULAS, Formula

SHAPES = ((), (0, 3), (5,), (37, 11))
KINDS = (torch.float32, torch.float64)


def exactly(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """A function of NumPy's, for tensors; torch's own may be an ulp off."""
    return lambda *given: torch.tensor(function(*(each.numpy() for each in given)))


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sqrt", "exp", "log", "power"):
        monkeypatch.setitem(reference.TORCH, name, exactly(reference.NUMPY[name]))
    monkeypatch.setattr(reference, "torch_formula", reference.torch_formula.__wrapped__)


def formulas(case: Case, problem: Problem) -> list[tuple[str, Formula, list[torch.Tensor]]]:
    """A rule's formulas, and what each is given."""
    ((var,), (grad,), (slots,)) = problem.variables, problem.gradients, problem.slots
    given = {"before": [var], "update_untouched": [var, *slots]}
    named = [(name, getattr(case.rule, name)) for name in FORMULAS]
    return [(name, made, given.get(name, [var, grad, *slots])) for name, made in named if made]


@by_rule()
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.usefixtures("exact")
@np.errstate(all="ignore")
def test_torch_computes_the_bits_of_numpy(case: Case, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        problem = Problem.make(case.row, [shape], [dtype], seed=len(shape), special=0.1)
        scalars = case.scalars(compute_dtype(dtype))
        for name, formula, given in formulas(case, problem):
            wanted = reference.evaluate(formula, given, scalars)
            found = reference.torch_evaluate(formula, given, scalars)
            for one, other in zip(found, wanted, strict=True):
                assert (one.shape, one.dtype) == (shape, dtype), (name, shape)
                np.testing.assert_array_equal(one.numpy(), other, str((name, shape)))


@by_rule()
def test_formulas_run_off_the_cpu(case: Case) -> None:
    for shape in SHAPES:
        problem = Problem.make(case.row, [shape], [torch.float32], seed=0)
        for name, formula, given in formulas(case, problem):
            moved = [tensor.to("meta") for tensor in given]
            for made in reference.torch_evaluate(formula, moved, case.scalars(np.float32)):
                assert (made.device.type, made.dtype) == ("meta", torch.float32), name
                assert made.shape == shape, name


@by_rule()
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_copy_is_the_variable_in_its_own_type(case: Case, sparse: bool) -> None:
    problem = Problem.make(case.row, [(5, 3)], [torch.float32], seed=0)
    if sparse:
        rows = torch.tensor([3, 1, 3])
        problem.gradients = [IndexedSlices(torch.ones(3, 3), rows, (5, 3))]
        if case.rule.is_whole:
            return
    problem.variables[0][3] = 1e30
    copy = problem.variables[0].to(torch.float16)
    made = take(case, problem, KEEP._replace(name="reference"), copies=[copy])
    np.testing.assert_array_equal(copy, saturated(made.variables[0], torch.float16))
