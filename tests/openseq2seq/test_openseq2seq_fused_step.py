"""A step of `optimize_loss` as one call of the optimizer: places, numbers and interruptions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import openseq2seq_small
from openseq2seq_steps import Training, differing_names
from thalweg import IndexedSlices, Variable, _graph
from thalweg.openseq2seq.optimizers import optimize_loss, update
from thalweg.openseq2seq.optimizers.automatic_loss_scaler import AutomaticLossScaler
from thalweg.openseq2seq.optimizers.mp_wrapper import (
    MixedPrecisionOptimizerWrapper,
    mp_regularizer_wrapper,
)
from thalweg.v1 import train

HALF = torch.float16
SGD = train.GradientDescentOptimizer
TABLE_ROWS = 64


def table() -> Variable:
    return Variable(torch.zeros(2, 1, dtype=HALF), name="table")


def rows(value: float = 1638.0) -> IndexedSlices:
    values = torch.full((TABLE_ROWS, 1), value, dtype=HALF)
    return IndexedSlices(values, torch.zeros(TABLE_ROWS).long(), (2, 1))


stepping = partial(openseq2seq_small.make_step, rate=1.0, summaries=[])


# Rows of 16 bits


@pytest.mark.parametrize("has_penalty", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"larc_params": {"larc_eta": 1.0, "larc_mode": "scale", "min_update": 1.0}}],
    ids=["plain", "larc"],
)
def test_repeated_rows_are_summed_in_float32(has_penalty: bool, options: dict[str, Any]) -> None:
    var = table()
    if has_penalty:
        mp_regularizer_wrapper(lambda w: 0.0 * w.sum())(var)
    step = stepping([var], **options)
    step.apply_gradients([rows()])
    assert step.optimizer.get_master(var).flatten().tolist() == [-1638.0 * TABLE_ROWS, 0.0]
    assert var.flatten().tolist() == [-65504.0, 0.0]


def test_row_sum_beyond_16_bits_is_not_an_overflow() -> None:
    var = table()
    step = stepping([var], loss_scaling="Backoff", loss_scaling_params={"scale_max": 1.0})
    assert step.apply_gradients([rows()]) is True
    assert step.apply_gradients([rows(float("inf"))]) is False


def test_a_variable_that_is_listed_twice_is_updated_twice() -> None:
    w = Variable(torch.ones(3, dtype=HALF), name="w")
    step = stepping([w, w], clip_gradients=1e9)
    for _ in range(2):
        step.apply_gradients([torch.full((3,), 0.25, dtype=HALF)] * 2)
    assert w.tolist() == [0.0] * 3


# Numbers


def test_clipped_16_bit_gradients_are_rounded_before_the_update() -> None:
    grad = torch.tensor([3.0, 4.1, 0.7, 11.3], dtype=HALF)
    w, slot = Variable(torch.ones(4, dtype=HALF), name="w"), np.zeros(4, np.float16)
    value = np.ones(4, np.float16)
    step = optimize_loss(
        lambda: None, "Momentum", {"momentum": 0.9}, lambda _: 0.3, [w], clip_gradients=1.0
    )
    factor = np.float32(1 / np.linalg.norm(grad.double().numpy()))
    rounded_grad = (grad.float().numpy() * factor).astype(np.float16).astype(np.float32)
    for _ in range(3):
        step.apply_gradients([grad])
        new_slot = slot.astype(np.float32) * np.float32(0.9) + rounded_grad
        value = (value.astype(np.float32) - new_slot * np.float32(0.3)).astype(np.float16)
        slot = new_slot.astype(np.float16)
    np.testing.assert_array_equal(w.numpy(), value)


def test_iter_size_3_multiplies_by_the_reciprocal() -> None:
    runs = iter([True, True, False])
    w = Variable(torch.zeros(3), name="w")
    step = stepping([w], dtype=torch.float32, iter_size=3, skip_update_ph=lambda: next(runs))
    grad = torch.tensor([5.0, 0.7, 1e-3])
    for _ in range(3):
        step.apply_gradients([grad])
    share = grad.numpy() * (np.float32(1) / np.float32(3))
    np.testing.assert_array_equal(w.numpy(), -((share + share) + share))
    assert not np.array_equal(share, grad.numpy() / np.float32(3))


# Arguments and places


def test_gate_gradients_can_be_positional() -> None:
    w = Variable(torch.ones(2, dtype=HALF), name="w")
    opt = MixedPrecisionOptimizerWrapper(SGD(1.0), 8.0)
    loss = lambda: w.float().sum()  # noqa: E731
    ((grad, _),) = opt.compute_gradients(loss, [w], opt.GATE_OP, None, False, torch.tensor(2.0))
    assert grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, "mixed"], ids=str)
def test_step_in_inference_mode_equals_ordinary_step(dtype: Any) -> None:
    kind = HALF if dtype == "mixed" else torch.float32
    ends = []
    for in_inference_mode in (False, True):
        w = Variable(torch.ones(2, dtype=kind), name="w")
        step = optimize_loss(
            lambda w=w: (w.float() ** 2).sum(), "Adam", {}, lambda s: 0.1 / (1 + int(s)), [w], dtype
        )
        with torch.inference_mode(in_inference_mode):
            losses = [step().item() for _ in range(2)]
        step()
        ends.append((losses, w.tolist()))
    assert ends[0] == ends[1]


class Overriding(train.MomentumOptimizer):
    """Momentum of a user who looks at each step."""

    grads_seen: list[Any]

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **options: Any) -> Any:
        pairs = list(grads_and_vars)
        self.grads_seen = [*getattr(self, "seen", []), [grad for grad, _ in pairs]]
        return super().apply_gradients(pairs, *args, **options)


def in_a_session(optimizer: Any) -> list[Any]:
    with _graph.Graph().as_default(), _graph.Session() as session:
        w = _graph.Variable(torch.ones(3).half(), name="w")
        op = optimize_loss(
            (w.float() ** 2).sum(), optimizer, {"momentum": 0.5},
            lambda step: 0.25 / (1.0 + step.to(torch.float32)),
            dtype="mixed", loss_scaling="Backoff", clip_gradients=1.0,
        )  # fmt: skip
        session.run(_graph.global_variables_initializer())
        for _ in range(3):
            session.run(op)
        return session.run([w, *_graph.global_variables()])


def test_an_override_of_apply_gradients_has_a_session_s_learning_rate() -> None:
    for a, b in zip(in_a_session(Overriding), in_a_session("Momentum"), strict=True):
        np.testing.assert_array_equal(a, b)


def test_overridden_apply_gradients_gets_all_pairs_and_global_step() -> None:
    w, u = Variable([1.0], name="w"), Variable([1.0], name="u")
    steps: list[Any] = []

    class Looking(SGD):
        def apply_gradients(self, grads_and_vars: Any, global_step: Any = None) -> Any:
            steps.append((global_step, [var for _, var in grads_and_vars]))
            return super().apply_gradients(grads_and_vars, global_step)

    step = stepping([w, u], Looking, dtype=torch.float32)
    step.apply_gradients([torch.ones(1), None])
    ((counter, variables),) = steps
    assert counter is step.global_step
    assert variables[0] is w
    assert variables[1] is u
    assert (w.item(), u.item(), int(counter)) == (0.0, 1.0, 1)


# All or nothing


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_override_error_notes_whether_the_step_was_taken(late: bool) -> None:
    class Failing(train.AdamOptimizer):
        armed = False

        def apply_gradients(self, *args: Any, **options: Any) -> Any:
            if late or not self.armed:
                super().apply_gradients(*args, **options)
            if self.armed:
                raise OSError("burnt")

    training, twin = (
        Training(Failing, HALF, loss_scaling="Backoff", loss_scaling_params={"step_window": 1})
        for _ in range(2)
    )
    for member in (training, twin):
        member.step()
    old = {**training.state(), **training.scaler_state()}
    training.step.optimizer.optimizer.armed = True
    with pytest.raises(OSError, match="burnt") as raised:
        training.step()
    notes = raised.value.__notes__
    ref = twin if late else training
    if late:
        twin.step()
    new = {**training.state(), **training.scaler_state()}
    assert differing_names(new, {**ref.state(), **ref.scaler_state()} if late else old) == []
    assert training.step.was_applied is late
    note = "The step was taken." if late else (
        "The step was not taken: no variable and no slot has changed."
    )  # fmt: skip
    assert notes == [note]


def interrupted_after(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> None:
    """Have a Ctrl-C come as soon as the optimizer has returned."""

    def interrupted(*args: Any, **options: Any) -> Any:
        call(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(train.AdamOptimizer, "_take", interrupted)


@pytest.mark.parametrize("bad", [False, True], ids=["taken", "skipped"])
def test_interruption_after_the_step_keeps_the_step(
    bad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainings = [
        Training("Adam", HALF, loss_scaling="Backoff", loss_scaling_params={"scale_max": 16.0},
                 learning_rate_decay_fn=lambda step: 0.1 / (1 + int(step)))
        for _ in range(2)
    ]  # fmt: skip
    for member in trainings:
        member.gradients["head"][2] = float("inf") if bad else 1.0
    training, twin = trainings
    twin.step()
    with monkeypatch.context() as context:
        interrupted_after(context, train.AdamOptimizer._take)
        with pytest.raises(KeyboardInterrupt) as raised:
            training.step()
    note = "The step was skipped." if bad else "The step was taken."
    assert raised.value.__notes__ == [note]
    assert training.step.was_applied is (not bad)
    for member in trainings:
        member.gradients["head"][2] = 1.0
    assert differing_names(training.state(), twin.state()) == []
    assert differing_names(training.scaler_state(), twin.scaler_state()) == []
    with torch.no_grad():  # a master that began anew would follow
        for member in trainings:
            member.own["head"].fill_(3.0)
            member.step()
    assert differing_names(training.state(), twin.state()) == []


def test_interruption_after_accumulation_is_noted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training("Adam", HALF, iter_size=2, skip_update_ph=True)
    from thalweg.openseq2seq.optimizers.gradient_pipeline import StepPipeline

    def interrupted(*args: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(StepPipeline, "send_summaries", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        training.step()
    assert raised.value.__notes__ == ["The run added its gradients up."]
    assert training.step.was_applied is False
    assert training.state()["sum of head"].any()


@pytest.mark.parametrize("algorithm", ["Backoff", "LogMax"])
def test_scaler_decision_writes_only_through_its_calls(algorithm: str) -> None:
    scaler, twin = AutomaticLossScaler(algorithm), AutomaticLossScaler(algorithm)
    state_before = scaler.state_dict()
    for has_nan, amax in ((False, 3.0), (True, 0.0), (False, float("inf")), (False, 0.5)):
        takes_step, calls = scaler.scaler.decide(has_nan, amax)
        assert takes_step is (not has_nan and np.isfinite(amax).item())
        assert differing_names(state_before, scaler.state_dict()) == []
        for call in calls:
            call()
        twin.update_op(has_nan, amax)
        state_before = twin.state_dict()
        assert differing_names(state_before, scaler.state_dict()) == []


def test_static_scale_step_does_not_check_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transforms_seen: list[Any] = []
    original = update.update

    def watched(optimizer: Any, backward: Any, transforms: Any, *args: Any) -> Any:
        transforms_seen.append(transforms)
        return original(optimizer, backward, transforms, *args)

    monkeypatch.setattr("thalweg.openseq2seq.optimizers.gradient_pipeline.update", watched)
    stepping([Variable(torch.ones(2, dtype=HALF))]).apply_gradients([torch.ones(2, dtype=HALF)])
    assert transforms_seen[0].measured == ()
