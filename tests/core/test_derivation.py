"""Scalars that the call of a step makes have the bits of those that `derived` makes."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from shared_examples import check_examples
from thalweg import Variable, v1
from thalweg._base.scalars import POWF
from thalweg._core import scalar_programs
from thalweg._core.scalar_programs import RuleScalars, program_of
from thalweg._core.step_scalars import derived
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import kernel_cache, scalar_program
from thalweg.formula import Rule
from thalweg.keras import optimizers
from thalweg.optim import tensorflow
from thalweg.rules import ADAM, RULES, SGD

pytestmark = pytest.mark.skipif(POWF is None, reason="C's powers are not known")
KINDS: list[Any] = [np.float32, np.float64]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)

SOURCE = Path(scalar_program.__file__).read_text()
MAIN = "\n\ndef NAME(argument):\n    run(int64_pointer(address_of(argument)))\n"
TYPICAL = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 1e-3, 0.9, 0.999, 1.0, 1e-7]))
NUMBERS = st.one_of(TYPICAL, st.floats(width=32), st.sampled_from([1e-40, -1e-30, 1e30, 5e-324]))


def run(record: Any) -> None:
    name = f"t_{kernel_cache.digest(SOURCE, MAIN)}"
    address = kernel_cache.address_of(name, (SOURCE + MAIN).replace("NAME", name), briefly=True)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(record.ctypes.data)


class Rows:
    """Two rows of a launch's scalars."""

    def __init__(self, names: list[str], dtype: Any) -> None:
        self.names, self.dtype, self.measures = names, dtype, None
        self.rows = np.full((2, len(names)), 7, dtype)
        self.record = np.zeros(scalar_program.PROGRAM // 8, np.int64)

    def program(self, address: int) -> Any:
        return self.record, self.names, self.rows.ctypes.data, 2


def given_names(rule: Rule, has_powers: bool) -> list[str]:
    hypers = [hyper.name for hyper in rule.hypers]
    expected = {"NADAM": ["momentum_cache"], "Nadam": ["momentum_cache"]}.get(rule.name, [])
    return [*hypers, *expected, *(rule.powers if has_powers else ())]


def assert_bits(actual: Any, expected: Any) -> None:
    for first, second in zip(actual, expected, strict=True):
        assert first == second or (first != first and second != second), (first, second)
        assert np.signbit(first) == np.signbit(second) or first != first


@cache
def examples_of(count: int) -> Any:
    """Return the strategy of so many hyperparameters and of the number of a step."""
    numbers = st.one_of(*(st.tuples(*[strategy] * count) for strategy in (TYPICAL, NUMBERS)))
    return st.tuples(numbers, st.one_of(st.integers(1, 2000), st.integers(1, 2**40)))


@pytest.mark.one_in(3)
@each_rule
@each_kind
@pytest.mark.parametrize("has_powers", [False, True], ids=["counted", "given"])
def test_program_scalars_equal_prepared_scalars(rule: Rule, kind: Any, has_powers: bool) -> None:
    names = given_names(rule, has_powers)

    def check(numbers: tuple[float, ...], step: int) -> None:
        with np.errstate(all="ignore"):
            values = dict(zip(names, map(kind, numbers), strict=True))
        expected = derived(rule, {**values}, kind, step)
        rows: Any = Rows([*expected, "clip_factor"], kind)
        scalars = RuleScalars(rule, rows)
        for next_step in (1, step):
            assert scalars.made(values, next_step) is None  # the call makes them
            run(rows.record)
        for row in rows.rows:
            assert_bits(row, [*expected.values(), 7])

    check_examples(check, 60, examples_of(len(names)))


@each_kind
def test_every_step_of_a_training_has_its_bits(kind: Any) -> None:
    values = {hyper.name: kind(hyper.default) for hyper in ADAM.hypers}
    rows: Any = Rows([*derived(ADAM, {**values}, kind, 1)], kind)
    scalars = RuleScalars(ADAM, rows)
    for step in range(1, 2001):
        assert scalars.made(values, step) is None
        run(rows.record)
        assert_bits(rows.rows[1], derived(ADAM, {**values}, kind, step).values())


def by_condition(*, learning_rate: Any, beta1_power: Any) -> Any:
    return {"alpha": learning_rate if beta1_power > 0.5 else learning_rate / 2}


def of_a_constant(*, learning_rate: Any) -> Any:
    return {"alpha": learning_rate * np.float64(0.1)}


def of_a_function(*, learning_rate: Any) -> Any:
    return {"alpha": np.tanh(learning_rate)}


@pytest.mark.parametrize("prepare", [by_condition, of_a_constant, of_a_function])
def test_untraceable_prepare_runs_at_each_step(prepare: Any) -> None:
    rule = replace(ADAM, prepare=prepare)
    values: Any = {hyper.name: np.float32(hyper.default) for hyper in rule.hypers}
    with pytest.raises(TypeError):
        program_of(rule, np.float32, [*values])
    rows: Any = Rows(["alpha"], np.float32)
    scalars = RuleScalars(rule, rows)
    for step in (1, 2, 30):
        assert scalars.made(values, step) == derived(rule, {**values}, np.float32, step)
    assert not rows.record.any()


@pytest.mark.parametrize(
    "other_values",
    [
        {"learning_rate": 0.5},  # of another type
        {"learning_rate": np.float32(0.5), "momentum": np.float32(0)},
        {"rate": np.float32(0.5)},
    ],
)
def test_changed_hyperparameter_types_end_a_program(other_values: dict[str, Any]) -> None:
    rows: Any = Rows(["learning_rate"], np.float32)
    scalars = RuleScalars(SGD, rows)
    assert scalars.made({"learning_rate": np.float32(0.1)}, 1) is None
    assert rows.record.any()
    assert scalars.made(other_values, 2) is not None
    assert not rows.record.any()
    assert scalars.made({"learning_rate": np.float32(0.1)}, 3) is not None


def test_precomputed_scalars_end_a_program() -> None:
    rows: Any = Rows(["learning_rate"], np.float32)
    scalars, values = RuleScalars(SGD, rows), {"learning_rate": np.float32(0.1)}
    assert scalars.made(values, 1) is None
    assert scalars.made(values, None) is values
    assert not rows.record.any()


def of_keras(**options: Any) -> Any:
    variables = [Variable(torch.ones(3, dtype=dtype)) for dtype in (torch.float64, torch.float16)]
    optimizer = optimizers.Adam(0.1, **options)
    pairs = [(torch.ones_like(var), var) for var in variables]
    return lambda: optimizer.apply_gradients(pairs), lambda: optimizer._plans.now().replay.taken


def of_v1() -> Any:
    variables = [Variable(torch.ones(3, dtype=dtype)) for dtype in (torch.float64, torch.bfloat16)]
    optimizer = v1.train.AdamOptimizer(torch.tensor(0.1))
    pairs = [(torch.ones_like(var), var) for var in variables]
    return lambda: optimizer.apply_gradients(pairs), lambda: optimizer._plans.now().replay.taken


def of_torchs_kind(**options: Any) -> Any:
    params = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    for param in params:
        param.grad = torch.ones(3)
    groups = [{"params": params[:1], "lr": 0.1}, {"params": params[1:], "lr": 0.2}]
    optimizer = tensorflow.Adam(groups, **options)
    cache: Any = optimizer.step_cache
    return optimizer.step, lambda: cache.replay.taken


@pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
@pytest.mark.parametrize(
    "make",
    [
        of_keras,
        partial(of_keras, clipnorm=0.5),
        partial(of_keras, global_clipnorm=0.5),
        of_v1,
        of_torchs_kind,
        partial(of_torchs_kind, clip_grad_norm=0.5),
    ],
)
def test_a_replayed_step_derives_scalars_once(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step, step_count = make()
    for _ in range(3):
        step()
    assert step_count() == 1
    monkeypatch.delattr(scalar_programs, "derived")
    for _ in range(3):
        step()
    assert step_count() == 4
