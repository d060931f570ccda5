"""Every rule through the optimizer that runs it: engines agree, bad numbers stay where they are."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

import rulebook
import thalweg
from case_batches import many
from nonfinite_values import BAD, LONG, PLACES
from rulebook import DTYPES, KINDS, LENGTHS, assert_same, label, slow_unless, values
from shared_examples import check_examples
from thalweg import IndexedSlices, Variable
from thalweg._cli.registry import applied, by_rule
from thalweg._engines.engine_selection import DENORMALS

each_rule = pytest.mark.parametrize("name", by_rule())
LENGTH = st.one_of(st.sampled_from(LENGTHS), st.integers(0, 300))
QUICK = [name for name, entry in by_rule().items() if entry.rule.name in KINDS]


def tensors_of(state: Any) -> list[Tensor]:
    """All tensors of a state, in order."""
    if isinstance(state, dict):
        return [tensor for part in state.values() for tensor in tensors_of(part)]
    return [state] if isinstance(state, Tensor) else []


def floating(opt: Any, variables: list[Any]) -> list[Tensor]:
    """Variables and all that the optimizer remembers but for counters."""
    tensors = [*variables, *tensors_of(opt.state_dict())]
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def trained(name: str, start: list[Tensor], steps: list[list[Any]], engine: Any) -> list[Tensor]:
    """Return variables and slots after the steps of one engine."""
    variables = [Variable(value.clone(), f"w{place}") for place, value in enumerate(start)]
    opt = by_rule()[name].make(0.1)
    opt.engine = engine
    for gradients in steps:
        applied(opt)(zip(gradients, variables, strict=True))
    return floating(opt, variables)


@functools.cache
def examples_of(dtypes: tuple[torch.dtype, ...]) -> Any:
    """Tensors, a seed of their values, the share of special ones, and what denormals are."""
    tensors = st.lists(st.tuples(LENGTH, st.sampled_from(dtypes)), min_size=1, max_size=8)
    special = st.sampled_from([0.0, 0.1, 0.6])
    return st.tuples(tensors, st.integers(0, 2**32), special, st.sampled_from(DENORMALS))


@functools.cache
def tensors_of_steps(tensors: Any, seed: int, special: float) -> list[list[Tensor]]:
    """Return the first values of variables and the gradients of three steps; no step writes them.

    All rules have the same examples.
    """
    rng = np.random.default_rng(seed)
    return [[values(length, dtype, rng, special) for length, dtype in tensors] for _ in range(4)]


# Pairs of special values, and the formulas of rules, are for `test_engines.py`.
@pytest.mark.parametrize(
    "budget", [6, pytest.param(20, marks=pytest.mark.slow)], ids=["replay", "long"]
)
@each_rule
@pytest.mark.one_in(3)
def test_optimizers_take_the_steps_of_the_reference(name: str, budget: int) -> None:
    dtypes = DTYPES if budget > 6 or name in QUICK else DTYPES[:2]

    def check(tensors: Any, seed: int, special: float, denormals: Any) -> None:
        start, *steps = tensors_of_steps(tuple(tensors), seed, special)
        with thalweg.engine(denormals=denormals):
            got, expected = (trained(name, start, steps, engine) for engine in ("cpu", "reference"))
        assert_same(got, expected, f"{name} seed {seed}")

    check_examples(check, budget, examples_of(dtypes))


# Bad numbers

TABLE = (9, 5)
NAMED_ROWS = [3, 1, 3, 8, 0]


def clean(dtypes: tuple[torch.dtype, ...]) -> tuple[list[Tensor], list[Any]]:
    """A vector and a table of each dtype, once to be spoiled and once not, with gradients."""
    rng = np.random.default_rng(1)
    start: list[Tensor] = []
    gradients: list[Any] = []
    for dtype in dtypes:
        for _ in range(2):
            start += [values(LONG, dtype, rng), values(TABLE, dtype, rng)]
            rows = values((len(NAMED_ROWS), TABLE[1]), dtype, rng)
            gradients += [
                values(LONG, dtype, rng),
                IndexedSlices(rows, torch.tensor(NAMED_ROWS), TABLE),
            ]
    return start, gradients


def spoiled(gradients: list[Any], bad: str, places: list[tuple[int, int]]) -> list[Any]:
    """Copy gradients with a bad number in a vector and in a table of each dtype."""
    grads = list(gradients)
    for index, (place, row) in zip(range(0, len(grads), 4), places, strict=True):
        vector, table = grads[index].clone(), grads[index + 1]
        rows = table.values.clone()
        vector[place] = rows[row, 3] = BAD[bad](torch.finfo(vector.dtype))
        grads[index] = vector
        grads[index + 1] = IndexedSlices(rows, table.indices, TABLE)
    return grads


def harmed(got: list[Tensor], expected: list[Tensor]) -> list[list[int]]:
    """For each tensor the places along its first dimension that differ."""
    return [
        (rulebook.bits(a) != rulebook.bits(b)).reshape(len(a), -1).any(1).nonzero()[:, 0].tolist()
        if a.dim()
        else []
        for a, b in zip(got, expected, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        slow_unless(dtypes == (torch.float32,) or (is_joint and name in QUICK), name, dtypes)
        for name in by_rule()
        for is_joint, dtypes in (
            (False, (torch.float32,)),
            (True, (torch.float32, torch.bfloat16)),
            (False, (torch.float16, torch.float64)),
        )
    ],
    ids=label,
)
@many("bad", BAD)
@pytest.mark.one_in(3)
def test_nonfinite_gradient_affects_only_its_element(name: str, bad: str, dtypes: Any) -> None:
    rule = by_rule()[name].rule
    start, gradients = clean(dtypes)
    calm = trained(name, start, [gradients], "cpu")
    has_norm = rule.per_variable is not None  # a norm joins all elements of a variable
    # Each bad number comes to another place in each dtype.
    all_places = [*zip(PLACES.values(), (0, 1, 2, 4), strict=True)]
    turn = list(BAD).index(bad)
    places = [all_places[(turn + 2 * number) % len(all_places)] for number in range(len(dtypes))]
    steps = [spoiled(gradients, bad, places)]
    got, expected = (trained(name, start, steps, engine) for engine in ("cpu", "reference"))
    assert_same(got, expected, name)
    for index, rows in enumerate(harmed(got[: len(start)], calm[: len(start)])):
        place, row = places[index // 4]
        allowed = ([place], [NAMED_ROWS[row]], [], [])[index % 4]
        assert set(rows) <= set(allowed) or (has_norm and index % 4 < 2), (index, rows)
