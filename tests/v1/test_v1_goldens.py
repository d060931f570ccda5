"""The v1 optimizers give TensorFlow 1's recorded numbers, to the bit but for the listed exceptions.

Each case is replayed in eager mode by both engines, and through a graph and a session by the fused
one. Cases with callables are replayed in eager mode alone: a graph calls them once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import golden_files
import replay
import v1_replay
from rulebook import slow_unless

CASES = v1_replay.cases()
TRAJECTORIES = [id for id in CASES if CASES[id]["kind"] == "trajectory"]
MINIMIZED = [id for id in CASES if CASES[id]["kind"] == "minimize"]
DECAYS = [id for id in CASES if CASES[id]["kind"] == "v1_decay"]
RUNS = [("eager", "reference"), ("eager", "cpu"), ("graph", "cpu")]

# Part of a case's id -> bound of one step from TensorFlow's own state, in ulp of the largest
# element of the tensor before and after it.
RSQRT = 4  # TensorFlow's dense kernels take an approximate rsqrt for whole packets of float32
POW = 2  # pow() of the C library against that of Eigen
BOUNDS = {
    "v1/Adagrad/default/dense/f32": RSQRT,
    "v1/Adagrad/init/dense/f32": RSQRT,
    "v1/Adagrad/callable/dense/f32": RSQRT,
    "zero_grad_AdagradOptimizer": RSQRT,
    "v1/Adadelta/default/dense/f32": RSQRT,
    "v1/Adadelta/custom/dense/f32": RSQRT,
    "v1/Adadelta/callable/dense/f32": RSQRT,
    "zero_grad_AdadeltaOptimizer": RSQRT,
    "v1/ProximalAdagrad/plain/dense/f32": RSQRT,
    "v1/ProximalAdagrad/l1/dense/f32": RSQRT,
    "v1/ProximalAdagrad/l1l2/dense/f32": RSQRT,
    "v1/Ftrl/power/dense": POW,
    "v1/Ftrl/power/sparse/f64": POW,
    "v1/Ftrl/all/dense": POW,
    "v1/Ftrl/all/sparse/f64": 4 * POW,  # the difference of two powers, over a small linear
}
HALF = 1e-2  # TensorFlow rounds every operation in half precision, the library each stored value
GRADIENTS = 8  # ulp of the largest element: torch adds up products in another order


bound_of = partial(golden_files.bound_of, BOUNDS)


def scale_of(value: replay.Value) -> Any:
    """The largest magnitude among a tensor's elements before and after the step."""
    return np.abs(np.nan_to_num([value.expected, value.previous])).max(initial=0)


def ulp_of(value: replay.Value) -> float:
    """The unit in the last place of that magnitude."""
    return float(np.spacing(value.got.dtype.type(scale_of(value))))


def check(case_id: str, value: replay.Value, tolerance: Any) -> None:
    """Elements may be apart by `tolerance`; a tolerance of None asks for the same bits."""
    got, expected = np.asarray(value.got), np.asarray(value.expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if tolerance is None:
        bad = replay.distances(got, expected) != 0
    else:
        bad = ~np.isclose(got, expected, rtol=0, atol=tolerance, equal_nan=True)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        ulps = replay.distances(got, expected)[index]
        pair = f"got {float(got[index]).hex()}, recorded {float(expected[index]).hex()}"
        pytest.fail(f"{case_id}: {value.name} at {index}: {pair}, {ulps:.0f} ulp apart", False)


def every_run_of(cases: list[str]) -> Any:
    """Parametrizes a test with case, face and engine."""
    runs = [
        (case_id, face, engine)
        for case_id in cases
        for face, engine in RUNS
        if face == "eager" or not v1_replay.calls(CASES[case_id])
    ]
    return pytest.mark.parametrize(
        ("case_id", "face", "engine"),
        [slow_unless(golden_files.is_replayed(run[0], run[2]), *run) for run in runs],
    )


@pytest.mark.one_in(7)
@every_run_of([id for id in TRAJECTORIES if bound_of(id) is None and "/half/" not in id])
def test_trajectory_has_tensorflow_bits(case_id: str, face: str, engine: str) -> None:
    for value in v1_replay.replay(CASES[case_id], face, engine):
        check(case_id, value, None)


@pytest.mark.one_in(3)
@every_run_of([id for id in TRAJECTORIES if bound_of(id) is not None])
def test_every_step_is_within_its_bound(case_id: str, face: str, engine: str) -> None:
    for value in v1_replay.replay(CASES[case_id], face, engine, resume=True):
        if value.got.dtype.kind != "f":
            check(case_id, value, None)
            continue
        factor = 2 if "accum_update" in value.name else 1  # a square doubles the distance
        check(case_id, value, factor * (bound_of(case_id) or 0) * ulp_of(value))


@pytest.mark.one_in(3)
@every_run_of([id for id in TRAJECTORIES if bound_of(id) is not None])
def test_bounded_trajectory_does_not_drift(case_id: str, face: str, engine: str) -> None:
    for value in v1_replay.replay(CASES[case_id], face, engine):
        check(case_id, value, 1e-5 * scale_of(value))


@every_run_of([id for id in TRAJECTORIES if "/half/" in id])
def test_half_precision_is_close(case_id: str, face: str, engine: str) -> None:
    for value in v1_replay.replay(CASES[case_id], face, engine):
        check(case_id, value, HALF * scale_of(value))


@every_run_of(MINIMIZED)
def test_minimize_by_torch_gradients_is_close(case_id: str, face: str, engine: str) -> None:
    for value in v1_replay.minimized(CASES[case_id], face, engine):
        check(case_id, value, GRADIENTS * ulp_of(value))


@pytest.mark.parametrize("face", list(v1_replay.FACES))
@pytest.mark.parametrize("case_id", DECAYS)
def test_decay_has_tensorflow_bits(case_id: str, face: str) -> None:
    got, expected = v1_replay.decayed(CASES[case_id], face)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert replay.distances(got, expected).max() == 0


def test_every_recorded_case_is_tested() -> None:
    assert (len(TRAJECTORIES), len(MINIMIZED), len(DECAYS)) == (250, 12, 13)
    assert all(any(part in id for id in TRAJECTORIES) for part in BOUNDS)
