"""Gradients that are not finite: skipped by an adapting loss scale, let through by a static one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from bit_comparison import assert_same
from openseq2seq_steps import (
    DTYPES,
    LARGE,
    RULES,
    WAYS,
    Table,
    Training,
    assert_near,
    differing_names,
    each_dtype,
    each_rule,
    each_way,
    process_before,
    way,
)
from pairwise import cover_pairs
from rulebook import label
from thalweg import _graph
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import mp_regularizer_wrapper
from thalweg.v1 import train

__all__ = ["way"]

INF, NAN = math.inf, math.nan
# Whether variables are float32 or of 16 bits, the same steps are to be taken.
pytestmark = pytest.mark.filterwarnings('ignore:dtype is "mixed", but nothing')

SCALE = 16.0
SCALINGS: dict[str, dict[str, Any]] = {
    "Backoff": {"loss_scaling": "Backoff", "loss_scaling_params": {"scale_max": SCALE}},
    "LogMax": {"loss_scaling": "LogMax", "loss_scaling_params": {"scale_max": SCALE}},
}
# "overflow" is finite, but is not once the loss is scaled.
BAD = ("nan", "inf", "-inf", "overflow")
PLACES = (("head", 0), ("head", 8), ("head", 16), ("norm", 1))
BORDERS = (("body", 65_535), ("body", 65_536), ("body", 70_000))

each_scaling = pytest.mark.parametrize("scaling", SCALINGS)
each_bad = pytest.mark.parametrize("bad", BAD)


def each_pair_of(**columns: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize a test with rules, dtypes, scalings and others, so that each pair occurs.

    Args:
        columns: The values of each further argument; "way" is the fixture.
    """
    columns = {"rule": RULES, "dtype": DTYPES, "scaling": SCALINGS, **columns}
    rows = cover_pairs(product(*columns.values()))
    indirect = ["way"] if "way" in columns else []
    return pytest.mark.parametrize(tuple(columns), rows, ids=label, indirect=indirect)


def bad_value(bad: str, dtype: torch.dtype) -> float:
    return torch.finfo(dtype).max if bad == "overflow" else float(bad)


class Spoiled:
    """Puts a value into a gradient, and what was there back."""

    def __init__(self, gradient: torch.Tensor, place: Any, value: float) -> None:
        self.gradient, self.place, self.value = gradient, place, value

    def __enter__(self) -> None:
        self.good_values = self.gradient[self.place].clone()
        self.gradient[self.place] = self.value

    def __exit__(self, *error: object) -> None:
        self.gradient[self.place] = self.good_values


# Scales that adapt


def assert_skips(
    training: Any, scaling: str, gradient: torch.Tensor, place: Any, value: float
) -> None:
    state_before, scales = training.state(), training.scaler_state()
    with Spoiled(gradient, place, value):
        training.step()
    assert training.step.was_applied is False
    assert differing_names(state_before, training.state()) == []
    scaler = AutomaticLossScaler(scaling, SCALINGS[scaling]["loss_scaling_params"])
    scaler.load_state_dict(scales)
    scaler.update_op(False, INF)
    assert differing_names(training.scaler_state(), scaler.state_dict()) == []
    if scaling == "Backoff":
        assert training.step.loss_scaler.loss_scale.item() == scales["scale"].item() / 2
    training.step.loss_scaler.load_state_dict(scales)


def assert_skips_all(training: Any, scaling: str, bad: str, places: Any) -> None:
    training.step()
    training.step.loss_scaler.loss_scale.fill_(SCALE)
    for name, place in places:
        value = bad_value(bad, training.own[name].dtype)
        assert_skips(training, scaling, training.gradients[name], place, value)
    state_before = training.state()
    training.step()
    assert {*training.own, "global step"} <= set(differing_names(state_before, training.state()))


@pytest.mark.one_in(3)
@each_pair_of(bad=BAD, way=WAYS)
def test_step_with_nonfinite_gradient_is_skipped(
    rule: str, dtype: torch.dtype, bad: str, scaling: str, way: str
) -> None:
    assert_skips_all(Training(rule, dtype, **SCALINGS[scaling]), scaling, bad, PLACES)


@pytest.mark.one_in(3)
@each_way
@pytest.mark.parametrize("bad", ["nan", "-inf"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("rule", ["Adam", "NovoGrad"])
def test_nonfinite_gradient_is_detected_in_every_chunk(
    rule: str, dtype: torch.dtype, bad: str, way: str
) -> None:
    training = Training(rule, dtype, LARGE, **SCALINGS["Backoff"])
    assert_skips_all(training, "Backoff", bad, BORDERS)


@each_way
@each_rule
def test_a_first_step_may_be_skipped(rule: str, way: str) -> None:
    skipped, split = (Training(rule, torch.float16, **SCALINGS["Backoff"]) for _ in range(2))
    with Spoiled(skipped.gradients["head"], 16, INF):
        skipped.step()
    for training in (skipped, split):
        training.step.loss_scaler.loss_scale.fill_(SCALE)
        training.step()
    assert differing_names(skipped.state(), split.state()) == []


# Rows of tables


@each_pair_of(bad=BAD)
@pytest.mark.one_in(3)
def test_nonfinite_row_skips_the_step(
    rule: str, dtype: torch.dtype, bad: str, scaling: str
) -> None:
    training = Table(rule, dtype, **SCALINGS[scaling])
    training.step()
    training.step.loss_scaler.loss_scale.fill_(SCALE)
    for place in ((0, 0), (2, 3), (4, 4)):  # rows 3, 3 again, and 0
        assert_skips(training, scaling, training.factors, place, bad_value(bad, dtype))
    state_before = training.state()
    training.step()
    assert {"table", "global step"} <= set(differing_names(state_before, training.state()))


# Static scales


def saturated(master: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    highest = torch.finfo(dtype).max
    return master.clamp(-highest, highest).to(dtype)


@each_way
@each_bad
@each_dtype
@each_rule
@pytest.mark.one_in(3)
def test_static_scale_applies_nonfinite_gradients_to_masters(
    rule: str, dtype: torch.dtype, bad: str, way: str
) -> None:
    training = Training(rule, dtype, loss_scaling=SCALE)
    wide = Training(rule, torch.float32, dtype=torch.float32)
    for name, var in training.own.items():
        wide.own[name].assign(var.detach().float())
    for name, place in (("head", 0), ("head", 16), ("norm", 1)):
        value = bad_value(bad, training.own[name].dtype)
        spoiled = math.inf if bad == "overflow" else value
        with Spoiled(training.gradients[name], place, value):
            training.step()
        rounded(wide, training)
        with Spoiled(wide.gradients[name], place, spoiled):
            wide.step()
    assert training.step.global_step.item() == 3
    for name, var in training.own.items():
        master = training.step.optimizer.get_master(var)
        target = var if master is None else master
        assert_near({name: target.detach()}, {name: wide.own[name].detach()})
        if master is not None:
            copy = saturated(master.detach(), var.dtype)
            torch.testing.assert_close(var.detach(), copy, rtol=0, atol=0, equal_nan=True)
    assert not all(tensor.isfinite().all() for tensor in training.state().values())


def rounded(wide: Training, training: Training) -> None:
    """Give one training the gradients that another has in its dtypes, unscaled."""
    for name, var in training.own.items():
        wide.gradients[name] = (training.gradients[name] * SCALE).to(var.dtype).float() / SCALE


# Both ways of taking a step


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clip": {"clip_gradients": 0.5},
    "larc": {"larc_params": {"larc_eta": 0.002}},
    "lars": {"larc_params": {"larc_eta": 0.002, "larc_mode": "scale"}},
    "odd scale": {"loss_scaling_params": {"scale_max": 1000.0, "scale_min": 3.0}},
}


@pytest.mark.one_in(3)
@each_pair_of(options=OPTIONS)
def test_swept_and_split_steps_are_equal(
    rule: str,
    dtype: torch.dtype,
    options: str,
    scaling: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = {**SCALINGS[scaling], **OPTIONS[options]}
    swept, split = (Training(rule, dtype, **arguments) for _ in range(2))
    for factor in (1.0, 3.0, INF, 0.5, 0.0):
        for training in (swept, split):
            training.gradients["head"].mul_(2.0)[3] = factor
        swept.step()
        with monkeypatch.context() as context:
            process_before(context)
            split.step()
        assert split.step.was_applied == swept.step.was_applied == math.isfinite(factor)
        # NovoGrad divides by norms, which one way takes before gradients are rounded.
        units = 6 if rule == "NovoGrad" else 2
        assert_near(swept.state(), split.state(), units)
        assert_near(swept.scaler_state(), split.scaler_state())


class Counting(train.AdamOptimizer):
    """Adam of a user who wants to see the gradients of each step."""

    steps = 0

    def apply_gradients(self, *args: Any, **options: Any) -> Any:
        self.steps += 1
        return super().apply_gradients(*args, **options)


@each_dtype
def test_an_optimizer_that_overrides_apply_gradients_is_called(dtype: torch.dtype) -> None:
    swept, split = (Training(rule, dtype, **SCALINGS["Backoff"]) for rule in ("Adam", Counting))
    for factor in (1.0, INF, 2.0):
        for training in (swept, split):
            training.gradients["head"][3] = factor
            training.step()
    assert split.step.optimizer.optimizer.steps == 2
    assert_near(split.state(), swept.state())


def decay(weights: Any) -> Any:
    return 0.5 * weights.square().sum()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [{}, {"clip_gradients": 0.5}], ids=["plain", "clip"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_bad
def test_swept_and_split_steps_are_equal_with_penalties(
    bad: str, dtype: torch.dtype, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    swept, split = (Training("Adam", dtype, **{**SCALINGS["Backoff"], **options}) for _ in range(2))
    for training in (swept, split):
        mp_regularizer_wrapper(decay)(training.own["head"])
    for value in (1.0, bad_value(bad, dtype), 2.0):
        for training in (swept, split):
            training.gradients["head"][3] = value
        swept.step()
        with monkeypatch.context() as context:
            process_before(context)
            split.step()
        assert split.step.was_applied == swept.step.was_applied == (value in (1.0, 2.0))
        assert_near(swept.state(), split.state())
    assert swept.step.loss_scaler.loss_scale.item() == SCALE / 2


LARGEST = torch.finfo(torch.float32).max
NASTY: dict[str, tuple[list[float], list[float], dict[str, Any], bool]] = {
    # gradients of "head" and of "norm", options, whether the step is taken
    "largest": ([LARGEST / 2] * 3, [1.0], {}, True),
    "large squares": ([1e30, -1e30], [1.0], {"clip_gradients": 1.0}, True),
    "a norm too large": ([LARGEST / 2] * 17, [1.0], {"clip_gradients": 1.0}, True),
    "denormal": ([1e-40, -1e-45], [1e-44], {}, True),
    "zero": ([0.0], [0.0], {}, True),
    "zero, clipped": ([0.0], [0.0], {"clip_gradients": 1.0}, True),
    "clipped to zero": ([2.0, LARGEST / 4], [1.0], {"clip_gradients": 0.0}, True),
    "a negative bound": ([2.0, 3.0], [1.0], {"clip_gradients": -1.0, "as_shipped": True}, True),
    "an infinite bound": ([2.0, 3.0], [1.0], {"clip_gradients": INF}, False),
    "an unknown bound": ([2.0, 3.0], [1.0], {"clip_gradients": NAN, "as_shipped": True}, False),
    "infinite, clipped": ([2.0, INF], [1.0], {"clip_gradients": 1.0}, False),
    "infinite, clipped to zero": ([2.0, INF], [1.0], {"clip_gradients": 0.0}, False),
    "larc": ([2.0, INF], [1.0], {"larc_params": {"larc_eta": 1e-9}}, False),
    "larc of zero": ([0.0], [0.0], {"larc_params": {"larc_eta": 0.1}}, True),
    "larc of NaN": ([NAN], [1.0], {"larc_params": {"larc_eta": 0.1}}, False),
    "lars of zero": (
        [0.0], [0.0], {"larc_params": {"larc_eta": 0.1, "larc_mode": "scale"}}, True,
    ),
    "lars makes infinite": (
        [1e30, 1e-3], [1.0],
        {"larc_params": {"larc_eta": 0.1, "larc_mode": "scale", "min_update": 1e20}}, False,
    ),
    "lars of rate 0": (
        [1.0], [1.0],
        {"larc_params": {"larc_eta": 0.1}, "learning_rate_decay_fn": lambda step: 0.0}, True,
    ),
}  # fmt: skip


@pytest.mark.one_in(3)
@each_scaling
@pytest.mark.parametrize(("head", "norm", "options", "takes_step"), NASTY.values(), ids=NASTY)
def test_swept_and_split_overflow_decisions_are_equal(
    head: list[float],
    norm: list[float],
    options: dict[str, Any],
    takes_step: bool,
    scaling: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swept, split = (
        Training("SGD", torch.float32, **{**SCALINGS[scaling], **options}) for _ in range(2)
    )
    for training in (swept, split):
        training.step.loss_scaler.loss_scale.fill_(1.0)
        for name, values in (("head", head), ("norm", norm)):
            training.gradients[name].zero_()[: len(values)] = torch.tensor(values)
    swept.step()
    process_before(monkeypatch)
    split.step()
    assert (swept.step.was_applied, split.step.was_applied) == (takes_step, takes_step)
    assert_near(swept.state(), split.state())
    assert_near(swept.scaler_state(), split.scaler_state())


# Windows of several runs


def accumulating(runs: list[int], **options: Any) -> Training:
    """A training in which every third run makes an update; `runs[0]` counts them."""
    return Training(
        "Adam",
        torch.float16,
        iter_size=3,
        skip_update_ph=lambda: runs[0] % 3 != 2,
        on_horovod=True,
        **options,
    )


@pytest.mark.one_in(3)
@each_way
@each_scaling
@pytest.mark.parametrize("spoiled", [0, 1, 2], ids=["first run", "second run", "last run"])
@each_bad
def test_nonfinite_run_drops_its_accumulation_window(
    bad: str, spoiled: int, scaling: str, way: str
) -> None:
    runs = [0]
    training = accumulating(runs, **SCALINGS[scaling])
    for _ in range(3):
        training.step()
        runs[0] += 1
    state_before = training.state()
    training.step.loss_scaler.loss_scale.fill_(SCALE)
    for run in range(3):
        scales = training.scaler_state()
        value = bad_value(bad, torch.float16) if run == spoiled else 1.0
        with Spoiled(training.gradients["head"], 4, value):
            training.step()
        runs[0] += 1
        assert training.step.was_applied is False
        if run < 2:
            assert differing_names(scales, training.scaler_state()) == []
    assert differing_names(state_before, training.state()) == []
    assert not training.state()["sum of head"].any()
    assert training.step.loss_scaler.variables["iteration"] == 2
    if scaling == "Backoff":
        assert training.step.loss_scaler.loss_scale.item() == SCALE / 2
    for _ in range(3):
        training.step()
        runs[0] += 1
    assert training.step.global_step.item() == 2


@each_way
def test_accumulating_runs_change_only_the_sums(way: str) -> None:
    runs = [0]
    training = accumulating(runs, **SCALINGS["Backoff"])
    state_before = {name: var.detach().clone() for name, var in training.own.items()}
    training.step()
    state_once = training.state()
    training.step()
    twice = training.state()
    assert differing_names(state_once, twice) == ["sum of head", "sum of norm"]
    assert differing_names(state_before, {name: twice[name] for name in state_before}) == []
    gradient = (training.gradients["head"] * SCALE).half().float() / SCALE
    share = gradient * (1 / torch.tensor(3.0))  # as sessions divide by a constant
    assert_same([twice["sum of head"]], [share + share])


def test_nonfinite_session_run_drops_its_window() -> None:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable(torch.ones(3).half(), name="w")
        factor, skip = _graph.placeholder(torch.float32, ()), _graph.placeholder(torch.bool, ())
        op = optimize_loss(
            (w.float() * factor).sum(),
            "Momentum",
            {"momentum": 0.5},
            lambda step: 0.5,
            dtype="mixed",
            iter_size=2,
            skip_update_ph=skip,
            on_horovod=True,
            **SCALINGS["Backoff"],
        )
        session.run(_graph.global_variables_initializer())
        variables = [var for var in _graph.global_variables() if "Scaler" not in var.name]
        session.run(op, {factor: 1.0, skip: True})
        session.run(op, {factor: 1.0, skip: False})
        values_before = session.run(variables)
        session.run(op, {factor: INF, skip: True})
        session.run(op, {factor: 1.0, skip: False})
        assert all(map(np.array_equal, values_before, session.run(variables)))
        session.run(op, {factor: 1.0, skip: True})
        session.run(op, {factor: 1.0, skip: False})
        assert session.run(w).tolist() == [-0.25] * 3
