"""The CPU engine gives the bits of the reference engine, however the work is cut up and shared."""

from __future__ import annotations

import functools
import platform
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import rulebook
import thalweg
from case_batches import many
from rulebook import (
    CASES,
    DTYPES,
    FIRST,
    FLUSH,
    KEEP,
    KINDS,
    LENGTHS,
    Engines,
    Problem,
    assert_same,
    by_dtype,
    by_rule,
    by_rule_and_dtype,
    by_rule_and_dtypes,
    label,
    reference,
    slow_unless,
    sparse,
    take,
    update_case,
)
from shared_examples import check_examples
from thalweg import optim, sign, where
from thalweg._engines import Selection, current
from thalweg._engines.cpu import kernel_cache, kernel_group, machine_code, openmp
from thalweg.formula import maximum, narrow, sqrt, wide
from thalweg.rules.clipping import clip_by_norm, clip_by_value

SHAPES = st.one_of(
    st.sampled_from(LENGTHS),
    st.integers(0, 300),
    st.sampled_from([(), (0, 3), (3, 0, 2), (5, 7), (2, 3, 4), (1, 1), (13, 1)]),
)


@functools.cache
def examples_of(dtypes):
    """Tensors, a seed of their values, the share of special ones, and whether to flush."""
    tensors = st.lists(st.tuples(SHAPES, st.sampled_from(dtypes)), min_size=1, max_size=8)
    special = st.sampled_from([0.0, 0.1, 0.6])
    return st.tuples(tensors, st.integers(0, 2**32), special, st.booleans())


MIXED = [(130, torch.float32), ((), torch.float64), ((3, 5), torch.bfloat16), (17, torch.float16),
         ((0, 2), torch.float32), (1000, torch.float32), (64, torch.float64)]  # fmt: skip


def mixed(case, dtypes=DTYPES, seed=0, special=0.05):
    shapes, dtypes = zip(*[pair for pair in MIXED if pair[1] in dtypes], strict=True)
    return Problem.make(case.row, shapes, dtypes, seed, special)


def equal_reference(case, dtypes, budget):
    def check(tensors, seed, special, flush):
        shapes, dtypes = zip(*tensors, strict=True)
        problem = Problem.make(case.row, shapes, dtypes, seed, special)
        selection = FLUSH if flush else KEEP
        expected = reference(case, problem, selection, steps=2)
        got = take(case, problem, selection, steps=2)
        assert_same(got.written(), expected.written(), f"{case.rule.name} seed {seed}")

    # The configurations of a rule share its examples out.
    siblings = [sibling for sibling in CASES if sibling.row is case.row]
    check_examples(check, budget, examples_of(dtypes), siblings.index(case), len(siblings))


@by_rule_and_dtypes(CASES)
@pytest.mark.one_in(3)
def test_fused_equals_reference(case, dtypes):
    equal_reference(case, dtypes, 20)


@pytest.mark.slow
@by_rule()
def test_fused_equals_reference_in_many_examples(case):
    # 100 have half of the pairs of special values in each dtype, and there are 29 rules.
    equal_reference(case, DTYPES, 100)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        slow_unless(case.rule.name in KINDS, case, dtype)
        for case in FIRST
        for dtype in (torch.float32, torch.bfloat16)
    ],
    ids=label,
)
def test_stages_are_fused_with_the_bits_of_the_reference(case, dtype):
    problem, stages = (
        Problem.make(case.row, [130, ()], [dtype] * 2, 9),
        (clip_by_value, clip_by_norm),
    )
    extra = {"clipvalue": 0.3, "clipnorm": 1.5, "clip_divisor": 2.7}
    expected = reference(case, problem, stages=stages, **extra)
    assert_same(take(case, problem, stages=stages, **extra).written(), expected.written())


@by_rule(FIRST)
def test_memory_of_any_strides_is_updated_in_memory_order(case):
    problem = Problem.make(case.row, [(2, 3, 4, 5)], [torch.float32], 1)
    expected = reference(case, problem)
    layout = torch.channels_last
    problem.variables = [var.to(memory_format=layout) for var in problem.variables]
    problem.slots = [[slot.to(memory_format=layout) for slot in slots] for slots in problem.slots]
    assert_same(take(case, problem).written(), expected.written())


def test_a_failed_comparison_shows_rule_seed_dtype_and_bits():
    problem = Problem.make(CASES[0].row, [3], [torch.float32], seed=41)
    expected = problem.copy()
    problem.variables[0][1], expected.variables[0][1] = 2.0**-149, -(2.0**-149)
    message = r"SGD, seed 41\) tensor 0 \(torch.float32, .* first at 1: .*80000001\), 2 ulp apart"
    with pytest.raises(pytest.fail.Exception, match=message):
        assert_same(problem.written(), expected.written())


# The cut of the work


@by_rule_and_dtypes()
@many("chunk", [1, 7, 64, 1000])
def test_chunks_do_not_change_bits(case, dtypes, chunk, monkeypatch):
    problem = mixed(case, dtypes)
    monkeypatch.undo()
    expected = take(case, problem.copy())
    monkeypatch.setattr(kernel_group, "choose_chunk_size", lambda elements: chunk)
    assert_same(take(case, problem).written(), expected.written())


@pytest.mark.one_in(3)
@by_rule_and_dtypes()
@many("count", [1, 2, 3])
def test_threads_do_not_change_bits(case, dtypes, count, threads, monkeypatch):
    problem = mixed(case, dtypes)
    expected = reference(case, problem, FLUSH)
    monkeypatch.setattr(kernel_group, "choose_chunk_size", lambda elements: 16)
    threads(count)
    assert_same(take(case, problem, FLUSH).written(), expected.written())


@by_rule_and_dtypes()
def test_results_do_not_depend_on_variable_order(case, dtypes):
    problem = mixed(case, dtypes)
    expected = take(case, problem.copy())
    order = np.random.default_rng(3).permutation(len(problem.variables)).tolist()
    got = take(case, problem.permuted(order))
    assert_same(got.written(), expected.permuted(order).written())


@by_rule(FIRST)
def test_repeats_of_a_variable_run_in_sequence(case):
    problem = Problem.make(case.row, [33, 5], [torch.float32] * 2, 2)
    (first, second_row), second = problem.gradients, rulebook.values(33, torch.float32, _rng())
    expected = problem.copy()
    for gradient in (first, second):
        take(case, Problem(expected.variables[:1], expected.slots[:1], [gradient]), steps=1)
    take(case, Problem(expected.variables[1:], expected.slots[1:], [second_row]))
    order = [problem.permuted([0, 1, 0]), problem.slots]
    order[0].gradients = [first, second_row, second]
    take(case, order[0])
    assert_same(problem.written(), expected.written())


def _rng():
    return np.random.default_rng(7)


# Properties without an oracle


def _scaled(problem, row, sign_=1.0, grad=1.0, var=1.0):
    """The problem after a transformation that should commute with the step."""
    scaled = problem.copy()
    scaled.variables = [variable * sign_ * var for variable in scaled.variables]
    scaled.gradients = [gradient * sign_ * grad for gradient in scaled.gradients]
    scaled.slots = [
        [
            slot * (scale.sign if sign_ < 0 else 1) * grad**scale.grad * var**scale.var
            for slot, scale in zip(slots, row.slots, strict=True)
        ]
        for slots in scaled.slots
    ]
    return scaled


def _quiet(case):
    # Values of one magnitude, so that powers of two lose nothing.
    rng = _rng()
    var, grad = (rulebook.values(300, torch.float32, rng, low=0.1) for _ in range(2))
    turn = torch.where(torch.arange(300) % 3 == 0, -1.0, 1.0)
    return Problem([var], [rulebook.slots_for(case.row, var, rng)], [grad * turn])


def assert_equal_numbers(got, expected):
    for a, b in zip(got.written(), expected.written(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.one_in(3)
@by_rule()
def test_opposite_signs_give_opposite_steps(case):
    problem = _quiet(case)
    expected = _scaled(take(case, problem.copy(), steps=2), case.row, sign_=-1.0)
    assert_equal_numbers(take(case, _scaled(problem, case.row, sign_=-1.0), steps=2), expected)


@pytest.mark.one_in(3)
@by_rule([case for case in FIRST if case.row.linear is not None])
def test_variable_and_learning_rate_scale_together(case):
    rate = {hyper.name: hyper.default for hyper in case.rule.hypers}["learning_rate"]
    exact = case.with_hypers(**case.row.linear, learning_rate=rate)
    larger = exact.with_hypers(learning_rate=4 * float(np.float32(rate)))
    problem = _quiet(case)
    expected = _scaled(take(exact, problem.copy(), steps=2), case.row, var=4.0)
    assert_equal_numbers(take(larger, _scaled(problem, case.row, var=4.0), steps=2), expected)


@by_rule([case for case in FIRST if case.row.scale_free is not None])
def test_adaptive_rules_ignore_gradient_scale(case):
    exact, problem = case.with_hypers(**case.row.scale_free), _quiet(case)
    expected = _scaled(take(exact, problem.copy(), steps=2), case.row, grad=1024.0)
    expected.gradients = problem.gradients
    assert_equal_numbers(take(exact, _scaled(problem, case.row, grad=1024.0), steps=2), expected)


@by_rule([case for case in FIRST if case.row.per_rate])
def test_gradient_and_learning_rate_scale_inversely(case):
    rate = {hyper.name: hyper.default for hyper in case.rule.hypers}["learning_rate"]
    problem = _quiet(case)
    expected = take(case, problem.copy(), steps=2)
    problem.gradients = [grad * 1024 for grad in problem.gradients]
    assert_equal_numbers(
        take(case.with_hypers(learning_rate=rate / 1024), problem, steps=2), expected
    )


# 16 bits


def copy_gradient(var, grad):
    return (grad,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_every_half_survives_the_round_trip(dtype, name):
    values = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    var = torch.zeros_like(values)
    take(update_case(copy_gradient), Problem([var], [[]], [values]), KEEP._replace(name=name))
    assert_same([var], [values])


def half_gradient(var, grad):
    return (grad * 0.5 + var,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_halves_are_rounded_once_to_nearest_even(dtype):
    values = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    shuffled = values[torch.randperm(1 << 16, generator=torch.Generator().manual_seed(1))]
    var = shuffled.clone()
    take(update_case(half_gradient), Problem([var], [[]], [values]))
    assert_same([var], [(values.float() * 0.5 + shuffled.float()).to(dtype)])


# Whose memory it is


@pytest.mark.one_in(3)
@by_rule_and_dtype
@many("name", ["cpu", "reference"])
def test_gradients_are_not_written(case, dtype, name):
    problem = Problem.make(case.row, [100, (3, 4)], [dtype] * 2, 4, 0.1)
    grads_before = [grad.clone() for grad in problem.gradients]
    versions = [grad._version for grad in problem.gradients]
    take(case, problem, FLUSH._replace(name=name), steps=2)
    assert_same(problem.gradients, grads_before)
    assert [grad._version for grad in problem.gradients] == versions


ALIASES = {
    "shared": lambda a, b, grad: [grad, grad],
    "own variable": lambda a, b, grad: [a.detach(), b.detach()],
    "other variable": lambda a, b, grad: [b.detach(), a.detach()],
    "shifted": lambda a, b, grad: [a.view(-1).as_strided((40,), (1,), 3), grad],
}


@pytest.mark.one_in(3)
@by_rule(FIRST)
@many("alias", ALIASES)
@many("name", ["cpu", "reference"])
def test_gradients_may_lie_in_written_memory(case, alias, name):
    memory = rulebook.values(90, torch.float32, _rng())

    def problem():
        buffer = memory.clone()
        a, b = buffer[:40], buffer[45:85]
        slots = [rulebook.slots_for(case.row, var, _rng()) for var in (a, b)]
        return Problem([a, b], slots, ALIASES[alias](a, b, memory[50:].clone()))

    separate = problem()
    separate.gradients = [grad.clone() for grad in separate.gradients]
    got, expected = take(case, problem(), KEEP._replace(name=name)), take(case, separate)
    assert_same(got.written(), expected.written())


@by_rule(FIRST)
def test_gradient_aliasing_a_slot_is_read_first(case):
    if not case.rule.slots:
        pytest.skip(f"{case.rule.name} has no slots")
    problem = Problem.make(case.row, [50], [torch.float32], 5)
    problem.gradients = [problem.slots[0][0]]
    separate = problem.copy()
    separate.gradients = [problem.slots[0][0].clone()]
    expected = take(case, separate)
    assert_same(take(case, problem).written(), expected.written())


@by_rule_and_dtypes()
@many("name", ["cpu", "reference"])
def test_versions_of_written_tensors_advance(case, dtypes, name):
    problem = mixed(case, dtypes)
    versions_before = [tensor._version for tensor in problem.written()]
    take(case, problem, KEEP._replace(name=name), steps=2)
    versions = [tensor._version for tensor in problem.written()]
    assert all(b > a for a, b in zip(versions_before, versions, strict=True))


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_backward_through_an_old_value_raises(name):
    var = torch.ones(4, requires_grad=True)
    loss = (var * var).sum()
    loss.backward(retain_graph=True)
    problem = Problem([var], [[]], [var.grad])
    with torch.no_grad():
        take(FIRST[0], problem, KEEP._replace(name=name))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# What formulas may hold


def keep_old(var, grad, old, older):
    return var - grad, var, old


def swap(var, grad, a, b):
    return grad, b, a


def pick(var, grad, *, switch):
    return (where(switch > 0, var - grad, var + grad),)


def tiny_choice(var, grad):
    return (where(grad > 0, grad, -var),)


def ten_slots(var, grad, a, b, c, d, e, f, g, h, i, j):
    s = a + b * c - d / e + f * g - h + i * j
    return var - grad * s, b, c, d, e, f, g, h, i, j, a


def _clamp(x):
    return where(x > 1, 1, where(x < -1, -1, x))


def _soft(x, width):
    in_band = (x > -width) & (x < width)
    return where(in_band, 0, _clamp(x) - width * sign(x))


def with_helpers(var, grad):
    return (var - _soft(grad, 0.1) * _clamp(var) ** 2,)


def in_double(var, grad, squares):
    squares = narrow(squares + wide(grad) * wide(grad), squares)
    step = where(grad > 0, wide(grad), -wide(grad)) / (1 + wide(sqrt(squares)))
    return narrow(maximum(wide(var) - step, -1), grad), squares


FORMULAS = [
    (keep_old, 2), (swap, 2), (tiny_choice, 0), (ten_slots, 10), (with_helpers, 0), (in_double, 1),
]  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("formula", "slots"), FORMULAS, ids=[f[0].__name__ for f in FORMULAS])
@pytest.mark.parametrize("selection", [KEEP, FLUSH], ids=["keep", "flush"])
def test_formulas_of_every_form_agree(formula, slots, selection):
    case = update_case(formula, slots)
    problem = Problem.make(case.row, [300, 7], [torch.float32, torch.bfloat16], 6, 0.3)
    expected = reference(case, problem, selection, steps=2)
    assert_same(take(case, problem, selection, steps=2).written(), expected.written())


def square_in_double(var, grad):
    return (narrow(var + wide(grad) * wide(grad), var),)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_wide_rounds_only_when_narrowed(name):
    grad = torch.tensor([1 + 2.0**-13])
    var = -grad * grad  # rounded; what the rounding took is left
    take(update_case(square_in_double), Problem([var], [[]], [grad]), KEEP._replace(name=name))
    assert var.tolist() == [2.0**-26]


def _half(*, learning_rate):
    return {"whole": 3, "third": 1 / 3, "double": np.float64(0.1)}


def python_scalars(var, grad, *, whole, third, double):
    return (var / whole - grad * (third * double) + 1 / whole,)


@by_dtype
@pytest.mark.parametrize("switch", [0, 1, -1.0])
def test_condition_can_be_a_scalar(dtype, switch):
    case = update_case(pick)
    problem = Problem.make(case.row, [20], [dtype], 6)
    expected = reference(case, problem, switch=switch)
    assert_same(take(case, problem, switch=switch).written(), expected.written())


def test_scalars_of_prepare_are_rounded_to_the_compute_dtype():
    from thalweg import Hyper

    case = update_case(python_scalars, prepare=_half, hypers=(Hyper("learning_rate", 0.1),))
    problem = Problem.make(case.row, [300], [torch.float32], 6)
    expected = reference(case, problem)
    assert_same(take(case, problem).written(), expected.written())


def assigned_scalar(var, grad, *, learning_rate):
    learning_rate = learning_rate * 2
    learning_rate = wide(learning_rate) / 3
    return (var - grad * narrow(learning_rate, grad),)


@pytest.mark.parametrize("indices", [None, [1, 0, 1]], ids=["dense", "sparse"])
def test_formula_can_assign_to_its_scalars(indices):
    from thalweg import Hyper

    case = update_case(assigned_scalar, hypers=(Hyper("learning_rate", 0.1),))
    problem = Problem.make(case.row, [(3, 7)], [torch.float32], 6)
    if indices:
        problem.gradients[0] = sparse(problem.gradients[0], indices, problem.variables[0])
    expected = reference(case, problem)
    assert_same(take(case, problem).written(), expected.written())


# Steady state


@by_rule(FIRST)
def test_repeated_step_does_not_compile_or_allocate(case, monkeypatch, tmp_path):
    import tracemalloc

    problem = Problem.make(case.row, [100] * 50, [torch.float32] * 50, 8)
    engines = Engines()
    take(case, problem, FLUSH, engines=engines, steps=3)
    kernels = set(kernel_cache._addresses)
    monkeypatch.setenv("THALWEG_CACHE_DIR", str(tmp_path))
    tracemalloc.start()
    take(case.with_hypers(learning_rate=0.5), problem, FLUSH, engines=engines, steps=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 65536
    assert set(kernel_cache._addresses) == kernels
    assert not list(tmp_path.iterdir())


def _flags():
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


@pytest.mark.skipif(
    platform.machine() != "x86_64" or " avx " not in _flags(), reason="needs x86-64 with AVX"
)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_adam_is_vectorised(dtype):
    from thalweg._engines.codegen import Update
    from thalweg._engines.cpu.codegen import generate_update
    from thalweg.rules.adam import ADAM

    kernel = generate_update(Update(ADAM.update, (dtype,) * 4), "float32")
    module = machine_code._optimize_module(kernel.name, kernel.source, briefly=False)
    assembly = machine_code._target_machine().emit_assembly(module)
    assert "vsqrtps" in assembly
    assert "vfmadd" not in assembly
    assert ("prefetchw" in assembly) == bool(machine_code.tuning().prefetch)
    assert "zmm" in assembly or " avx512f " not in _flags()


@pytest.mark.parametrize(("numbers", "looks"), [("range", True), ("each", False)])
def test_loops_are_vectorized(numbers, looks):
    source = f"""
def added(argument):
    words = int64_pointer(address_of(argument))
    p, q = float32_pointer(words[0]), float32_pointer(words[1])
    for k in range(words[2]):
        for i in {numbers}(k, words[3]):
            p[i] = p[i] + (q[i] if q[i] > float32(0) else float32(1))
    for i in {numbers}(words[3]):
        p[i] = p[i] * q[i]
"""
    module = str(machine_code._optimize_module("added", source, briefly=False))
    assert module.count("\nvector.body") == 2
    assert module.count("\nvector.memcheck") == 2 * looks
    address = machine_code.compile_in_memory("added", source)
    actual, inputs = np.arange(67, dtype=np.float32), np.linspace(-1, 1, 67, dtype=np.float32)
    words = np.array([actual.ctypes.data, inputs.ctypes.data, 1, 67], np.int64)
    openmp.call_on_team(address, words.ctypes.data, 1)()
    expected = np.arange(67, dtype=np.float32) + np.where(inputs > 0, inputs, np.float32(1))
    assert actual.tolist() == (expected * inputs).tolist()


def test_formulas_without_division_are_not_prefetched():
    from thalweg._engines.codegen import Update
    from thalweg._engines.cpu.codegen import generate_update
    from thalweg.rules.gradient_descent import SGD

    kernel = generate_update(Update(SGD.update, ("float32",) * 2), "float32")
    assert "prefetch(" not in kernel.source


def test_kernels_are_compiled_for_this_python_only_once():
    take(FIRST[0], mixed(FIRST[0]))
    addresses, modules = set(kernel_cache._addresses), set(sys.modules)
    for _ in range(3):
        take(FIRST[0], mixed(FIRST[0]))
    assert set(kernel_cache._addresses) == addresses
    assert set(sys.modules) == modules


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=label)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=label)
def test_copies_of_16_bits_follow_their_variables(kind: torch.dtype, dtype: torch.dtype) -> None:
    case = next(case for case in CASES if case.rule.name == "Adam")
    problem = rulebook.Problem.make(case.row, [(130,)], [dtype], 3)
    results = []
    for engine in ("cpu", "reference"):
        copied = problem.copy()
        copies = [torch.zeros(130, dtype=kind)]
        rulebook.take(case, copied, rulebook.FLUSH._replace(name=engine), copies=copies)
        results.append([*copied.written(), *copies])
    rulebook.assert_same(*results)


def test_math_is_exact_or_fast() -> None:
    with pytest.raises(ValueError, match=r"^math must be 'exact' or 'fast', not 'quick'\.$"):
        thalweg.engine(math="quick")  # pyright: ignore
    with thalweg.engine(math="fast"):
        assert current().math == "fast"
        with thalweg.engine("cpu"), thalweg.engine(math="exact"):
            assert current() == Selection("cpu")
    assert current().math == "exact"


def test_math_option_has_no_effect_on_the_cpu() -> None:
    results: list[torch.Tensor] = []
    for math in ("exact", "fast"):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 1000))
        w.grad = torch.linspace(1, 2, 1000)
        optimizer = optim.Adam([w], lr=0.1)
        with thalweg.engine(math=math):
            for _ in range(3):
                optimizer.step()
        results.append(w.detach())
    assert torch.equal(*results)
