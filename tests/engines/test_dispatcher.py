"""Checks, copies and plans of the dispatcher, function by function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rulebook import KEEP, Engines, Problem, assert_same, case, take
from thalweg import IndexedSlices
from thalweg._engines import dispatcher as gate
from thalweg._engines import layout
from thalweg._engines.composite import CompositeStep
from thalweg._engines.protocol import StepRequest
from thalweg._engines.reference_part import ReferencePart
from thalweg.errors import InvalidArgumentError, InvalidTypeError, LayoutError, PerformanceWarning

HALF, WIDE = torch.float16, torch.float32
BUFFER = torch.zeros(64)


def strided(shape: tuple[int, ...], strides: tuple[int, ...], first: int = 0) -> Tensor:
    return BUFFER.as_strided(shape, strides, first)


COPIES: dict[str, tuple[Tensor, Tensor, type[Exception], str]] = {
    "of a 16-bit variable": (
        torch.ones(2, dtype=HALF), torch.ones(2, dtype=HALF), InvalidTypeError,
        r"^w is float16 and can have no copy, expected: \[float32, float64\]\.$",
    ),
    "of a wide type": (
        torch.ones(2), torch.ones(2), InvalidTypeError,
        r"^Invalid type torch.float32 for the copy of w, expected: \[float16, bfloat16\]\.$",
    ),
    "of another shape": (
        torch.ones(2), torch.ones(3, dtype=HALF), InvalidArgumentError,
        r"^The copy of 'w' has shape \(3,\) on cpu but the variable has shape \(2,\) on cpu\.$",
    ),
    "without memory": (
        torch.ones(2), torch.ones(2, dtype=HALF, device="meta"), InvalidArgumentError,
        "^the copy of 'w' is on meta",
    ),
    "that overlaps": (
        torch.ones(2), torch.ones((), dtype=HALF).expand(2), LayoutError,
        "^cannot update 'the copy of w' in place",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COPIES)
def test_invalid_copy_raises(name: str) -> None:
    var, copy, error, words = COPIES[name]
    with pytest.raises(error, match=words):
        layout.check_copy(var, copy, "w")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_valid_copy_is_accepted(dtype: torch.dtype) -> None:
    layout.check_copy(torch.ones(2, 3), torch.ones(2, 3, dtype=dtype), "w")


def test_narrow_gradients_raise_unless_requested() -> None:
    var, narrow = torch.ones(2, 3), torch.ones(2, 3, dtype=HALF)
    slices = IndexedSlices(narrow, torch.tensor([0, 1]), (2, 3))
    for check, grad in (
        (layout.check_kind, narrow),
        (partial(layout.check_slices, scatter=True), slices),
    ):
        with pytest.raises(InvalidTypeError, match="'w' is float16 but the variable is float32"):
            check(grad, var, "w")
        check(grad, var, "w", narrow=True)
    with pytest.raises(InvalidTypeError, match="'w' is float16 but the variable is float32"):
        gate.check_gradients([var], [narrow], ["w"])
    gate.check_gradients([var], [narrow], ["w"], narrow=True)


# Shape, strides; whether they fill one run, whether two may meet, and how many bytes they reach.
LAYOUTS: list[tuple[tuple[int, ...], tuple[int, ...], bool, bool, int]] = [
    ((), (), True, False, 4),
    ((0, 3), (5, 7), True, False, 0),
    ((6,), (1,), True, False, 24),
    ((6,), (2,), False, False, 44),
    ((2, 3), (3, 1), True, False, 24),
    ((2, 3), (1, 2), True, False, 24),
    ((2, 3), (4, 1), False, False, 28),
    ((2, 1, 3), (3, 50, 1), True, False, 24),
    ((2, 3), (0, 1), False, True, 12),
    ((2, 3), (2, 1), False, True, 20),
    ((2, 3), (1, 1), False, True, 16),
    ((3, 2), (2, 3), False, False, 32),
    ((3, 3), (2, 3), False, False, 44),
    ((4, 3), (2, 3), False, True, 52),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "strides", "dense", "meets", "size"), LAYOUTS)
def test_strides_are_classified(
    shape: Any, strides: Any, dense: bool, meets: bool, size: int
) -> None:
    tensor = strided(shape, strides, 3)
    assert layout.is_dense(tensor) is dense
    assert layout.may_overlap(tensor) is meets
    start, end = layout.byte_span(tensor)
    assert end - start == size
    assert not size or start == BUFFER.data_ptr() + 12


def test_overlap_is_assumed_for_too_many_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = strided((3, 3), (2, 3))
    monkeypatch.setattr(layout, "_ENUMERABLE", 9)
    assert not layout.may_overlap(tensor)
    monkeypatch.setattr(layout, "_ENUMERABLE", 8)
    assert layout.may_overlap(tensor)
    with pytest.raises(LayoutError, match="'a' and 'b' in one step: they share memory"):
        layout.check_disjoint([tensor, strided((3, 3), (2, 3), 1)], ["a", "b"])


# Two tensors, and whether they share a byte.
PAIRS: dict[str, tuple[Callable[[], tuple[Tensor, Tensor]], bool]] = {
    "one after the other": (lambda: (BUFFER[:4], BUFFER[4:8]), False),
    "by one element": (lambda: (BUFFER[:5], BUFFER[4:8]), True),
    "within": (lambda: (BUFFER[:8], BUFFER[2:4]), True),
    "even and odd": (lambda: (BUFFER[0:8:2], BUFFER[1:8:2]), False),
    "even and one of them": (lambda: (BUFFER[0:8:2], BUFFER[4:5]), True),
    "even and a byte of them": (lambda: (BUFFER[0:8:2], BUFFER[3:5].view(HALF)[1:3]), True),
    "even, and bytes between": (lambda: (BUFFER[0:8:2], BUFFER[3:4].view(HALF)), False),
    "nothing": (lambda: (BUFFER[:4], BUFFER[2:2]), False),
    "elsewhere": (lambda: (BUFFER[:4], torch.empty(4, device="meta")), False),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("is_turned", [False, True])
def test_overlapping_tensors_are_detected(name: str, is_turned: bool) -> None:
    make, share = PAIRS[name]
    tensors = [*make(), torch.zeros(3)]
    if is_turned:
        tensors.reverse()
    names = ["a", "b", "c"]
    if not share:
        layout.check_disjoint(tensors, names)
        return
    first, second = ("b", "c") if is_turned else ("a", "b")
    with pytest.raises(LayoutError, match=f"^cannot update '{first}' and '{second}' in one step"):
        layout.check_disjoint(tensors, names)


def test_tensors_on_different_devices_do_not_overlap() -> None:
    assert not layout._share_bytes(BUFFER[:4], torch.empty(4, device="meta"))


def test_ended_memory_run_is_not_compared_again() -> None:
    long, between, following = BUFFER[:10], BUFFER[20:30], BUFFER[12:20]
    layout.check_disjoint([long, between, following], ["long", "inside", "after"])
    with pytest.raises(LayoutError, match="'long' and 'late'"):
        layout.check_disjoint([BUFFER[:30], BUFFER[2:2], BUFFER[28:40]], ["long", "none", "late"])


def test_written_runs_must_not_overlap_gradients() -> None:
    start = BUFFER.data_ptr()
    bounds = layout.merge_byte_spans([BUFFER[8:12], BUFFER[4:8], BUFFER[20:24], BUFFER[:0]])
    assert bounds.tolist() == [-1, 1, start + 16, start + 48, start + 80, start + 96]
    runs = {(0, 16): True, (0, 17): False, (47, 1): False, (48, 32): True, (48, 33): False,
            (20, 4): False, (0, 400): False, (96, 8): True, (95, 8): False}  # fmt: skip
    for (first, size), expected in runs.items():
        assert layout.lie_apart(start + first, size, bounds) is expected, (first, size)
    assert not layout.lie_apart(0, 4, bounds)


@pytest.mark.parametrize(
    ("first", "is_copied"), [(0, False), (4, False), (5, True), (8, True), (15, True), (16, False)]
)
def test_gradient_in_written_memory_is_copied(first: int, is_copied: bool) -> None:
    buffer = torch.arange(32.0)
    var, slot, grad = buffer[8:12], buffer[12:16], buffer[first : first + 4]
    (separate,) = gate._copy_overlapping([var], [grad], [[slot]], [None])
    assert (separate is not grad) is is_copied
    assert torch.equal(separate, grad)
    copy = buffer[8:16].view(HALF)[:4]
    assert (gate._copy_overlapping([torch.ones(4)], [grad], [[]], [copy])[0] is not grad) is (
        4 < first < 10
    )


def test_plans_of_freed_variables_are_dropped() -> None:
    engines = Engines()
    limit = 2 + gate._SPARE
    for number in range(limit + 3):
        problem = Problem.make(case("Adam").row, [(4, 3)], [WIDE], seed=number)
        rows = torch.tensor([1, 2])
        problem.gradients = [IndexedSlices(torch.ones(2, 3), rows, (4, 3))]
        take(case("Adam"), problem, KEEP, engines=engines)
        assert len(engines.gate._sparse) <= limit + 1, number
    assert len(engines.gate._sparse) <= 3


@pytest.mark.filterwarnings("always")
def test_a_slow_variable_warns_once() -> None:
    engines, row = Engines(), case("Adam").row
    problem = Problem.make(row, [(4, 3), (5,)], [WIDE, WIDE], seed=0)
    problem.variables[0] = torch.ones(4, 6)[:, ::2]
    with pytest.warns(PerformanceWarning, match=r"'w0' has strides \(6, 2\)") as warned:
        take(case("Adam"), problem, KEEP, engines=engines, steps=3)
    assert len(warned) == 1


def test_a_repeated_variable_has_one_engine() -> None:
    row, spread = case("SGD").row, torch.ones(4, 6)[:, ::2]
    problem = Problem.make(row, [(4, 3), (4, 3)], [WIDE, WIDE], seed=0)
    problem.variables = [spread, spread]
    problem.slots = [[], []]
    expected = spread.clone()
    with pytest.warns(PerformanceWarning):
        take(case("SGD"), problem, KEEP)
    rate = np.float32(case("SGD").scalars(np.float32)["learning_rate"])
    for grad in problem.gradients:
        expected -= grad * rate
    assert torch.equal(spread, expected)


@pytest.mark.parametrize("shape", [(4, 3), (3, 4)])
def test_a_gradient_in_other_strides_is_copied_without_its_graph(shape: Any) -> None:
    grad = torch.arange(12.0).reshape(shape).requires_grad_()
    var = torch.ones(shape).t().contiguous().t()
    copied_grad = layout.with_strides_of(grad, var)
    assert torch.equal(copied_grad, grad)
    assert copied_grad.stride() == var.stride()
    assert not copied_grad.requires_grad
    assert layout.with_strides_of(grad, torch.ones(shape)).data_ptr() == grad.data_ptr()


def ready(problem: Problem, selection: Any = KEEP, copies: Any = None) -> Any:
    names = [f"w{index}" for index in range(len(problem.variables))]
    rule, pairs = case("Adam").rule, (problem.variables, problem.gradients, problem.slots)
    return gate.Dispatcher().plan_step(StepRequest(rule, (), *pairs, names, selection, copies))


def adam(*shapes: tuple[int, ...]) -> Problem:
    return Problem.make(case("Adam").row, shapes, [WIDE] * len(shapes), seed=0)


def test_slot_and_copy_memory_is_checked_for_overlap() -> None:
    problem = adam((4,), (4,))
    problem.slots[0][0] = problem.variables[1].view(4)
    with pytest.raises(LayoutError, match="'a slot of w0' and 'w1' in one step"):
        ready(problem)
    problem = adam((4,), (4,))
    with pytest.raises(LayoutError, match="'the copy of w0' and 'w1' in one step"):
        ready(problem, copies=[problem.variables[1].view(HALF)[:4], None])
    with pytest.raises(InvalidArgumentError, match="The copy of 'w1' has shape"):
        ready(problem, copies=[None, torch.ones(5, dtype=HALF)])


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_indices_may_lie_in_written_memory(engine: Any) -> None:
    variables = []
    for is_copied in (False, True):
        memory = torch.zeros(8)
        var, indices = memory[:4].view(2, 2), memory[:4].view(torch.int64)[:2]
        indices[:] = torch.tensor([1, 0])
        grad = IndexedSlices(torch.ones(2, 2), indices.clone() if is_copied else indices, (2, 2))
        problem = Problem([var, var], [[]] * 2, [grad, grad])
        result_problem = take(case("SGD"), problem, KEEP._replace(name=engine))
        variables.append(result_problem.variables[0])
    assert_same([variables[0]], [variables[1]])


def test_a_repeated_variable_is_checked_once() -> None:
    problem, copy = adam((4,)), torch.ones(4, dtype=HALF)
    twice = Problem(problem.variables * 2, problem.slots * 2, problem.gradients * 2)
    assert not ready(twice, copies=[copy, copy]).is_single


def raw(problem: Problem, selection: Any = KEEP) -> list[bool]:
    """Return for each part of a plan whether the CPU engine runs it."""
    plan = ready(problem, selection)
    parts = [part for _, part in plan.parts] if isinstance(plan, CompositeStep) else [plan]
    return [not isinstance(part, ReferencePart) for part in parts]


def test_engine_is_chosen_per_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = adam((4, 3), (5, 3))
    assert raw(problem) == [True]
    assert raw(problem, KEEP._replace(name="reference")) == [False, False]
    problem.gradients[1] = IndexedSlices(torch.ones(2, 3), torch.tensor([1, 2]), (5, 3))
    assert raw(problem) == [True, True]
    monkeypatch.setattr(gate, "ENTRIES", 2)
    assert raw(problem) == [True, False]


def test_previous_two_plans_are_cached() -> None:
    engines = Engines()
    for number in range(2):
        problem = adam((4, 3))
        problem.gradients = [IndexedSlices(torch.ones(1, 3), torch.tensor([number]), (4, 3))]
        take(case("Adam"), problem, KEEP, engines=engines)
        assert len(engines.gate._sparse) == number + 1
