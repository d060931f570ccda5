"""Drift of float32 from float64 in ten thousand steps without a restoring force.

    PYTHONPATH=tests/support python tests/engines/test_rounding_drift.py

measures all rules anew, or those whose names it is given, and writes `drift.json` beside it;
`--long` compares all of them with that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rulebook import FIRST, FLUSH, KINDS, Case, Engines, by_rule
from thalweg._engines.formula_parser import bind_formula
from thalweg._engines.numpy_functions import NUMPY
from thalweg._engines.protocol import StepRequest

DRIFTS = Path(__file__).parent / "drift.json"
STEPS, SIZE, NOISES = 10_000, 4096, 16
SMALLEST = 2.0**-20  # variables nearer to 0 are measured in its units
QUANTILES = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "largest": 1.0}
# NumPy's own, which differ from the library's in the last bit of float64 and take a tenth as long.
FUNCTIONS = {**NUMPY, "exp": np.exp, "log": np.log, "power": np.power}
Array = np.ndarray[Any, Any]


class Bowl:
    """The gradients of quadratics with noise, at a variable; float32 numbers in any dtype."""

    def __init__(self, dtype: Any) -> None:
        rng = np.random.default_rng(5)

        def drawn(low: float, high: float, *shape: int) -> Array:
            return rng.uniform(low, high, shape).astype(np.float32).astype(dtype)

        self.start = drawn(-1, 1, SIZE)
        self.curvature, self.bottom = drawn(0.1, 1, SIZE), drawn(-2, 2, SIZE)
        self.noise = drawn(-0.5, 0.5, NOISES, SIZE)

    def gradient(self, var: Array, number: int, out_array: Array) -> None:
        np.subtract(var, self.bottom, out=out_array)
        out_array *= self.curvature
        out_array += self.noise[number % NOISES]


def slots_of(case: Case, dtype: Any) -> list[Array]:
    return [np.full(SIZE, slot.initial, dtype) for slot in case.rule.element_slots]


def fused(case: Case) -> Callable[[int], Array]:
    bowl, engines = Bowl(np.float32), Engines()
    var, grad = torch.from_numpy(bowl.start), torch.empty(SIZE)
    slots = [torch.from_numpy(slot) for slot in slots_of(case, np.float32)]
    request = StepRequest(case.rule, (), [var], [grad], [slots], ["w"], FLUSH._replace(name="cpu"))

    def step(number: int) -> Array:
        bowl.gradient(var.numpy(), number, grad.numpy())
        engines.take(request, lambda dtypes: {np.float32: case.scalars(np.float32, number)})
        return var.numpy()

    return step


def exact(case: Case) -> Callable[[int], Array]:
    """A step of the reference formula in float64, with the scalars of float32."""
    bowl, update = Bowl(np.float64), bind_formula(case.rule.update, FUNCTIONS, np.float64)
    code = case.rule.update.__code__
    names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    arrays = [bowl.start, *slots_of(case, np.float64)]
    grad = np.empty(SIZE)

    def step(number: int) -> Array:
        bowl.gradient(arrays[0], number, grad)
        scalars = case.scalars(np.float32, number)
        arguments = {name: np.float64(scalars[name]) for name in names}
        arrays[:] = update(arrays[0], grad, *arrays[1:], **arguments)
        return arrays[0]

    return step


def drift(case: Case) -> dict[str, float]:
    """Quantiles of the distance between the two, in units in the last place of float32.

    Each has gradients of its own, at where it is itself: what is lost once is not set right.
    """
    walks = fused(case), exact(case)
    with torch.no_grad(), np.errstate(all="ignore"):
        for number in range(1, STEPS + 1):
            got, expected = (walk(number) for walk in walks)
    units = np.spacing(np.maximum(np.abs(expected), SMALLEST).astype(np.float32))
    distances = np.abs(got.astype(np.float64) - expected) / units
    return {name: float(np.quantile(distances, share)) for name, share in QUANTILES.items()}


def further(case: Case) -> str:
    """Return a message for a rule that drifts further than recorded, or ""."""
    saved_drift, measured_drift = json.loads(DRIFTS.read_text())[case.rule.name], drift(case)
    is_close = all(measured_drift[name] <= 2 * saved_drift[name] for name in QUANTILES)
    return "" if is_close else f"{case.rule.name}: {measured_drift}, not {saved_drift}"


@pytest.mark.slow
@pytest.mark.timeout(1500)
@by_rule([case for case in FIRST if case.rule.name in KINDS])
def test_float32_drifts_no_further_than_recorded(case: Case) -> None:
    assert further(case) == ""


def test_every_rule_has_a_recorded_drift() -> None:
    saved_drift = json.loads(DRIFTS.read_text())
    assert saved_drift.keys() == {case.rule.name for case in FIRST}
    assert all(quantiles.keys() == QUANTILES.keys() for quantiles in saved_drift.values())


def check() -> None:
    failures = list(filter(None, map(further, FIRST)))
    sys.exit("\n".join(failures) or None)


def main(*names: str) -> None:
    table = json.loads(DRIFTS.read_text()) if names else {}
    for case in FIRST:
        if not names or case.rule.name in names:
            drifts = drift(case)
            table[case.rule.name] = {name: round(share, 3) for name, share in drifts.items()}
            sys.stdout.write(f"{case.rule.name} {table[case.rule.name]}\n")
            sys.stdout.flush()
    DRIFTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    check() if sys.argv[1:] == ["--long"] else main(*sys.argv[1:])
