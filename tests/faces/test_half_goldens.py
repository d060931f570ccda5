"""float16 and bfloat16 are as near to TensorFlow as the table of docs/numbers.md says.

`tools/record_halves.py` recorded TensorFlow's values, and draws the inputs here as there.
"""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from thalweg import IndexedSlices
from thalweg.keras import optimizers
from thalweg.v1 import train

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("halves", ROOT / "tools" / "record_halves.py")
assert SPEC is not None
assert SPEC.loader is not None
halves: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(halves)

ARRAYS = np.load(ROOT / "tests" / "goldens" / "halves.npz")
CASES = {case[0]: case for case in halves.cases() if f"{case[0]}|var" in ARRAYS}
HOMES: dict[str, Any] = {"v1": train, "keras": optimizers}


def promised() -> dict[str, dict[str, tuple[float, float]]]:
    """Rule -> dtype -> the bounds of variables and slots, as docs/numbers.md has them."""
    text = (ROOT / "docs" / "numbers.md").read_text()
    (table,) = re.findall(r"\| 16 bits \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text)
    bounds: dict[str, dict[str, tuple[float, float]]] = {}
    for line in table.splitlines():
        rules, *numbers = (cell.strip() for cell in line.strip("|").split("|"))
        a, b, c, d = (0.0 if cell == "-" else float(cell) for cell in numbers)
        for rule in rules.split("; "):
            bounds[rule] = {"float16": (a, b), "bfloat16": (c, d)}
    return bounds


BOUNDS = promised()


def distance(got: torch.Tensor, golden: np.ndarray) -> float:
    """Return the largest difference, in units of the largest recorded element."""
    target = torch.from_numpy(golden).view(got.dtype).double()
    assert bool(target.isfinite().all())
    return ((got.detach().double() - target).abs().max() / target.abs().max().clamp(1e-30)).item()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_half_precision_is_within_documented_bounds(name: str) -> None:
    _, row, face, cls, kwargs, dtype, sparse = CASES[name]
    start, grads, indices = halves.problem(name)
    var = torch.nn.Parameter(torch.from_numpy(start).to(getattr(torch, dtype)))
    opt = getattr(HOMES[face], cls)(**kwargs)
    opt.engine = "reference"
    bound, of_slots = BOUNDS[row][dtype]
    if row == "Ftrl" and dtype == "bfloat16" and "learning_rate_power" not in kwargs:
        bound = of_slots = 3e-2
    for step in range(halves.STEPS):
        grad: Any = torch.from_numpy(grads[step]).to(var.dtype)
        if sparse:
            grad = IndexedSlices(grad[: halves.ROWS], torch.from_numpy(indices[step]))
        opt.apply_gradients([(grad, var)])
        if step in halves.RECORDED_STEPS:
            index = halves.RECORDED_STEPS.index(step)
            assert distance(var, ARRAYS[f"{name}|var"][index]) <= bound
            for slot in opt.get_slot_names():
                got = opt.get_slot(var, slot)
                assert distance(got, ARRAYS[f"{name}|{slot}"][index]) <= of_slots, slot


def test_every_row_of_the_table_was_recorded() -> None:
    assert {case[1] for case in CASES.values()} == set(BOUNDS)
    assert all(any(f"/{dtype}/" in name for name in CASES) for dtype in halves.DTYPES)


# Optimizer, rate, dtype, gradient -> where TensorFlow 2.21 has ones after two steps, and ours.
PARTED: list[tuple[Any, float, str, float, float, float]] = [
    # epsilon 1e-8 is 0 in float16: 0 / 0
    (train.AdamOptimizer, 0.1, "float16", 0.0, math.nan, 1.0),
    (train.AdadeltaOptimizer, 1.0, "float16", 0.0, math.nan, 1.0),
    # the square of the gradient underflows to 0, and epsilon is 0
    (train.AdamOptimizer, 0.1, "float16", 2.0**-13, -math.inf, 0.7593),
    (optimizers.RMSprop, 0.1, "float16", 2.0**-13, -204.0, 0.3691),
    # the square overflows
    (train.AdamOptimizer, 0.1, "float16", 300.0, math.nan, 0.8),
    (optimizers.Nadam, 0.1, "float16", 300.0, 1.0, 0.816),
    (train.RMSPropOptimizer, 0.1, "float16", 300.0, math.nan, 0.4541),
    (train.AdagradOptimizer, 0.1, "float16", 300.0, 1.0, 0.9),
    # beta_2 0.999 is 1 in bfloat16, so that v stays 0
    (train.AdamOptimizer, 0.1, "bfloat16", 1.0, -630784.0, 0.8),
    (optimizers.Adam, 0.1, "bfloat16", 1.0, 1.0, 0.8),
    (optimizers.Nadam, 0.1, "bfloat16", 1.0, math.nan, 0.816),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("make", "rate", "dtype", "grad", "recorded_w", "expected_w"), PARTED)
def test_documented_deviations_from_tensorflow_hold(
    make: Any, rate: float, dtype: str, grad: float, recorded_w: float, expected_w: float
) -> None:
    var = torch.nn.Parameter(torch.ones(2, dtype=getattr(torch, dtype)))
    opt = make(rate)
    for _ in range(2):
        opt.apply_gradients([(torch.full_like(var.detach(), grad), var)])
    assert not np.isclose(recorded_w, expected_w, rtol=1e-2)
    np.testing.assert_allclose(var.detach().double(), expected_w, rtol=0, atol=4e-3)
