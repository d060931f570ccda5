"""The reference engine's arithmetic: with torch, off the CPU, it is what it is with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from bit_comparison import assert_same
from rulebook import KEEP, Case, Problem, by_rule, case, take
from thalweg import IndexedSlices
from thalweg._engines import Tensors, reference, saturated, torch_functions
from thalweg._engines.layout import compute_dtype
from thalweg._engines.numpy_functions import NUMPY
from thalweg._engines.protocol import NO_COLUMNS, PEAKS, Columns, Reduction, StepRequest
from thalweg._engines.reference_part import ReferencePart
from thalweg._engines.row_updates import group_occurrences
from thalweg._engines.torch_functions import TORCH, torch_evaluate
from thalweg.formula import FORMULAS, Formula, gradient_squares, variable_squares
from thalweg.rules.clipping import clip_by_norm, clip_by_value

SHAPES = ((), (0, 3), (5,), (37, 11))
KINDS = (torch.float32, torch.float64)


def exactly(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """A function of NumPy's, for tensors; torch's own may be an ulp off."""
    return lambda *args: torch.tensor(function(*(array.numpy() for array in args)))


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sqrt", "exp", "log", "power"):
        monkeypatch.setitem(TORCH, name, exactly(NUMPY[name]))
    monkeypatch.setattr(torch_functions, "torch_formula", torch_functions.torch_formula.__wrapped__)


def formulas(case: Case, problem: Problem) -> list[tuple[str, Formula, list[torch.Tensor]]]:
    ((var,), (grad,), (slots,)) = problem.variables, problem.gradients, problem.slots
    args = {"before": [var], "update_untouched": [var, *slots]}
    named = [(name, getattr(case.rule, name)) for name in FORMULAS]
    return [
        (name, function, args.get(name, [var, grad, *slots]))
        for name, function in named
        if function
    ]


@pytest.mark.one_in(3)
@by_rule()
@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.usefixtures("exact")
@np.errstate(all="ignore")
def test_torch_computes_the_bits_of_numpy(case: Case, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        problem = Problem.make(case.row, [shape], [dtype], seed=len(shape), special=0.1)
        scalars = case.scalars(compute_dtype(dtype))
        for name, formula, tensors in formulas(case, problem):
            numpy_results = reference.evaluate(formula, tensors, scalars)
            torch_results = torch_evaluate(formula, tensors, scalars)
            for actual, expected in zip(torch_results, numpy_results, strict=True):
                assert (actual.shape, actual.dtype) == (shape, dtype), (name, shape)
                np.testing.assert_array_equal(actual.numpy(), expected, str((name, shape)))


@pytest.mark.one_in(3)
@by_rule()
def test_formulas_run_off_the_cpu(case: Case) -> None:
    for shape in SHAPES:
        problem = Problem.make(case.row, [shape], [torch.float32], seed=0)
        for name, formula, tensors in formulas(case, problem):
            on_meta = [tensor.to("meta") for tensor in tensors]
            for tensor in torch_evaluate(formula, on_meta, case.scalars(np.float32)):
                assert (tensor.device.type, tensor.dtype) == ("meta", torch.float32), name
                assert tensor.shape == shape, name


@pytest.mark.one_in(3)
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
    result_problem = take(case, problem, KEEP._replace(name="reference"), copies=[copy])
    np.testing.assert_array_equal(copy, saturated(result_problem.variables[0], torch.float16))


NAN = np.nan
# A function, what it is given, and what it gives.
CHOICES: list[tuple[str, tuple[float, ...], float]] = [
    ("sign", (2.0,), 1.0), ("sign", (-2.0,), -1.0), ("sign", (0.0,), 0.0), ("sign", (-0.0,), -0.0),
    ("sign", (NAN,), NAN), ("maximum", (1.0, 2.0), 2.0), ("maximum", (2.0, 1.0), 2.0),
    ("maximum", (0.0, -0.0), -0.0), ("maximum", (NAN, 1.0), NAN), ("maximum", (1.0, NAN), NAN),
    ("minimum", (1.0, 2.0), 1.0), ("minimum", (2.0, 1.0), 1.0), ("minimum", (-0.0, 0.0), 0.0),
    ("minimum", (NAN, 1.0), NAN), ("minimum", (1.0, NAN), NAN), ("square", (-3.0,), 9.0),
    ("absolute", (-2.0,), 2.0), ("exp", (0.0,), 1.0), ("log", (1.0,), 0.0),
    ("power", (2.0, 3.0), 8.0),
]  # fmt: skip


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@np.errstate(all="ignore")
def test_formula_functions_accept_arrays_and_tensors(dtype: torch.dtype) -> None:
    for name, numbers, expected in CHOICES:
        tensors = [torch.tensor([value], dtype=dtype) for value in numbers]
        arrays = [tensor.numpy() for tensor in tensors]
        for actual in (
            NUMPY[name](*arrays),
            TORCH[name](*tensors).numpy(),
        ):
            assert actual.dtype == arrays[0].dtype, (name, numbers)
            np.testing.assert_array_equal(actual, [expected], str((name, numbers)))
            assert np.signbit(actual[0]) == np.signbit(expected) or expected != expected, (
                name,
                numbers,
            )


STAGES = (clip_by_value, clip_by_norm)


def one_step(
    name: str = "Adam", dtype: torch.dtype = torch.float32, slot: torch.dtype = torch.float32
) -> StepRequest:
    problem = Problem.make(case(name).row, [(5, 3)], [dtype], seed=0)
    slots = [[tensor.to(slot) for tensor in slots] for slots in problem.slots]
    parts = (problem.variables, problem.gradients, slots)
    return StepRequest(case(name).rule, STAGES, *parts, ["w"], KEEP)


def test_partial_step_is_not_replayed() -> None:
    request = one_step()
    part = ReferencePart(request)
    assert not part.try_rebind(request, np.empty(0, np.int64))
    part.release_gradients()
    with pytest.raises(RuntimeError, match="not aimed at a gradient"):
        part.reduce(PEAKS, NO_COLUMNS)


def test_reductions_reject_kinds_that_they_do_not_compute() -> None:
    with pytest.raises(ValueError, match="kind 'mean' is unknown; expected: sums"):
        Reduction("mean")  # pyright: ignore[reportArgumentType]
    tensors = Tensors([torch.ones(2)], [torch.ones(2)])
    with pytest.raises(NotImplementedError, match="no leaves"):
        tensors.reduce(Reduction("leaves", (gradient_squares,)), NO_COLUMNS)


def test_repeated_rows_are_grouped_by_occurrence() -> None:
    places = torch.tensor([3, 1, 3, 3, 1, 2])
    groups = group_occurrences(places, 4)
    assert [group.tolist() for group in groups] == [[0, 1, 5], [2, 4], [3]]
    assert list(group_occurrences(places[:0], 0)) == []


def test_partial_step_computes_sums() -> None:
    request = one_step()._replace(stages=())
    (var,), (grad,) = request.variables, request.gradients
    columns = Columns({np.float32: case("Adam").scalars(np.float32)}, {})
    part = ReferencePart(request)
    sums = part.reduce(Reduction("sums", (gradient_squares, variable_squares)), columns)
    expected = [[tensor.double().square().sum().item() for tensor in (grad, var)]]
    np.testing.assert_allclose(sums, expected, rtol=1e-12)
    assert part.reduce(PEAKS, columns).tolist() == [grad.abs().max().item()]
    empty = request._replace(gradients=[grad[:0]], variables=[var[:0]])
    assert ReferencePart(empty).reduce(PEAKS, columns).tolist() == [0.0]


def slot_product(var: Any, grad: Any, m: Any, v: Any) -> Any:
    return m * v


def test_a_measure_reads_slots() -> None:
    request = one_step()._replace(stages=())
    columns = Columns({np.float32: case("Adam").scalars(np.float32)}, {})
    reduction = Reduction("sums", (slot_product,))
    ((measured,),) = ReferencePart(request).reduce(reduction, columns)
    m, v = (slot.double() for slot in request.slots[0])
    assert measured == pytest.approx((m * v).sum().item(), rel=1e-12)


TORCH_FUNCTIONS = KEEP._replace(name="torch")


@pytest.mark.one_in(3)
@by_rule()
@pytest.mark.usefixtures("exact")
@np.errstate(all="ignore")
def test_torch_steps_equal_reference_steps(case: Case) -> None:
    """Dense gradients in batches, and sparse ones with repeated rows."""
    shapes, dtypes = [(4, 3), (7,), (4, 3)], [torch.float32, torch.float32, torch.bfloat16]
    problem = Problem.make(case.row, shapes, dtypes, seed=0, special=0.1)
    expected = take(case, problem.copy(), KEEP._replace(name="reference"), steps=2)
    actual = take(case, problem.copy(), TORCH_FUNCTIONS, steps=2)
    assert_same(actual.written(), expected.written())
    if case.rule.is_whole:
        return
    problem = Problem.make(case.row, [(5, 3)], [torch.float32], seed=1)
    rows = torch.tensor([3, 1, 3, 0, 3])
    problem.gradients = [IndexedSlices(torch.randn(5, 3), rows, (5, 3))]
    expected = take(case, problem.copy(), KEEP._replace(name="reference"), steps=2)
    actual = take(case, problem.copy(), TORCH_FUNCTIONS, steps=2)
    assert_same(actual.written(), expected.written())
