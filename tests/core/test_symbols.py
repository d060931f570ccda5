"""Formulas of reductions that a replayed step evaluates have NumPy's bits."""

from __future__ import annotations

import ctypes
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thalweg._core.scalar_tracing import Program
from thalweg._engines.cpu import kernel_cache, scalar_program
from thalweg.formula import Rule, maximum, narrow, power, sqrt, where
from thalweg.rules import LARS
from thalweg.rules.modern import CAUTIOUS_ADAMW, LAMB, MARS, STABLE_ADAMW

KINDS: list[Any] = [np.float32, np.float64]
SOURCE = Path(scalar_program.__file__).read_text()
MAIN = "\n\ndef NAME(argument):\n    run(int64_pointer(address_of(argument)))\n"
TYPICAL = st.one_of(st.floats(0, 2), st.floats(1e-9, 1e9), st.sampled_from([0.0, 1.0]))
NUMBERS = st.one_of(TYPICAL, st.floats(), st.sampled_from([1e-300, 1e300, 3.4e38, 1e-40, -1.0]))
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def done(program: Program, names: list[str], dtype: Any) -> Any:
    row, record = (
        np.full((1, len(names)), 7, dtype),
        np.zeros(scalar_program.PROGRAM // 8, np.int64),
    )
    program.place(record, names, row.ctypes.data, 1)
    name = f"t_{kernel_cache.digest(SOURCE, MAIN)}"
    address = kernel_cache.address_of(name, (SOURCE + MAIN).replace("NAME", name), briefly=True)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(record.ctypes.data)
    return row[0]


def assert_bits(actual: Any, expected: Any) -> None:
    assert actual == expected or (actual != actual and expected != expected), (actual, expected)
    assert np.signbit(actual) == np.signbit(expected) or actual != actual


@each_kind
@pytest.mark.parametrize(
    "rule", [LAMB, MARS, STABLE_ADAMW, CAUTIOUS_ADAMW, LARS], ids=lambda rule: rule.name
)
@settings(max_examples=200)
@given(data=st.data())
@pytest.mark.one_in(7)
def test_programs_of_measures_equal_numpy(rule: Rule, kind: Any, data: st.DataObject) -> None:
    function: Any = rule.per_variable
    parameters = [*inspect.signature(function).parameters]
    measures, names = [*rule.measures], [name for name in parameters if name not in rule.measures]
    numbers = data.draw(
        st.one_of(*(st.tuples(*[pool] * len(parameters)) for pool in (TYPICAL, NUMBERS)))
    )
    with np.errstate(all="ignore"):
        reductions = dict(zip(measures, map(np.float64, numbers), strict=False))
        scalars = dict(zip(names, map(kind, numbers[len(measures) :]), strict=True))
        arrays = {name: np.array([number, 1.0]) for name, number in reductions.items()}
        actual = {n: np.asarray(x, kind) for n, x in function(**arrays, **scalars).items()}
    program = Program(kind, dict.fromkeys(measures, np.float64), names, lambda x, _: function(**x))
    program.give(scalars.values())
    for place, number in enumerate(reductions.values()):
        program.set(place, number)
    for first, second in zip(done(program, [*actual], kind), actual.values(), strict=True):
        assert_bits(first, np.broadcast_to(second, 2)[0])


def both_types(*, wide: Any, x: Any, y: Any) -> Any:
    offset = x * y / 3 - 0.1
    return {
        "first": narrow(wide * offset, x) + y,
        "second": where((wide < 1.0) & (x != y) | (y > 2), narrow(wide, x), x),
        "third": maximum(sqrt(wide) * x, y),
    }


@each_kind
@settings(max_examples=200)
@given(wide=NUMBERS, x=NUMBERS, y=NUMBERS)
def test_numbers_of_two_types_are_computed_as_by_numpy(
    kind: Any, wide: float, x: float, y: float
) -> None:
    with np.errstate(all="ignore"):
        scalars = {"x": kind(x), "y": kind(y)}
        actual = both_types(wide=np.array([wide]), **scalars)
        actual = {n: np.asarray(number, kind) for n, number in actual.items()}
    program = Program(kind, {"wide": np.float64}, [*scalars], lambda args, _: both_types(**args))
    program.give(scalars.values())
    program.set(0, wide)
    for first, second in zip(done(program, [*actual], kind), actual.values(), strict=True):
        assert_bits(first, second.ravel()[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda wide, x: {"made": x if wide > 1 else wide},
        lambda wide, x: {"made": np.tanh(x)},
        lambda wide, x: {"made": x * np.float64(2)},
        lambda wide, x: {"made": wide > 1},
        lambda wide, x: {"made": (wide > 1) * x},
        lambda wide, x: {"made": 1.0},
        lambda wide, x: {"made": power(wide, wide)},
        lambda wide, x: {"made": narrow(2.0, x)},
    ],
)
def test_unsupported_operations_raise(function: Any) -> None:
    with pytest.raises(TypeError):
        Program(np.float32, {"wide": np.float64}, ["x"], lambda args, _: function(**args))
