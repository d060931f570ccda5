"""Every combination of dtypes gives the bits of the reference, and does so on any processor."""

from __future__ import annotations

import ctypes
import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fresh_process
import rulebook
from case_batches import many
from pairwise import cover_pairs
from rulebook import FIRST, FLUSH, KEEP, Case, Problem, Row, assert_same, label, sparse
from thalweg import Hyper, Rule, Slot, exp, sqrt, where
from thalweg._engines.cpu import kernel_cache, machine_code
from thalweg._engines.protocol import PEAKS, Columns, Reduction, StepRequest, as_array
from thalweg.formula import absolute, gradient_squares, maximum, narrow, variable_squares, wide
from thalweg.rules.clipping import clip_by_norm, clip_by_value, scale_by_trust, unscale

SPECIAL = 0.25  # of values; pairs of them give results that few other pairs do
F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
STAGES = (unscale, clip_by_value, clip_by_norm, scale_by_trust)
FACTORS = {"unscaling": 0.37, "clipvalue": 0.3, "clipnorm": 1.5, "clip_divisor": 2.7,
         "trust_factor": 0.3}  # fmt: skip
STEPS: tuple[tuple[Any, Any, dict[str, Any]], ...] = (((), KEEP, {}), (STAGES, FLUSH, FACTORS))


def update(var, grad, a, b, *, rate):
    """Functions of single values, which nothing else brings into the type of the arithmetic."""
    step = sqrt(absolute(a)) + exp(where(b < 1, b, 1)) + narrow(wide(a) * wide(grad), b)
    return var - rate * step, a * a + b * b, maximum(a, b) / 3


def update_single(var, grad, a, b, *, rate):
    return var - grad * sqrt(absolute(b)) * rate, a * a, b


def update_untouched(var, a, b, *, rate):
    return var + sqrt(absolute(a)) * rate, b * b, a / 3


def before(var, *, rate):
    return var + var * var * rate


def of_slots(var, grad, a, b):
    return sqrt(absolute(a)) * grad + b * b + var


SLOTS = (Slot("a"), Slot("b"))
SIMPLE = Rule(
    name="plain",
    update=update,
    update_single=update_single,
    update_untouched=update_untouched,
    hypers=(Hyper("rate", 0.3),),
    slots=SLOTS,
)
SUCCESSIVE = Rule(
    name="successive",
    update=update,
    before=before,
    duplicates="successive",
    hypers=SIMPLE.hypers,
    slots=SLOTS,
)
CASES = [Case(Row(rule), "default", {}) for rule in (SIMPLE, SUCCESSIVE)]


def _signatures() -> list[tuple[Any, ...]]:
    """Dtypes of variable, gradient, first and second slot, and copy."""
    rows: list[tuple[Any, ...]] = []
    for var in (F32, F64, F16, BF16):
        gradients = (F32, F16, BF16) if var == F32 else (var,)
        copies = (None,) if var.itemsize == 2 else (None, F16, BF16)
        slots = [(dtype, dtype) for dtype in (F32, F64, F16, BF16)] + [(F16, F64), (F32, BF16)]
        rows += [
            (var, grad, *pair, copy) for grad in gradients for pair in slots for copy in copies
        ]
    return rows


SIGNATURES = _signatures()
# In the default run each dtype of a slot beside each of a variable, each gradient and each copy.
QUICK = [
    types for types in SIGNATURES if types[0] == types[1] and types[2] == types[3] and not types[4]
]
QUICK += [(F32, F16, F32, F32, BF16), (F32, BF16, F32, F32, F16), (F64, F64, F16, F64, BF16)]


PAIRS = list(dict.fromkeys(types[:2] for types in SIGNATURES))  # of a variable and its gradient
FORMS: dict[str, tuple[tuple[int, ...], torch.dtype | None]] = {
    "dense": ((130,), None),
    "rows": ((9, 3), torch.int32),
    "single": ((9, 1), torch.int64),
}


def _made(case: Case, types: tuple[Any, ...], form: str) -> Problem:
    (var, grad, *slots, _), (shape, kind) = types, FORMS[form]
    rng, warm = np.random.default_rng(SIGNATURES.index(types)), case.row.warm
    variable = rulebook.values(shape, var, rng, SPECIAL)
    dtypes = (slots * 2)[: len(case.rule.element_slots)]
    slot_values = [rulebook.values(shape, dtype, rng, SPECIAL, *warm) for dtype in dtypes]
    if kind is None:
        return Problem([variable], [slot_values], [rulebook.values(shape, grad, rng, SPECIAL)])
    values = rulebook.values((7, *shape[1:]), grad, rng, SPECIAL)
    rows = rng.integers(0, shape[0], 7).tolist()
    return Problem([variable], [slot_values], [sparse(values, rows, variable, kind)])


by_form = pytest.mark.parametrize("form", FORMS)
by_pair = pytest.mark.parametrize("pair", PAIRS, ids=label)


@pytest.mark.one_in(5)
@by_form
@pytest.mark.parametrize("case", CASES, ids=label)
@many("types", QUICK, ids=label)
def test_steps_have_the_bits_of_the_reference(
    case: Case, types: tuple[Any, ...], form: str
) -> None:
    equal_steps(case, types, form, "cpu")


@pytest.mark.slow
@by_pair
def test_steps_of_all_dtypes_have_the_bits_of_the_reference(pair: tuple[Any, ...]) -> None:
    """Compare each signature in one form of one rule."""
    dice = random.Random(label(pair))
    for types in SIGNATURES:
        if types[:2] == pair:
            equal_steps(dice.choice(CASES), types, dice.choice([*FORMS]), "cpu")


@functools.cache
def _covers() -> list[list[tuple[Any, str]]]:
    """Return signatures and forms of each rule in `FIRST`.

    Each rule has all values of each column, and each two values of two columns occur together.
    """
    rows = [
        (index, form, *types)
        for index, case in enumerate(FIRST)
        for form in FORMS
        if form == "dense" or not case.rule.is_whole
        for types in SIGNATURES
    ]
    covers: list[list[tuple[Any, str]]] = [[] for _ in FIRST]
    for index, form, *types in cover_pairs(rows):
        covers[index].append((tuple(types), form))
    return covers


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(FIRST)), ids=lambda index: label(FIRST[index]))
def test_steps_of_all_rules_have_the_bits_of_the_reference(index: int) -> None:
    for types, form in _covers()[index]:
        equal_steps(FIRST[index], types, form, "cpu")


def equal_steps(case: Case, types: tuple[Any, ...], form: str, engine_name: str) -> None:
    """Compare the steps of an engine with those of the reference."""
    problem, copy = _made(case, types, form), types[-1]
    if form != "dense" and case.rule.is_whole:
        return
    for stages, selection, extra in STEPS:
        results: list[list[torch.Tensor]] = []
        for engine in (engine_name, "reference"):
            copied = problem.copy()
            # None beside a narrow gradient says that it may be narrow.
            copies = [None if copy is None else torch.full_like(copied.variables[0], 3, dtype=copy)]
            rulebook.take(
                case,
                copied,
                selection._replace(name=engine),
                steps=2,
                stages=stages,
                copies=copies,
                **extra,
            )
            results.append([*copied.written(), *(copy for copy in copies if copy is not None)])
        assert_same(results[0], results[1])


@pytest.mark.one_in(3)
@by_form
@many("types", QUICK, ids=label)
def test_measures_have_the_bits_of_the_reference(types: tuple[Any, ...], form: str) -> None:
    equal_measures(types, form, "cpu")


@pytest.mark.slow
@by_pair
def test_measures_of_all_dtypes_have_the_bits_of_the_reference(pair: tuple[Any, ...]) -> None:
    dice = random.Random(label(pair))
    for types in SIGNATURES:
        if types[:2] == pair:
            equal_measures(types, dice.choice([*FORMS]), "cpu")


def equal_measures(types: tuple[Any, ...], form: str, engine_name: str) -> None:
    """An engine measures what the reference does."""
    case = CASES[0]
    problem = _made(case, types, form)
    formulas: Any = (gradient_squares, variable_squares)
    formulas += (of_slots,) if form == "dense" else ()
    for stages in ((), STAGES):
        results: list[list[torch.Tensor]] = []
        for engine in (engine_name, "reference"):
            request = StepRequest(
                case.rule, stages, problem.variables, problem.gradients, problem.slots, ["w"],
                FLUSH._replace(name=engine), [None],
            )  # fmt: skip
            ready = rulebook.Engines().plan_step(request)
            shared = {
                dtype: case.scalars(dtype) | {name: dtype(value) for name, value in FACTORS.items()}
                for dtype in ready.dtypes
            }
            columns = Columns(shared, {})
            reductions = Reduction("sums", formulas, stages), PEAKS
            results.append(
                [torch.from_numpy(as_array(ready.reduce(x, columns))) for x in reductions]
            )
        assert_same(results[0], results[1])


CONVERSIONS = """
def {name}(argument):
    block = int64_pointer(address_of(argument))
    bits, numbers = uint16_pointer(block[1]), float32_pointer(block[2])
    for i in range(block[0]):
        {body}
"""
HALVES = np.arange(1 << 16, dtype=np.uint16)


def _numbers() -> np.ndarray[Any, np.dtype[np.float32]]:
    """All that a half is, what lies in the middle between two, its neighbours, and many others."""
    exact = HALVES.view(np.float16).astype(np.float32)
    bits = exact.view(np.uint32)[:, None] + np.array([0, 0xFFF, 0x1000, 0x1001], np.uint32)
    random_bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18, dtype=np.uint32)
    return np.concatenate([bits.ravel(), random_bits]).view(np.float32)


@pytest.mark.parametrize("has_instructions", [True, False])
@np.errstate(all="ignore")
def test_halves_are_converted_with_and_without_f16c(
    has_instructions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_instructions and not machine_code._has_halves():
        pytest.skip("this processor has none")
    monkeypatch.setattr(machine_code, "_has_halves", lambda: has_instructions)

    def run(body: str, bits: Any, numbers: Any) -> None:
        name = f"halves_{kernel_cache.digest(body, str(has_instructions))}"
        source = CONVERSIONS.format(name=name, body=body)
        address = machine_code.link_kernel(name, machine_code.compile_kernel(name, source))
        arguments = np.array([len(bits), bits.ctypes.data, numbers.ctypes.data], np.int64)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(arguments.ctypes.data)

    wide = np.empty(len(HALVES), np.float32)
    run("numbers[i] = half_to_float(bits[i])", HALVES, wide)
    np.testing.assert_array_equal(wide, HALVES.view(np.float16).astype(np.float32))
    assert (np.signbit(wide) == (HALVES >> 15)).all()
    numbers = _numbers()
    halves = np.empty(len(numbers), np.uint16)
    run("bits[i] = float_to_half(numbers[i])", halves, numbers)
    np.testing.assert_array_equal(halves.view(np.float16), numbers.astype(np.float16))
    assert ((halves >> 15) == np.signbit(numbers)).all()


GENERIC = """
import torch
import rulebook
case = rulebook.case("Adam")
problem = rulebook.Problem.make(case.row, [(130,)], [torch.float16], 3, 0.1)
for selection in (rulebook.KEEP, rulebook.FLUSH):
    wanted = rulebook.reference(case, problem, selection)
    got = rulebook.take(case, problem.copy(), selection)
    rulebook.assert_same(got.written(), wanted.written())
print("same")
"""


def test_portable_kernels_call_only_available_functions() -> None:
    home = str(Path(rulebook.__file__).parent)
    process = fresh_process.run(GENERIC, NUMBA_CPU_NAME="generic", PYTHONPATH=home)
    assert process.stdout == "same\n", process.stderr
