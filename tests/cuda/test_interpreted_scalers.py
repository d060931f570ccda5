"""Steps on which loss scalers decide where the gradients are, in Triton's interpreter."""

from __future__ import annotations

import contextlib
import gc
from functools import partial

import pytest
import torch

import thalweg
from loss_scaled import (
    BACKOFF,
    HALF,
    LARC,
    LOG_MAX,
    MAKERS,
    OVERFLOWS,
    SINGLE,
    Log,
    Training,
    computing,
    fresh,
    plain,
    trained,
)
from no_sync_device import waiting_for_nothing
from rulebook import assert_same
from thalweg import IndexedSlices
from thalweg.openseq2seq.optimizers import mp_wrapper
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.name_tables import OPTIMIZER_SUMMARIES
from thalweg.v1 import train

by_make = pytest.mark.parametrize("key", MAKERS)


def waiting(training):
    return waiting_for_nothing(host=training.step._rate.tensors, device=training.there())


@pytest.mark.one_in(2)
@by_make
def test_device_decisions_equal_host_decisions(key):
    expected_training = trained("cpu", fresh(key, BACKOFF))
    training = trained("cuda", fresh(key, BACKOFF))
    assert_same(training.written(), expected_training.written())
    assert list(map(bool, training.outcomes)) == expected_training.outcomes
    assert any(isinstance(overflow, torch.Tensor) for overflow in training.outcomes)
    assert all(isinstance(overflow, bool) for overflow in expected_training.outcomes)
    assert training.step.was_applied is expected_training.step.was_applied


@pytest.mark.one_in(2)
@by_make
def test_logarithmic_device_scaler_is_close_to_host(key):
    expected_training = trained("cpu", fresh(key, LOG_MAX))
    training = trained("cuda", fresh(key, LOG_MAX))
    for actual, expected in zip(training.written(), expected_training.written(), strict=True):
        torch.testing.assert_close(actual.detach(), expected.detach(), rtol=1e-3, atol=1e-6)
    assert list(map(bool, training.outcomes)) == expected_training.outcomes


@pytest.mark.one_in(2)
@by_make
@pytest.mark.parametrize("scaling", [BACKOFF, LOG_MAX], ids=["Backoff", "LogMax"])
def test_device_decision_does_not_synchronize(key, scaling):
    trained("cuda", fresh(key, scaling), waiting)


@pytest.mark.parametrize("clips", [None, 1e30])
def test_unscaling_overflow_skips_the_step(clips):
    def made(engine):
        params = {"scale_min": 0.25, "scale_max": 0.5}
        training = Training(
            (SINGLE, SINGLE), loss_scaling="Backoff", loss_scaling_params=params,
            clip_gradients=clips,
        )  # fmt: skip
        with computing(engine):
            for largest in (1e38, 3e38, 1.0, 1.2e38, 3e37):
                training.take(largest)
        return training

    expected_training, gpu_training = made("cpu"), made("cuda")
    assert_same(gpu_training.written(), expected_training.written())
    assert list(map(bool, gpu_training.outcomes)) == expected_training.outcomes
    assert not all(expected_training.outcomes)


def test_host_scaler_continues_device_state():
    def made(engine):
        with computing(engine):
            training = Training((SINGLE, HALF), **BACKOFF)
            table, _ = training.variables
            for number, overflow in enumerate(OVERFLOWS):
                gradients = training.gradients(overflow)
                if number in (3, 6):
                    gradients[0] = IndexedSlices(gradients[0][:2], torch.tensor([1, 1]), (5, 7))
                table.constraint = (lambda value: value.clamp(-1, 1)) if number == 4 else None
                training.outcomes.append(training.step.apply_gradients(gradients))
        return training

    expected_training, gpu_training = made("cpu"), made("cuda")
    assert_same(gpu_training.written(), expected_training.written())
    kinds = [isinstance(overflow, torch.Tensor) for overflow in gpu_training.outcomes]
    assert kinds == [number not in (3, 4, 6) for number in range(len(OVERFLOWS))]


def test_overflow_is_found_before_row_constraints():
    def made(engine):
        with computing(engine):
            training = Training((HALF, HALF), **BACKOFF)
            training.variables[0].constraint = torch.abs
            gradients = training.gradients(float("inf"))
            gradients[0] = IndexedSlices(gradients[0][:2], torch.tensor([1, 1]), (5, 7))
            assert training.step.apply_gradients(gradients) is False
        return training.written()

    assert_same(made("cuda"), made("cpu"))


def test_unscaled_steps_continue_device_counts():
    def made(engine, waiting=None):
        with computing(engine):
            var, step = (
                torch.ones(9).requires_grad_(),
                thalweg.Variable(0, dtype=torch.int64, trainable=False),
            )
            inner = train.AdamOptimizer(0.1)
            outer = train.experimental.MixedPrecisionLossScaleOptimizer(inner, "dynamic")
            for number in range(9):
                optimizer = outer if number < 3 else inner
                tensors = [*inner.variables(), step]
                is_free = waiting is None or number in (0, 1, 3)
                with contextlib.nullcontext() if is_free else waiting(device=tensors):
                    optimizer.apply_gradients([(torch.full((9,), 0.1), var)], step)
        return plain([var, step, *inner.variables()])

    assert_same(made("cuda"), made("cpu"))
    made("cuda", waiting_for_nothing)


def test_global_step_view_keeps_its_memory():
    with computing("cuda"):
        counts, var = torch.zeros(2, dtype=torch.int64), torch.ones(5).requires_grad_()
        optimizer = train.experimental.MixedPrecisionLossScaleOptimizer(
            train.GradientDescentOptimizer(0.1), "dynamic"
        )
        for value in (1.0, float("inf"), 1.0):
            optimizer.apply_gradients([(torch.full((5,), value), var)], counts[1])
    assert counts.tolist() == [0, 2]


def test_learning_rate_policy_reads_a_host_variable():
    def policy(step):
        seen_steps.append((type(step), step.name, int(step.read_value())))
        return 0.1 / (int(step) + 1)

    seen_steps = []
    training = trained("cuda", partial(Training, (HALF, HALF), policy=policy, **BACKOFF))
    assert {kind for kind, _, _ in seen_steps} == {thalweg.Variable}
    assert {name for _, name, _ in seen_steps} == {training.step.global_step.name}
    assert [count for *_, count in seen_steps[:5]] == [0, 0, 1, 1, 2]


def test_step_returns_a_separate_tensor():
    training = trained("cuda", partial(Training, (HALF, HALF), **BACKOFF))
    training.outcomes[-1].zero_()
    assert training.step.was_applied


def test_an_assigned_step_count_is_used():
    def made(engine):
        with computing(engine):
            training = Training((HALF, HALF), **BACKOFF)
            for number, overflow in enumerate(OVERFLOWS):
                if number == 5:
                    training.step.global_step.assign(40)
                training.take(overflow)
        return training

    expected_training, gpu_training = made("cpu"), made("cuda")
    assert_same(gpu_training.written(), expected_training.written())
    assert gpu_training.step.global_step.item() > 40


def test_state_goes_from_a_device_to_the_host_and_back():
    saved_run = trained("cuda", partial(Training, (HALF, HALF), **BACKOFF))
    trainings = [Training((HALF, HALF), **BACKOFF) for _ in range(2)]
    for engine, other_run in zip(("cpu", "cuda"), trainings, strict=True):
        with torch.no_grad():
            for var_copy, var in zip(other_run.variables, saved_run.variables, strict=True):
                var_copy.copy_(var)
        other_run.step.load_state_dict(saved_run.step.state_dict())
        with computing(engine):
            for overflow in OVERFLOWS:
                other_run.take(overflow)
    assert_same(trainings[1].written(), trainings[0].written())


# fmt: off
SUMMARISED = {
    "clips": {**BACKOFF, "clip_gradients": 0.5},
    "larc": {**BACKOFF, "larc_params": LARC},
    "static scale": {
        "loss_scaling": 8.0, "clip_gradients": 0.5,
        "optimizer": "Momentum", "params": {"momentum": 0.9},
    },
}
# fmt: on
by_summarised = pytest.mark.parametrize("options", SUMMARISED.values(), ids=list(SUMMARISED))


def summarised(engine, options, waiting=None):
    log = Log()
    make = partial(
        Training, (HALF, SINGLE), summaries=OPTIMIZER_SUMMARIES, summary_writer=log, **options
    )
    return trained(engine, make, waiting), log


@by_summarised
def test_summaries_arrive_a_step_later(options):
    _, expected_log = summarised("cpu", options)
    training, log = summarised("cuda", options)
    count = len(expected_log.records) // len(OVERFLOWS)
    assert len(log.records) == len(expected_log.records) - count
    for _ in range(2):
        training.step.flush()
    for (step, tag, value), (other_step, name, expected) in zip(
        log.plain(), expected_log.plain(), strict=True
    ):
        assert (step, tag) == (other_step, name)
        torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)


@by_summarised
def test_device_summaries_do_not_synchronize(options):
    summarised("cuda", options, waiting)


def test_summaries_of_the_last_step_are_not_lost():
    training, log = summarised("cuda", SUMMARISED["clips"])
    count_before = len(log.records)
    del training
    gc.collect()
    assert len(log.records) > count_before


def test_failing_writer_loses_summaries_of_one_step():
    class Failing(Log):
        def add_scalar(self, tag, value, step):
            if step == 1:
                raise OSError("no space")
            super().add_scalar(tag, value, step)

    log = Failing()
    with computing("cuda"):
        training = Training((SINGLE, SINGLE), summary_writer=log, **BACKOFF)
        training.take(None)
        training.take(None)
        with pytest.raises(OSError, match="no space") as error_info:
            training.take(None)
        assert "were not written" in error_info.value.__notes__[-1]
        training.take(None)
    training.step.flush()
    assert {step for step, _, _ in log.records} == {0, 2, 3}
    assert training.step.global_step.item() == 4


def wrapped(engine, context=None):
    """Steps of the wrapper alone, whose gradients are its own."""
    with computing(engine):
        torch.manual_seed(0)
        variables = [thalweg.Variable(torch.randn(4, 3).to(HALF), name=name) for name in "ab"]
        step = thalweg.Variable(0, dtype=torch.int64, trainable=False)
        scaler = AutomaticLossScaler("Backoff", BACKOFF["loss_scaling_params"])
        optimizer = mp_wrapper.MixedPrecisionOptimizerWrapper(train.AdamOptimizer(0.1), scaler)
        for number, overflow in enumerate(OVERFLOWS):
            pairs = optimizer.compute_gradients(
                lambda: sum((var.float() ** 2).sum() for var in variables), variables
            )
            if overflow is not None:
                pairs[0][0][1, 1] = overflow
            tensors = [*variables, *optimizer.variables(), step, *scaler.variables.values()]
            with context(device=tensors) if context and number > 1 else contextlib.nullcontext():
                optimizer.apply_gradients(pairs, step)
    return plain([*variables, *optimizer.variables(), step, *scaler.variables.values()])


def test_loss_scale_wrapper_decides_on_the_device():
    assert_same(wrapped("cuda"), wrapped("cpu"))
    wrapped("cuda", waiting_for_nothing)


def experimental(engine, make, context=None):
    """Steps of `train.experimental.MixedPrecisionLossScaleOptimizer`."""
    with computing(engine):
        generator = torch.Generator().manual_seed(0)
        variables = [torch.randn(size, generator=generator).requires_grad_() for size in (7, 130)]
        step = thalweg.Variable(0, dtype=torch.int64, trainable=False)
        scale = train.experimental.DynamicLossScale(16.0, 2, 3.0)
        inner = make()
        optimizer = train.experimental.MixedPrecisionLossScaleOptimizer(inner, scale)
        for number, overflow in enumerate(OVERFLOWS):
            gradients = [torch.randn(var.shape, generator=generator) for var in variables]
            if overflow is not None:
                gradients[1][5] = overflow
            tensors = [*optimizer.variables(), step]
            with context(device=tensors) if context and number > 1 else contextlib.nullcontext():
                optimizer.apply_gradients(list(zip(gradients, variables, strict=True)), step)
    return plain([*variables, *optimizer.variables(), step])


@pytest.mark.parametrize(
    "make",
    [
        partial(train.AdamOptimizer, 0.1),
        partial(train.RMSPropOptimizer, 0.1, centered=True),
        partial(train.GradientDescentOptimizer, 0.1),
    ],
    ids=lambda make: make.func.__name__,
)
def test_dynamic_loss_scale_decides_on_the_device(make):
    assert_same(experimental("cuda", make), experimental("cpu", make))
    experimental("cuda", make, waiting_for_nothing)
