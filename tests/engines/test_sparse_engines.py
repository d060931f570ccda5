"""Sparse gradients: duplicates, rows without indices, order, against two slow oracles."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import rulebook
from case_batches import many
from rulebook import (
    FIRST,
    FLUSH,
    KEEP,
    KINDS,
    Problem,
    assert_same,
    by_rule,
    label,
    reference,
    slow_unless,
    sparse,
    take,
)
from shared_examples import check_examples
from thalweg._engines.cpu import sparse as sparse_engine

INDICES = st.integers(1, 20).flatmap(
    lambda rows: st.tuples(st.just(rows), st.lists(st.integers(0, rows - 1), max_size=50))
)
INTEGERS = [torch.int32, torch.int64]
EXAMPLES = {
    is_wide: st.tuples(
        INDICES,
        st.sampled_from([torch.float32, torch.bfloat16] if is_wide else [torch.float32]),
        st.sampled_from(INTEGERS),
        st.integers(0, 99),
        st.booleans(),
    )
    for is_wide in (False, True)
}


def make(
    case, rows, indices, width=(3,), dtype=torch.float32, seed=0, special=0.0, kind=INTEGERS[1]
):
    """A problem of one variable of `rows` rows, with a gradient for each index."""
    problem = Problem.make(case.row, [(rows, *width)], [dtype], seed, special)
    shape = (len(indices), *width)
    values = rulebook.values(shape, dtype, np.random.default_rng(seed + 1), special)
    problem.gradients = [sparse(values, indices, problem.variables[0], kind)]
    return problem


@pytest.mark.parametrize(
    "budget", [6, pytest.param(20, marks=pytest.mark.slow)], ids=["replay", "long"]
)
@by_rule(FIRST)
@many("width", [(), (1,), (3,), (2, 4)])
@pytest.mark.one_in(3)
def test_sparse_equals_reference(case, width, budget):
    is_wide = width == (3,) and (budget > 6 or case.rule.name in KINDS)

    def check(rows_and_indices, dtype, kind, seed, flush):
        rows, indices = rows_and_indices
        problem = make(case, rows, indices, width, dtype, seed, 0.1 * (seed % 3), kind)
        selection = FLUSH if flush else KEEP
        expected = reference(case, problem, selection, steps=2)
        got = take(case, problem, selection, steps=2)
        assert_same(got.written(), expected.written(), f"{case.rule.name} {indices}")

    check_examples(check, budget, EXAMPLES[is_wide])


def plain_loop(case, problem):
    """One row after the other, by the rule called as the plain Python it is."""
    rule, (var,), (slots,) = case.rule, problem.variables, problem.slots
    grad, single = problem.gradients[0], var.shape[1:].numel() == 1 and problem.variables[0].dim()
    sums = {}
    for row, value in zip(grad.indices.tolist(), grad.values.numpy(), strict=True):
        sums[row] = sums[row] + value if row in sums else value
    scalars = case.scalars(np.float32, 1)
    formula = (single and rule.update_single) or rule.update_sparse or rule.update
    arrays = [tensor.numpy() for tensor in (var, *slots)]
    for row in range(len(var)):
        kind, extra = (formula, [sums[row]]) if row in sums else (rule.update_untouched, [])
        if kind is None:
            continue
        names = kind.__code__.co_varnames[kind.__code__.co_argcount :]
        picked = {name: scalars[name] for name in names if name in scalars}
        results = kind(arrays[0][row], *extra, *[array[row] for array in arrays[1:]], **picked)
        for array, result in zip(arrays, results, strict=True):
            array[row] = result
    return problem


@by_rule(
    [case for case in FIRST if case.rule.duplicates == "sum" and case.rule.name != "FtrlPower"]
)
@pytest.mark.parametrize("width", [(5,), ()], ids=["rows", "single"])
def test_sparse_equals_a_plain_loop(case, width):
    indices = [7, 2, 7, 0, 9, 7, 2]
    problem = make(case, 12, indices, width)
    with np.errstate(all="ignore"):
        expected = plain_loop(case, problem.copy())
    assert_same(take(case, problem).written(), expected.written())


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_duplicates_are_added_in_order_of_appearance(name):
    momentum = next(case for case in FIRST if case.rule.name == "Momentum")
    values = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    var, slot = torch.zeros(3, 1), torch.zeros(3, 1)
    problem = Problem([var], [[slot]], [sparse(values, [1, 1, 1, 1], var)])
    take(momentum.with_hypers(learning_rate=1.0), problem, KEEP._replace(name=name))
    total = ((np.float32(1e8) + np.float32(1)) - np.float32(1e8)) + np.float32(1)
    assert var.tolist() == [[0.0], [-float(total)], [0.0]]


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_infinities_that_cancel_are_nan_without_a_warning(name):
    momentum = next(case for case in FIRST if case.rule.name == "Momentum")
    values = torch.tensor([[np.inf], [-np.inf]])
    var, slot = torch.zeros(3, 1), torch.zeros(3, 1)
    problem = Problem([var], [[slot]], [sparse(values, [1, 1], var)])
    take(momentum, problem, KEEP._replace(name=name))
    assert var.isnan().flatten().tolist() == [False, True, False]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("case", "copy_dtype"),
    [
        slow_unless(dtype == torch.float16 and case.rule.name in KINDS, case, dtype)
        for case in FIRST
        for dtype in (torch.float16, torch.bfloat16)
        if not case.rule.is_whole
    ],
    ids=label,
)
def test_copies_are_written_in_updated_rows(case, copy_dtype):
    problem = make(case, 7, [5, 0, 5], (4,))
    results = []
    for name in ("cpu", "reference"):
        copied, copy = problem.copy(), torch.full((7, 4), 3.0, dtype=copy_dtype)
        take(case, copied, KEEP._replace(name=name), copies=[copy])
        rows_written = torch.arange(7) if case.rule.update_untouched else [0, 5]
        expected = torch.full((7, 4), 3.0, dtype=copy_dtype)
        expected[rows_written] = copied.variables[0].detach()[rows_written].to(copy_dtype)
        assert_same([copy], [expected], name)
        results.append([*copied.written(), copy])
    assert_same(*results)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_duplicates_of_gradient_descent_move_one_after_the_other(name):
    sgd = next(case for case in FIRST if case.rule.name == "SGD").with_hypers(learning_rate=1.0)
    values = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])
    var = torch.zeros(3, 1)
    take(sgd, Problem([var], [[]], [sparse(values, [1, 1, 1, 1], var)]), KEEP._replace(name=name))
    steps = np.float32(0)
    for value in values.numpy().ravel():
        steps = steps - value
    assert var.tolist() == [[0.0], [float(steps)], [0.0]]


@by_rule(FIRST)
def test_results_do_not_depend_on_unique_index_order(case):
    problem = make(case, 30, [4, 9, 0, 29, 17])
    order = torch.tensor([3, 0, 4, 2, 1])
    grad, shuffled = problem.gradients[0], problem.copy()
    shuffled.gradients = [sparse(grad.values[order], grad.indices[order], problem.variables[0])]
    assert_same(take(case, problem).written(), take(case, shuffled).written())


@by_rule(FIRST)
@many("name", ["cpu", "reference"])
def test_untouched_rows_change_only_if_the_rule_updates_them(case, name):
    problem = make(case, 8, [3])
    unchanged = problem.copy()
    take(case, problem, KEEP._replace(name=name))
    other_rows = torch.arange(8) != 3
    matches = [
        torch.equal(a[other_rows], b[other_rows])
        for a, b in zip(problem.written(), unchanged.written(), strict=True)
    ]
    assert all(matches) == (case.rule.update_untouched is None)


@by_rule(FIRST)
def test_empty_indices_apply_only_the_untouched_row_update(case):
    problem = make(case, 8, [])
    expected = reference(case, problem)
    unchanged = problem.copy()
    got = take(case, problem).written()
    assert_same(got, expected.written())
    if case.rule.update_untouched is None:
        assert_same(got, unchanged.written())


@by_rule(FIRST)
@many("count", [1, 2, 3])
def test_threads_and_slices_do_not_change_bits(case, count, threads, monkeypatch):
    indices = np.random.default_rng(1).integers(0, 60, 200).tolist()
    problem = make(case, 70, indices)
    expected = reference(case, problem, FLUSH)
    monkeypatch.setattr(sparse_engine, "SHARE", 8)
    monkeypatch.setattr(sparse_engine, "CHUNK", 12)
    threads(count)
    assert_same(take(case, problem, FLUSH).written(), expected.written())


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_unaligned_values_are_read_correctly(offset):
    case = next(case for case in FIRST if case.rule.name == "Adagrad")
    problem = make(case, 9, [2, 5, 2, 2, 8])
    expected = reference(case, problem)
    grad = problem.gradients[0]
    raw = bytearray(offset) + bytearray(grad.values.numpy().tobytes()) + bytearray(8)
    moved_values = torch.frombuffer(raw, dtype=torch.float32, offset=offset, count=15).view(5, 3)
    problem.gradients = [sparse(moved_values, grad.indices, problem.variables[0])]
    assert_same(take(case, problem).written(), expected.written())


def test_strided_and_negated_values_are_read_correctly():
    case = next(case for case in FIRST if case.rule.name == "Adam")
    problem = make(case, 9, [2, 5, 2, 2, 8])
    expected, grad = reference(case, problem), problem.gradients[0]
    wide = torch.zeros(5, 6)
    wide[:, ::2] = -grad.values
    problem.gradients = [sparse(torch._neg_view(wide)[:, ::2], grad.indices, problem.variables[0])]
    assert_same(take(case, problem).written(), expected.written())


def test_sparse_and_dense_mix_in_one_step():
    case = next(case for case in FIRST if case.rule.name == "Nadam")
    table, dense = make(case, 9, [2, 5, 2]), Problem.make(case.row, [40], [torch.float64], 3)
    joint = Problem(
        *[a + b for a, b in zip(vars(table).values(), vars(dense).values(), strict=True)]
    )
    expected = reference(case, joint, steps=2)
    assert_same(take(case, joint, steps=2).written(), expected.written())


def test_gradient_may_alias_the_rows_of_its_table():
    case = next(case for case in FIRST if case.rule.name == "Adagrad")
    problem = make(case, 6, [0, 1, 2, 0])
    var = problem.variables[0]
    problem.gradients = [sparse(var[:4], [0, 1, 2, 0], var)]
    separate = problem.copy()
    separate.gradients = [sparse(var[:4].clone(), [0, 1, 2, 0], var)]
    expected = take(case, separate)
    assert_same(take(case, problem).written(), expected.written())
