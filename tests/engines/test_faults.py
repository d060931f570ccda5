"""Faults: bad numbers, denormals, forked and spawned processes, a missing OpenMP runtime."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest
import torch

import rulebook
from case_batches import many
from nonfinite_values import BAD, LONG, PLACES
from rulebook import (
    FIRST,
    FLUSH,
    KEEP,
    KINDS,
    Problem,
    assert_same,
    by_rule,
    by_rule_and_dtype,
    label,
    reference,
    slow_unless,
    sparse,
    take,
    update_case,
)
from thalweg import absolute, maximum, where
from thalweg._engines.cpu import openmp
from thalweg._engines.denormals import is_flushing, set_denormals

pytestmark = pytest.mark.timeout(90)  # a child that waits for lost threads waits for ever
ADAM = next(case for case in FIRST if case.rule.name == "Adam")


def _neighbours(problem, clean, place):
    for got, want in zip(problem.written(), clean.written(), strict=True):
        keep = torch.arange(got.shape[0]) != place
        assert_same([got[keep]], [want[keep]])


@by_rule_and_dtype
@many("kind", BAD)
@pytest.mark.one_in(3)
def test_nonfinite_gradient_affects_only_its_element(case, dtype, kind):
    clean = Problem.make(case.row, [LONG], [dtype], 1)
    untouched, value = clean.copy(), BAD[kind](torch.finfo(dtype))
    take(case, clean, FLUSH)
    for place in PLACES.values():
        problem = untouched.copy()
        problem.gradients = [untouched.gradients[0].clone()]
        problem.gradients[0][place] = value
        expected = reference(case, problem, FLUSH)
        take(case, problem, FLUSH)
        _neighbours(problem, clean, place)
        assert_same(problem.written(), expected.written())


@by_rule(FIRST)
@many("kind", BAD)
@many("place", [0, 2, 4])
@pytest.mark.one_in(3)
def test_nonfinite_sparse_row_affects_only_itself(case, kind, place):
    clean = Problem.make(case.row, [(9, 5)], [torch.float32], 1)
    values, rows = rulebook.values((5, 5), torch.float32, np.random.default_rng(2)), [3, 1, 3, 8, 0]
    problem, var = clean.copy(), clean.variables[0]
    clean.gradients = [sparse(values, rows, var)]
    spoiled = values.clone()
    spoiled[place, 3] = BAD[kind](torch.finfo(torch.float32))
    problem.gradients = [sparse(spoiled, rows, var)]
    expected = reference(case, problem, FLUSH)
    take(case, clean, FLUSH)
    take(case, problem, FLUSH)
    _neighbours(problem, clean, rows[place])
    assert_same(problem.written(), expected.written())


@by_rule(FIRST)
def test_nan_gradient_gives_nan_variable(case):
    if case.rule.name in ("Ftrl", "FtrlPower"):
        pytest.skip("Ftrl computes the variable anew")
    problem = Problem.make(case.row, [9], [torch.float32], 1)
    problem.gradients = [torch.full((9,), torch.nan)]
    take(case, problem, FLUSH)
    assert bool(problem.variables[0].isnan().all())


# Denormals

SMALL = [1e-40, -1e-40, 1e-45, 1.1e-38, -1.1e-38, 0.0, -0.0]


def _small(case, role, dtype=torch.float32):
    """A problem whose tensors of one role hold denormals."""
    problem = Problem.make(case.row, [LONG], [dtype], 3)
    small = torch.tensor(SMALL * 10)[:67].to(dtype)
    if dtype == torch.float64:
        small = small * torch.tensor(1e-270, dtype=dtype)
    if role == "variable":
        problem.variables[0].copy_(small)
        problem.gradients[0].zero_()
    elif role == "gradient":
        problem.gradients[0].copy_(small)
    elif role == "slot":
        problem.gradients[0].zero_()
        for slot in problem.slots[0]:
            slot.copy_(small)
    elif role == "product":
        tiny = 1e-160 if dtype == torch.float64 else 1e-20
        problem.gradients[0].mul_(tiny)
        for slot in problem.slots[0]:
            slot.mul_(tiny)
    return problem


ROLES = ["variable", "gradient", "slot", "product"]
SELECTIONS = [FLUSH, KEEP]
both = pytest.mark.parametrize("selection", SELECTIONS, ids=["flush", "keep"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        slow_unless(dtype == torch.float32 or candidate.rule.name in KINDS, candidate, dtype)
        for candidate in FIRST
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    ],
    ids=label,
)
@many("selection", SELECTIONS)
@many("role", ROLES)
def test_engines_agree_on_denormals(case, selection, role, dtype):
    problem = _small(case, role, dtype)
    expected = reference(case, problem, selection, steps=2)
    assert_same(take(case, problem, selection, steps=2).written(), expected.written())


@by_rule(FIRST)
@many("role", ROLES)
@many("name", ["cpu", "reference"])
def test_flush_mode_leaves_no_denormal(case, role, name):
    problem = take(case, _small(case, role), FLUSH._replace(name=name))
    for tensor in problem.written():
        assert not bool(((tensor != 0) & (tensor.abs() < 1.1754944e-38)).any())


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_keep_mode_is_ieee_arithmetic(name):
    def slots():
        return [torch.full((9,), 1e-39), torch.full((9,), 1e-39)]

    problem = Problem([torch.full((9,), 1e-40)], [slots()], [torch.zeros(9)])
    take(ADAM, problem, KEEP._replace(name=name))
    mean = np.float32(1e-39) + (0 - np.float32(1e-39)) * (1 - np.float32(0.9))
    assert problem.slots[0][0].tolist() == [float(mean)] * 9


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_flush_mode_equals_tensorflow(name):
    problem = Problem([torch.full((9,), 1e-40)], [[torch.full((9,), 1e-39)] * 1 + [torch.zeros(9)]],
                      [torch.zeros(9)])  # fmt: skip
    take(ADAM, problem, FLUSH._replace(name=name))
    assert problem.variables[0].tolist() == [0.0] * 9
    assert problem.slots[0][0].tolist() == [0.0] * 9


@by_rule(FIRST)
@many("selection", SELECTIONS)
def test_engines_agree_on_a_denormal_learning_rate(case, selection):
    small = case.with_hypers(learning_rate=1e-40)
    problem = Problem.make(case.row, [67], [torch.float32], 3)
    expected = reference(small, problem, selection)
    assert_same(take(small, problem, selection).written(), expected.written())


def larger_of_slot(var, grad, old):
    return var - grad, maximum(old, absolute(grad))


def chosen(var, grad, old):
    return where(grad > 0, grad, old), -old


def gradient_kept(var, grad, old):
    return var - grad, grad


@both
@pytest.mark.parametrize("formula", [larger_of_slot, chosen, gradient_kept])
@pytest.mark.parametrize("length", [1, 3, 8, 35, 67])
def test_selected_denormals_agree_between_engines(selection, formula, length):
    case, dtype = update_case(formula, 1), torch.float32
    small = torch.tensor(SMALL * 10)[:length]
    slots = [small.flip(0).clone()]
    problem = Problem([small.clone()], [slots], [small.roll(2)])
    expected = reference(case, problem, selection)
    take(case, problem, selection)
    assert_same(problem.written(), expected.written())
    if selection is FLUSH:
        assert not bool((problem.slots[0][0] != 0).any()), dtype


@pytest.fixture
def two_threads(threads):
    threads(2)


@both
def test_threads_treat_denormals_alike(selection, two_threads):
    count = 400_000
    slots = [torch.full((count,), 1e-39), torch.full((count,), 1e-39)]
    problem = Problem([torch.zeros(count)], [slots], [torch.zeros(count)])
    take(ADAM, problem, selection)
    nonzero = problem.slots[0][0] != 0
    assert bool(nonzero.all()) if selection is KEEP else not bool(nonzero.any())


def _products(count=400_000):
    """Count denormal products that survive on torch's threads and on this one."""
    tensor = torch.full((count,), 1e-39) * 0.5
    return int((tensor != 0).sum()), bool(np.full(4, 1e-39, np.float32)[1] * np.float32(0.5) != 0)


@both
@pytest.mark.parametrize("caller", [True, False], ids=["caller flushes", "caller keeps"])
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_caller_floating_point_flags_are_restored(selection, caller, name, two_threads):
    problem = Problem.make(ADAM.row, [200_000], [torch.float32], 1)
    with set_denormals(caller):
        products = _products(100)
        take(ADAM, problem, selection._replace(name=name))
        assert _products(100) == products
        assert is_flushing() == caller
    assert _products() == (400_000, True)


# Processes


def _step_digest(_=None):
    # NumPy's arrays: nothing but the step itself calls threads of OpenMP.
    rng = np.random.default_rng(1)
    var, m, v, grad = (torch.from_numpy(rng.random(200_000, np.float32)) for _ in range(4))
    take(ADAM, Problem([var], [[m, v]], [grad]), FLUSH)
    return float(var.numpy().sum(dtype=np.float64))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_steps_after_openmp_was_used(two_threads):
    expected = _step_digest()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if _step_digest() == expected else 2
        finally:
            os.write(writing, b"x")
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"x"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert _step_digest() == expected


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_worker_processes_step(method, two_threads):
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    expected = _step_digest()
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.map_async(_step_digest, [0, 1]).get(60) == [expected, expected]


def test_thread_pool_is_used_without_openmp(two_threads, monkeypatch):
    expected = _step_digest()
    monkeypatch.setattr(openmp, "gomp_parallel", lambda: None)
    assert _step_digest() == expected


def test_torch_openmp_runtime_is_used_if_present():
    with open("/proc/self/maps") as maps:
        if "libgomp" not in maps.read():
            pytest.skip("torch has no libgomp here")
    assert openmp.gomp_parallel() is not None


def test_steps_on_several_python_threads_do_not_mix():
    from concurrent.futures import ThreadPoolExecutor

    expected = _step_digest()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(_step_digest, range(12))) == {expected}
