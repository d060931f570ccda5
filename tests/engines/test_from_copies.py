"""Steps that begin at 16-bit copies have the same bits in every engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rulebook
from rulebook import FIRST, FLUSH, KEEP, KINDS, Case, Problem, assert_same, label, slow_unless
from test_dtypes import CASES
from thalweg._engines.protocol import Columns, Reduction, StepRequest, as_array
from thalweg.formula import gradient_squares, variable_squares

HALVES = (torch.float16, torch.bfloat16)
PATTERNS = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
ROWS = [5, 0, 5, 11, 0]
FORMS: dict[str, Any] = {"dense": None, "rows": ROWS}
BY_KIND = pytest.mark.parametrize("kind", HALVES, ids=label)
BY_ENGINE = pytest.mark.parametrize("engine", ["cpu", "reference"])


def rounded(values: Tensor, kind: torch.dtype) -> Tensor:
    """Round values to a copy's dtype, by NumPy or by bit operations."""
    largest = torch.finfo(kind).max
    single = values.detach().float().numpy()
    clipped = np.where(single > largest, largest, np.where(single < -largest, -largest, single))
    if kind == torch.float16:
        with np.errstate(all="ignore"):
            return torch.from_numpy(clipped.astype(np.float16))
    bits = clipped.astype(np.float32).view(np.uint32)
    upper_bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    encoded = np.where(np.isnan(clipped), 0x7FC0, upper_bits).astype(np.uint16)
    return torch.from_numpy(encoded.view(np.int16)).view(torch.bfloat16)


def beginning(var: Tensor, copy: Tensor) -> Tensor:
    """Return the variable, or the copy where that is not the variable, rounded.

    In the middle of two bfloat16 the variable is rounded to either.
    """
    matches = rounded(var, copy.dtype).view(torch.int16) == copy.view(torch.int16)
    if copy.dtype == torch.bfloat16:
        bits = var.detach().float().view(torch.int32)
        is_tie, upper = (bits & 0xFFFF) == 0x8000, (bits >> 16).short()
        copy_bits = copy.view(torch.int16)
        matches |= is_tie & copy.isfinite() & ((copy_bits == upper) | (copy_bits == upper + 1))
    return torch.where(matches, var.detach(), copy.to(var.dtype))


def masters_of(copy: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """For a third of the elements what rounds to the copy, for others nearly, or anything else."""
    generator = torch.Generator().manual_seed(seed)
    exact, shape = copy.to(dtype), copy.shape
    tiny = torch.finfo(copy.dtype).eps * torch.rand(shape, generator=generator).to(dtype) / 2
    near_copy = exact * (1 + tiny - torch.finfo(copy.dtype).eps / 4)
    unrelated = torch.randn(shape, generator=generator).to(dtype) * 1e3
    choice = torch.randint(0, 4, shape, generator=generator)
    large = torch.finfo(torch.float32).max * torch.sign(exact).nan_to_num()
    return torch.where(choice == 0, near_copy, torch.where(choice == 1, exact, unrelated)).where(
        (choice != 2) | (exact.abs() < torch.finfo(copy.dtype).max / 2), large
    )


def problem_of(case: Case, copy: Tensor, dtype: torch.dtype, rows: Any, seed: int = 0) -> Problem:
    var, rng = masters_of(copy, dtype, seed), np.random.default_rng(seed)
    slots = [rulebook.slots_for(case.row, var, rng)]
    if rows is None:
        return Problem([var], slots, [rulebook.values(tuple(var.shape), dtype, rng)])
    values = rulebook.values((len(rows), *var.shape[1:]), dtype, rng)
    return Problem([var], slots, [rulebook.sparse(values, rows, var)])


def assert_begun(
    case: Case, problem: Problem, copy: Tensor, selection: Any, rows: Any = None
) -> None:
    """Two steps from copies are those that begin at what was written there."""
    (start,) = problem.variables
    expected = problem.copy()
    start_values, all_rows = beginning(start, copy), rows is None or case.rule.update_untouched
    named_rows: Any = slice(None) if all_rows else sorted(set(rows))
    expected.variables[0][named_rows] = start_values[named_rows]
    rulebook.take(case, expected, selection._replace(name="reference"))
    actual, actual_copy = problem.copy(), copy.clone()
    rulebook.take(case, actual, selection, copies=[actual_copy], from_copies=True)
    expected_copy = copy.clone()
    expected_copy[named_rows] = rounded(expected.variables[0], copy.dtype)[named_rows]
    untouched = case.rule.update_untouched
    if rows is not None and untouched is not None and leaves_alone(case, untouched):
        unnamed = sorted(set(range(len(start))) - set(rows))  # master and copy stay as they are
        expected.variables[0][unnamed] = start[unnamed]
        expected_copy[unnamed] = copy[unnamed]
    assert_same([*actual.written(), actual_copy], [*expected.written(), expected_copy])


def leaves_alone(case: Case, formula: Any) -> bool:
    from thalweg._engines.formula_parser import trace_formula

    return trace_formula(formula).passes_through(0, 0)


def adam() -> Case:
    return next(case for case in FIRST if case.rule.name == "Adam")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("selection", [KEEP, FLUSH], ids=["keep", "flush"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=label)
@BY_KIND
@BY_ENGINE
def test_all_16_bit_patterns_equal_the_reference(
    engine: Any, kind: torch.dtype, dtype: torch.dtype, selection: Any, count: int, threads: Any
) -> None:
    threads(count)
    copy = PATTERNS.view(kind).repeat(2)
    problem = problem_of(adam(), copy, dtype, None)
    assert_begun(adam(), problem, copy, selection._replace(name=engine))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=label)
@BY_ENGINE
def test_all_bfloat16_ties_equal_the_reference(engine: Any, dtype: torch.dtype) -> None:
    equal_ties(dtype, engine)


def equal_ties(dtype: torch.dtype, engine: Any, stride: int = 1) -> None:
    """Begin steps at masters in the middle of two bfloat16, beside these and beside others.

    Args:
        dtype: That of masters.
        engine: The name of the engine.
        stride: Which of the bfloat16: each so many.
    """
    upper = PATTERNS[torch.isfinite(PATTERNS.view(torch.bfloat16))][::stride]
    tie = ((upper.int() << 16) | 0x8000).view(torch.float32)
    places = torch.tensor([-1, 0, 1, 2], dtype=torch.int16)
    copy = (upper[:, None] + places).reshape(-1).view(torch.bfloat16)
    master = tie.repeat_interleave(len(places)).to(dtype)
    problem = problem_of(adam(), copy, dtype, None)
    problem.variables[0].copy_(master)
    assert_begun(adam(), problem, copy, KEEP._replace(name=engine))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, 3])
@BY_KIND
@BY_ENGINE
def test_all_16_bit_patterns_in_rows_equal_the_reference(
    engine: Any, kind: torch.dtype, count: int, threads: Any
) -> None:
    threads(count)
    copy, rows = PATTERNS.view(kind).reshape(-1, 16), torch.randperm(1 << 12).tolist()
    for case in (adam(), lazy()):
        repeated_rows = [*rows[: 3 << 10], *rows[:40]]
        problem = problem_of(case, copy, torch.float32, repeated_rows)
        assert_begun(case, problem, copy, KEEP._replace(name=engine), repeated_rows)


def lazy() -> Case:
    return next(case for case in FIRST if case.rule.name == "LazyAdam")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "case",
    [slow_unless(c in CASES or c.rule.name in KINDS, c) for c in [*CASES, *FIRST]],
    ids=label,
)
@BY_ENGINE
def test_every_rule_steps_from_copies(engine: Any, case: Case, form: str) -> None:
    equal_steps(case, form, engine)


def equal_steps(case: Case, form: str, engine: Any) -> None:
    rows = FORMS[form]
    if rows is not None and case.rule.is_whole:
        return
    for seed, kind in enumerate(HALVES):
        rng = np.random.default_rng(seed)
        copy = rulebook.values((13, 5), kind, rng, 0.2)
        for selection in (KEEP, FLUSH):
            problem = problem_of(case, copy, torch.float32, rows, seed)
            assert_begun(case, problem, copy, selection._replace(name=engine), rows)


@pytest.mark.parametrize("form", FORMS)
@BY_KIND
@BY_ENGINE
def test_measures_begin_at_copies(engine: Any, kind: torch.dtype, form: str) -> None:
    equal_measures(kind, form, engine)


def equal_measures(kind: torch.dtype, form: str, engine: Any) -> None:
    """An engine measures what a step begins at."""
    case, rng = CASES[0], np.random.default_rng(0)
    copy = rulebook.values((13, 5), kind, rng)
    problem = problem_of(case, copy, torch.float32, FORMS[form])
    started = problem.copy()
    started.variables[0][:] = beginning(problem.variables[0], copy)
    formulas: Any = (gradient_squares, variable_squares)
    formulas += (of_all,) if form == "dense" else ()
    results: list[list[Tensor]] = []
    for begun, copies, name in ((problem, [copy], engine), (started, None, "reference")):
        request = StepRequest(
            case.rule, (), begun.variables, begun.gradients, begun.slots, ["w"],
            KEEP._replace(name=name), copies, True,
        )  # fmt: skip
        ready = rulebook.Engines().plan_step(request)
        shared = {dtype: case.scalars(dtype) for dtype in ready.dtypes}
        sums = ready.reduce(Reduction("sums", formulas), Columns(shared, {}))
        results.append([torch.from_numpy(as_array(sums))])
    assert not torch.equal(problem.variables[0], started.variables[0])
    assert_same(*results)


def of_all(var: Any, grad: Any, a: Any, b: Any) -> Any:
    return var * grad + a * b


@pytest.mark.parametrize("form", FORMS)
@BY_ENGINE
def test_plan_is_not_shared_between_steps_with_and_without_copies(engine: Any, form: str) -> None:
    case, selection = adam(), KEEP._replace(name=engine)
    copy = torch.ones(13, 5, dtype=torch.bfloat16)
    problem = problem_of(case, copy, torch.float32, FORMS[form])
    expected, other_copy = problem.copy(), copy.clone()
    engines, fresh = rulebook.Engines(), rulebook.Engines
    for number, from_copies in enumerate((True, False, True, True, False)):
        copy[0, 0] = other_copy[0, 0] = 2.0 + number
        options: dict[str, Any] = {"from_copies": from_copies}
        rulebook.take(case, problem, selection, engines=engines, copies=[copy], **options)
        rulebook.take(case, expected, selection, engines=fresh(), copies=[other_copy], **options)
        assert_same([*problem.written(), copy], [*expected.written(), other_copy])
        assert (abs(float(problem.variables[0][0, 0]) - 2 - number) < 1) == from_copies
