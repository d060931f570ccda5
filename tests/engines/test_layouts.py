"""Memory layouts: right bits or a LayoutError, and never another byte of memory."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

import rulebook
from attack.layout_cases import LAYOUTS, ROLES, possible, refused
from attack.server import Server
from rulebook import (
    FIRST,
    FLUSH,
    KEEP,
    KINDS,
    ROWS,
    Engines,
    Problem,
    assert_same,
    reference,
    slow_unless,
    take,
)
from thalweg import LayoutError, PerformanceWarning
from thalweg._engines import layout

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
ADAM = next(case for case in FIRST if case.rule.name == "Adam")


@pytest.fixture(scope="module")
def server():
    with Server("attack.layout_cases") as process:
        yield process


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rule", [slow_unless(rule in KINDS, rule) for rule in ROWS])
@pytest.mark.parametrize("role", ROLES)
def test_layouts_give_right_bits_or_a_layout_error(server, rule, role):
    names = [n for n in LAYOUTS if possible(rule, role, n)]
    if not names:
        pytest.skip(f"{rule} has no {role}")
    expected = {name: "LayoutError" if refused(role, name) else "ok" for name in names}
    outcomes = server.run([[rule, role, name] for name in names])
    assert dict(zip(names, outcomes, strict=True)) == expected


def test_crash_server_survives_and_reports_a_crash(server):
    batch = [["SGD", "variable", "contiguous"], ["SGD", "gradient", "contiguous"]]
    assert server.run(batch) == ["ok", "ok"]


def test_deferred_gradient_signs_are_resolved():
    problem = Problem.make(ADAM.row, [1], [torch.float32], 1)
    grad = torch.complex(torch.ones(1), torch.full((1,), 2.0)).conj().imag
    assert grad.is_neg()
    assert grad.is_contiguous()
    problem.gradients = [grad]
    expected = reference(ADAM, problem, count=2)
    assert_same(take(ADAM, problem, count=2).written(), expected.written())


def test_negative_stride_arrays_raise():
    with pytest.raises(ValueError, match="strides"):
        torch.from_numpy(np.arange(4.0)[::-1])


# Several tensors


def _two(a, b):
    return Problem([a, b], [[], []], [torch.ones_like(a), torch.ones_like(b)])


SHARING = {
    "the same view": lambda m: (m[:8], m[:8]),
    "overlapping runs": lambda m: (m[:8], m[4:12]),
    "one inside the other": lambda m: (m[:16], m[4:6]),
    "strided and dense": lambda m: (m[::3], m[4:8]),
    "one element": lambda m: (m[::2], m[6:19:3]),
    "another shape": lambda m: (m[:16].view(4, 4), m[:16].view(4, 4).t()),
    "another dtype": lambda m: (m[:8], m.view(torch.float64)[2:4]),
}


@pytest.mark.parametrize("pair", SHARING.values(), ids=SHARING)
@pytest.mark.parametrize("selection", [FLUSH, KEEP._replace(name="reference")], ids=str)
def test_overlapping_variables_raise(pair, selection):
    memory = torch.arange(24.0)
    with pytest.raises(LayoutError, match="cannot update 'w0' and 'w1' in one step"):
        take(FIRST[0], _two(*pair(memory)), selection)
    assert memory.tolist() == list(range(24))


DISJOINT = {
    "even and odd": lambda m: (m[::2], m[1::2]),
    "left and right columns": lambda m: (m.view(4, 6)[:, :2], m.view(4, 6)[:, 2:]),
    "neighbours": lambda m: (m[:8], m[8:]),
    "an empty one inside": lambda m: (m[:8], m[4:4]),
}


@pytest.mark.parametrize("pair", DISJOINT.values(), ids=DISJOINT)
@pytest.mark.filterwarnings("ignore::thalweg.PerformanceWarning")
def test_interleaved_variables_are_accepted(pair):
    memory = torch.arange(24.0)
    problem = _two(*pair(memory))
    expected = reference(FIRST[0], problem)
    assert_same(take(FIRST[0], problem).written(), expected.written())


def test_large_strided_pair_raises_without_comparison(monkeypatch):
    monkeypatch.setattr(layout, "_ENUMERABLE", 4)
    memory = torch.zeros(24)
    with pytest.raises(LayoutError):
        take(FIRST[0], _two(memory[::2], memory[1::2]))


def test_a_slow_layout_warns_once():
    var = torch.zeros(48)[::2]
    problem = Problem([var], [[]], [torch.ones(24)])
    engines = Engines()
    with pytest.warns(
        PerformanceWarning, match=r"'w0' has strides \(2,\) for shape \(24,\)"
    ) as warned:
        take(FIRST[0], problem, engines=engines)
    assert len(warned) == 1
    take(FIRST[0], problem, engines=engines)


# Slots that do not belong to their variable

REFUSALS = {
    "too short": "InvalidArgumentError",
    "too long": "InvalidArgumentError",
    "another rank": "InvalidArgumentError",
    "the variable": "LayoutError",
    "the other slot": "LayoutError",
}


@pytest.mark.parametrize("slot", REFUSALS)
def test_slots_in_foreign_memory_raise(server, slot):
    assert server.run([["Adam", "foreign slot", slot]]) == [REFUSALS[slot]]


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_misaligned_gradients_are_copied(offset):
    raw = bytearray(rulebook.values(24, torch.float32, np.random.default_rng(1)).numpy().tobytes())
    grad = torch.frombuffer(bytearray(offset) + raw, dtype=torch.float32, offset=offset, count=24)
    problem = Problem.make(ADAM.row, [24], [torch.float32], 1)
    problem.gradients = [grad]
    expected = reference(ADAM, problem)
    assert_same(take(ADAM, problem).written(), expected.written())
