"""The reference engine's arithmetic: with torch, off the CPU, it is what it is with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rulebook import Case, Problem, by_rule
from thalweg.engines import reference
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
