"""OpenSeq2Seq's loss scalers: its recorded bits, random overflows, defects, state and graphs."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from golden_files import Case
from openseq2seq_goldens import assert_bits, by_case
from openseq2seq_small import make_step
from thalweg import IndexedSlices, Variable, _graph
from thalweg._base.scalars import log, power
from thalweg._core.atomic_section import run
from thalweg.errors import CheckpointMismatchError, FailedPreconditionError
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler

INF, NAN = math.inf, math.nan
ALGORITHMS = ["Backoff", "LogMax"]
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def check(state: dict[str, Any], expected_state: dict[str, Any], note: Any) -> None:
    for name, value in expected_state.items():
        if name == "iteration":
            assert int(state[name]) == value
        else:
            assert_bits(state[name], value, f"{name} after {note}")


# Recorded numbers


@pytest.mark.one_in(3)
@by_case("scaler/")
def test_states_have_the_recorded_bits(case: Case) -> None:
    scaler = AutomaticLossScaler(case["algorithm"], case["params"], as_shipped=True)
    first, *records = case["expected"]
    check(scaler.state_dict(), first, "nothing")
    for (has_nan, amax, repeat), record in zip(case["events"], records, strict=True):
        for _ in range(repeat):
            scaler.update_op(has_nan, float(amax))
        check(scaler.state_dict(), record, (has_nan, amax))


@pytest.mark.one_in(3)
@by_case("scaler/")
def test_states_updated_by_tensors_have_the_recorded_bits(case: Case) -> None:
    """But for logarithms and powers, which are computed in float64 there and rounded once."""
    scaler = AutomaticLossScaler(case["algorithm"], case["params"], as_shipped=True)
    for (has_nan, amax, repeat), record in zip(case["events"], case["expected"][1:], strict=True):
        arguments = torch.tensor(has_nan), torch.tensor(float(amax), dtype=torch.float64)
        for _ in range(repeat):
            run(scaler.scaler.decide(*arguments).calls)
        if case["algorithm"].strip().lower() == "backoff":
            check(scaler.state_dict(), record, (has_nan, amax))
            continue
        for name, value in scaler.state_dict().items():
            expected = np.float64(record[name])
            np.testing.assert_allclose(value.item(), expected, rtol=2e-6, atol=1e-9, err_msg=name)


@pytest.mark.one_in(3)
@by_case("scaler/")
def test_session_states_have_the_recorded_bits(case: Case) -> None:
    events = [(*event[:2], event[2]) for event in case["events"]][:12]
    with _graph.Graph().as_default(), _graph.Session() as session:
        scaler = AutomaticLossScaler(case["algorithm"], case["params"], as_shipped=True)
        has_nan, amax = _graph.placeholder(torch.bool, ()), _graph.placeholder(torch.float32, ())
        update = scaler.update_op(has_nan, amax)
        session.run(_graph.global_variables_initializer())
        check(session.run(scaler.variables), case["expected"][0], "nothing")
        for event, record in zip(events, case["expected"][1:], strict=False):
            for _ in range(event[2]):
                session.run(update, {has_nan: event[0], amax: float(event[1])})
            check(session.run(scaler.variables), record, event)


@by_case("check_grads/")
def test_check_grads_equals_the_recording(case: Case) -> None:
    gradients = [
        None if grad is None else torch.tensor([float(x) for x in grad]) for grad in case["grads"]
    ]
    has_nan, amax = AutomaticLossScaler.check_grads([(grad, None) for grad in gradients])
    assert (has_nan.dtype, amax.dtype, has_nan.shape, amax.shape) == (
        torch.bool, torch.float32, (), (),
    )  # fmt: skip
    assert has_nan.item() == case["expected"]["has_nan"]
    expected = case["expected"]["amax"]
    np.testing.assert_equal(amax.item(), NAN if expected == "unspecified" else float(expected))


@by_case("error/scaler_int", "error/scaler_unknown_param", "error/logmax", "error/backoff")
def test_invalid_arguments_raise_recorded_errors(case: Case) -> None:
    with pytest.raises(ValueError, match=case["expected"]["mentions"][0]):
        AutomaticLossScaler(**case["kwargs"])


# Random overflows, against the algorithms written down once more

F = np.float32


def clamped(scale: Any, params: dict[str, Any]) -> Any:
    return max(min(scale, F(params["scale_max"])), F(params["scale_min"]))


def backoff(
    params: dict[str, Any], events: list[tuple[bool, Any]], as_shipped: bool
) -> Iterator[Any]:
    scale, last_change = F(params["scale_max"]), -1
    for i, (has_nan, amax) in enumerate(events):
        if has_nan or np.isinf(amax):
            scale, last_change = clamped(scale * (F(1) / F(params["step_factor"])), params), i
        elif (i - last_change) % params["step_window"] == 0:
            scale = clamped(scale * F(params["step_factor"]), params)
        yield scale


def log_max(
    params: dict[str, Any], events: list[tuple[bool, Any]], as_shipped: bool
) -> Iterator[Any]:
    """With `as_shipped` the defects, without it what was meant, as `LogMaxScaler` tells."""
    highest = F(params["log_max"])
    overflown = power(F(2), highest) if as_shipped else highest
    ceiling = F(16) if as_shipped else highest
    scale = F(1)
    beta1, beta2 = F(params["beta1"]), F(params["beta2"])
    complement1, complement2 = F(1 - params["beta1"]), F(1 - params["beta2"])
    mean = slow = square = F(0)
    weight1 = weight2 = F(1)
    for has_nan, amax in events:
        is_overflow = has_nan or np.isinf(amax)
        if amax == 0 and not is_overflow and not as_shipped:
            yield scale
            continue
        x = overflown if is_overflow else log(amax) * (F(1) / log(F(2)))
        mean, slow = beta1 * mean + complement1 * x, beta2 * slow + complement2 * x
        square = beta2 * square + complement2 * x * x
        weight1, weight2 = weight1 * beta1, weight2 * beta2
        slow_mean = slow / (F(1) - weight2)
        variance = square / (F(1) - weight2) - slow_mean * slow_mean
        sigma = np.sqrt(max(variance, F(0)))
        room = ceiling - mean / (F(1) - weight1) - sigma * F(params["overflow_std_dev"])
        scale = clamped(power(F(2), room), params)
        yield scale


ORACLES = {"Backoff": backoff, "LogMax": log_max}


def params_of(algorithm: str, rng: np.random.Generator) -> dict[str, Any]:
    lowest, highest = float(2.0 ** rng.integers(-3, 3)), float(2.0 ** rng.integers(4, 24))
    bounds = {"scale_min": lowest, "scale_max": highest}
    if algorithm == "Backoff":
        window = int(rng.integers(1, 40))
        return {**bounds, "step_factor": float(rng.choice([2, 4, 1.5, 3])), "step_window": window}
    betas = {"beta1": float(rng.uniform(0.5, 0.999)), "beta2": float(rng.uniform(0.5, 0.9999))}
    noise = {"log_max": float(rng.choice([2, 4, 16])), "overflow_std_dev": rng.uniform(0.0, 4.0)}
    return {**bounds, **betas, **noise}


def events_of(rng: np.random.Generator, count: int) -> list[tuple[bool, Any]]:
    share, silent = rng.choice([0.0, 0.01, 0.1, 0.5, 1.0]), rng.choice([0.0, 0.0, 0.1])
    kinds = np.where(rng.random(count) < share, rng.integers(1, 4, count), 0)
    sizes = np.exp(rng.normal(-3, 4, count)).astype(F)
    sizes[rng.random(count) < silent] = 0
    events = {1: (True, F(NAN)), 2: (False, F(INF)), 3: (True, F(INF))}
    return [events.get(int(kind), (False, size)) for kind, size in zip(kinds, sizes, strict=True)]


def by_updates(scaler: AutomaticLossScaler, events: list[tuple[bool, Any]]) -> Iterator[Any]:
    for event in events:
        scaler.update_op(*event)
        yield scaler.scaler.loss_scale.item()


def by_formula(scaler: AutomaticLossScaler, events: list[tuple[bool, Any]]) -> Iterator[Any]:
    """Yield the scales without reading variables."""
    policy, state = scaler.scaler._policy(), scaler.scaler._initial()
    for has_nan, amax in events:
        state |= policy(state, amax, has_nan or math.isinf(amax))
        yield state["scale"]


def follow_patterns(algorithm: str, follow: Any, as_shipped: bool, patterns: range) -> None:
    for seed in patterns:
        rng = np.random.default_rng(seed)
        params, events = params_of(algorithm, rng), events_of(rng, 200)
        scaler = AutomaticLossScaler(algorithm, params, as_shipped=as_shipped)
        with np.errstate(all="ignore"):
            expected = list(ORACLES[algorithm](params, events, as_shipped))
            got = list(follow(scaler, events))
        assert np.array_equal(got, expected, equal_nan=True), f"pattern {seed}: {params}"


as_shipped_or_meant = pytest.mark.parametrize("as_shipped", [True, False], ids=["shipped", "meant"])


@pytest.mark.one_in(3)
@as_shipped_or_meant
@each_algorithm
@pytest.mark.parametrize("follow", [by_updates, by_formula])
def test_overflow_patterns_give_the_algorithms_scales(
    algorithm: str, follow: Any, as_shipped: bool
) -> None:
    follow_patterns(algorithm, follow, as_shipped, range(25))


@pytest.mark.slow
@as_shipped_or_meant
@each_algorithm
def test_many_overflow_patterns_give_the_algorithms_scales(
    algorithm: str, as_shipped: bool
) -> None:
    follow_patterns(algorithm, by_formula, as_shipped, range(300))


# Defects of OpenSeq2Seq, and what is done instead


@each_algorithm
@pytest.mark.parametrize("warm", [0, 5])
def test_zero_gradients_do_not_change_the_statistics(algorithm: str, warm: int) -> None:
    scaler = AutomaticLossScaler(algorithm)
    for _ in range(warm):
        scaler.update_op(False, 0.5)
    state_before = scaler.state_dict()
    scaler.update_op(False, 0.0)
    state_after = scaler.state_dict()
    assert state_after.pop("iteration") == state_before.pop("iteration") + 1
    assert state_after == state_before


def test_zero_gradients_as_shipped_give_nan_for_good() -> None:
    scaler = AutomaticLossScaler("LogMax", as_shipped=True)
    for amax in (1.0, 0.0, 1.0, 1.0):
        scaler.update_op(False, amax)
    assert math.isnan(scaler.loss_scale)


@pytest.mark.parametrize(("as_shipped", "low"), [(True, 500), (False, 0)])
def test_single_overflow_does_not_pin_the_scale(as_shipped: bool, low: int) -> None:
    scaler = AutomaticLossScaler("LogMax", as_shipped=as_shipped)
    for _ in range(50):
        scaler.update_op(False, 0.001)
    scaler.update_op(True, NAN)
    scales = []
    for _ in range(500):
        scaler.update_op(False, 0.001)
        scales.append(scaler.loss_scale.item())
    assert scales.count(1.0) == low


@pytest.mark.parametrize(("as_shipped", "scale"), [(True, 2.0**12), (False, 2.0**6)])
def test_log_max_is_the_ceiling(as_shipped: bool, scale: float) -> None:
    scaler = AutomaticLossScaler("LogMax", {"log_max": 10.0}, as_shipped=as_shipped)
    scaler.update_op(False, 16.0)
    assert scaler.loss_scale.item() == pytest.approx(scale, rel=1e-3)


@each_algorithm
@pytest.mark.parametrize("amax", [NAN, INF, 1e300])
def test_values_beyond_float32_are_an_overflow(algorithm: str, amax: float) -> None:
    scaler, twin = AutomaticLossScaler(algorithm), AutomaticLossScaler(algorithm)
    scaler.update_op(False, amax)
    twin.update_op(True, 1.0)
    assert scaler.state_dict() == twin.state_dict()


def test_updates_are_counted() -> None:
    scaler = AutomaticLossScaler()
    counts = [scaler.update_op(torch.tensor(False), torch.tensor(1.0)) for _ in range(3)]
    assert [int(count) for count in counts] == [1, 2, 3]
    assert counts[0].dtype == torch.int64


def test_the_scale_is_a_live_variable() -> None:
    scaler = AutomaticLossScaler()
    scale = scaler.loss_scale
    scaler.update_op(True, 1.0)
    assert scale.item() == 2.0**13


# Gradients


def test_check_grads_uses_undeduplicated_slice_values() -> None:
    slices = IndexedSlices(torch.tensor([[3.0], [-2.0]]), torch.tensor([1, 1]), (4, 1))
    sparse = IndexedSlices(torch.tensor([[1.0], [-2.5]]), torch.tensor([0, 0]), (4, 1)).to_sparse()
    check_grads = AutomaticLossScaler.check_grads
    assert check_grads([(slices, None), (sparse, None)])[1] == 3.0
    assert check_grads([(sparse, None)])[1] == 2.5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_of_all_dtypes_are_checked(dtype: torch.dtype) -> None:
    grads = [(torch.tensor([1.0, -8.0]).to(dtype), None), (torch.zeros(0), None)]
    assert AutomaticLossScaler.check_grads(grads)[1] == 8.0
    has_nan, amax = AutomaticLossScaler.check_grads([(torch.tensor([INF, NAN]).to(dtype), None)])
    assert has_nan
    assert amax.isnan()


def test_gradients_without_elements_have_no_magnitude() -> None:
    has_nan, amax = AutomaticLossScaler.check_grads([(torch.zeros(0, 3), None)])
    assert (bool(has_nan), float(amax)) == (False, 0.0)


@pytest.mark.parametrize("grads", [[], [(None, None)]])
def test_check_grads_without_gradients_raises(grads: Any) -> None:
    with pytest.raises(ValueError, match="No gradients"):
        AutomaticLossScaler.check_grads(grads)


def test_a_graph_checks_its_gradients() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        table = _graph.Variable([[1.0], [2.0]], name="table")
        w, x = _graph.Variable([1.0, -3.0], name="w"), _graph.placeholder(torch.float32, ())
        rows = _graph.embedding_lookup(table, [1, 1])
        loss = (rows * x).sum() + (w * w).sum()
        scaler = AutomaticLossScaler("Backoff", {"scale_max": 8.0})
        pairs = list(zip(_graph.gradients(loss, [table, w]), [table, w], strict=True))
        has_nan, amax = scaler.check_grads([*pairs, (None, w)])
        update = scaler.update_op(has_nan, amax)
        session.run(_graph.global_variables_initializer())
        assert session.run([has_nan, amax], {x: 1.0}) == [False, 6.0]
        assert session.run([has_nan, amax], {x: -9.0}) == [False, 9.0]
        assert session.run(update, {x: INF}) == 1
        assert session.run(scaler.loss_scale) == 4.0
        assert session.run(has_nan, {x: NAN})


# Errors and state


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"algorithm": "foo"}, "Unknown scaling algorithm: foo. There are: backoff, logmax."),
        ({"algorithm": "LogMax", "params": {"beta1": 1}}, "beta1 has to be of type float, not 1"),
        ({"params": {"beta1": 0.9}}, "Unknown parameter: beta1"),
        ({"params": {"step_window": 2.0}}, "step_window has to be of type int, not 2.0"),
        ({"params": {"step_window": 0}}, "step_window"),
        ({"params": [2000]}, "parameters of BackoffScaler must be a dict, not [2000]"),
    ],
)
def test_invalid_scaler_arguments_raise(kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        AutomaticLossScaler(**kwargs)


@pytest.mark.parametrize("name", ["backoff", " LOGMAX ", "BackOff"])
def test_algorithm_names_ignore_case_and_spaces(name: str) -> None:
    class_name = type(AutomaticLossScaler(name).scaler).__name__
    assert class_name.lower() == f"{name.strip().lower()}scaler"


@each_algorithm
@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((False, torch.ones(2)), "amax must be a scalar"),
        ((False, "1"), "amax must be a number"),
        ((None, 1.0), "has_nan must be a number"),
    ],
)
def test_a_refused_update_changes_nothing(algorithm: str, args: Any, text: str) -> None:
    scaler = AutomaticLossScaler(algorithm)
    state_before = scaler.state_dict()
    with pytest.raises(ValueError, match=text):
        scaler.update_op(*args)
    assert scaler.state_dict() == state_before


def trained(algorithm: str) -> AutomaticLossScaler:
    scaler = AutomaticLossScaler(algorithm)
    for amax in (1.0, INF, 0.01, 3.0):
        scaler.update_op(False, amax)
    return scaler


def loaded(scaler: AutomaticLossScaler) -> AutomaticLossScaler:
    new_scaler = AutomaticLossScaler(type(scaler.scaler).__name__.removesuffix("Scaler"))
    new_scaler.load_state_dict(scaler.state_dict())
    return new_scaler


@each_algorithm
@pytest.mark.parametrize(
    "duplicate", [loaded, copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))]
)
def test_copied_scaler_continues_equally(algorithm: str, duplicate: Any) -> None:
    scaler = trained(algorithm)
    duplicate_scaler = duplicate(scaler)
    assert duplicate_scaler.state_dict() == scaler.state_dict()
    for amax in (INF, 2.0):
        scaler.update_op(False, amax)
    assert duplicate_scaler.state_dict() != scaler.state_dict()
    for amax in (INF, 2.0):
        duplicate_scaler.update_op(False, amax)
    assert duplicate_scaler.state_dict() == scaler.state_dict()


@each_algorithm
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"scale": torch.ones(2)}, "'scale' is float32 of shape (2,), not float32 of shape ()"),
        ({"iteration": torch.tensor(1.0)}, "'iteration' is float32 of shape (), not int64"),
        ({"foo": torch.tensor(1.0)}, "'foo' belongs to nothing here"),
        ({"scale": None}, "'scale' is missing"),
    ],
)
def test_mismatched_state_raises(algorithm: str, changes: Any, text: str) -> None:
    state = {**trained(algorithm).state_dict(), **changes}
    state = {name: value for name, value in state.items() if value is not None}
    scaler = AutomaticLossScaler(algorithm)
    state_before = scaler.state_dict()
    with pytest.raises(CheckpointMismatchError, match=re.escape(text)) as excinfo:
        scaler.load_state_dict(state)
    assert str(excinfo.value).endswith("Nothing was loaded.")
    assert scaler.state_dict() == state_before


def test_the_state_of_a_graph_is_in_its_sessions() -> None:
    with _graph.Graph().as_default() as graph:
        scaler = AutomaticLossScaler()
        assert set(scaler.variables.values()) <= set(_graph.global_variables())
        assert not _graph.trainable_variables()
        for call in (scaler.state_dict, lambda: scaler.load_state_dict({})):
            with pytest.raises(FailedPreconditionError, match="session"):
                call()
    assert scaler.loss_scale.graph is graph


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "gradient_transforms",
    [{"clip_gradients": 1.0}, {"larc_params": {"larc_eta": 0.001}}, {}],
    ids=["clipping", "larc", "plain"],
)
def test_overflow_by_a_loss_scale_below_1_is_detected(
    dtype: torch.dtype, gradient_transforms: dict[str, Any]
) -> None:
    w = Variable(torch.ones(4, dtype=dtype), name="w")
    scaling = {"scale_max": 1.0, "scale_min": 2.0**-10}
    step = make_step(
        [w], loss_scaling="Backoff", loss_scaling_params=scaling, **gradient_transforms
    )
    for bad in (float("inf"), 3e38, 3e38):  # the second time the scale is 1/2
        grad = torch.zeros(4, dtype=dtype)
        grad[0] = bad
        assert step.apply_gradients([grad]) is False
        assert w.detach().float().tolist() == [1.0] * 4
    assert float(step.loss_scale) == 0.125
