"""`spikes=Spikes(action)`: steps that are left out or taken back, exactly; arguments; ranks."""

from __future__ import annotations

import copy
import gc
import math
import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from thalweg import checkpoint, optim
from thalweg.diagnostics.bands import UPDATE_ROWS, NumberBand
from thalweg.errors import (
    CheckpointMismatchError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    NumericsWarning,
)
from thalweg.optim.diagnostics import Spikes, Warned

STEPS, BAD = 32, 30


def make_params() -> list[Any]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape)) for shape in ((6, 4), (4,))]


def set_grads(params: list[Any], step: int, factor: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for param in params:
        param.grad = factor * torch.randn(param.shape, generator=generator)


def mixed(params: list[Any], **options: Any) -> Any:
    groups = [{"params": params[:1], "rule": "SGD"}, {"params": params[1:], "rule": "AdamW"}]
    return optim.Mixed([{"lr": 0.01, **group} for group in groups], **options)


MAKERS: dict[str, Any] = {
    "plain": lambda params, **options: optim.AdamW(params, 0.01, **options),
    "clipped": lambda params, **options: optim.AdamW(params, 0.01, clip_grad_norm=1.0, **options),
    "averaged": lambda params, **options: optim.SGD(params, 0.01, ema_decay=0.9, **options),
    "8 bits": lambda params, **options: optim.AdamW(params, state_storage="8bit", **options),
    "rules": mixed,
    "rules clipped": lambda params, **options: mixed(params, clip_grad_norm=1.0, **options),
    "tensorflow": lambda params, **options: optim.tensorflow.Adam(params, 0.01, **options),
}


def bits_of(optimizer: Any, params: list[Any]) -> list[torch.Tensor]:
    tensors = [entry for param in params for entry in optimizer.state[param].values()]
    return [x.detach().clone() for x in (*params, *map(torch.as_tensor, tensors))]


def train(name: str, action: Any, steps: range, bad: float = 1e4, **options: Any) -> Any:
    """Return the optimizer, the detector and the bits before each step and after the last one."""
    params, spikes = make_params(), Spikes(action, **options)
    optimizer = MAKERS[name](params, spikes=spikes)
    bits = []
    for step in steps:
        bits.append(bits_of(optimizer, params))
        set_grads(params, step, bad if step == BAD else 1.0)
        optimizer.step()
    return optimizer, spikes, [*bits, bits_of(optimizer, params)]


def assert_equal(tensors: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(tensors, expected, strict=True))


@pytest.mark.parametrize("name", MAKERS)
def test_skipped_step_changes_nothing_and_the_next_is_as_without_it(name: str) -> None:
    optimizer, spikes, bits = train(name, "skip", range(1, STEPS + 1))
    assert_equal(bits[BAD], bits[BAD - 1])
    assert [action.steps for action in spikes.actions] == [range(BAD, BAD + 1)]
    assert (optimizer.last_step.taken, optimizer.last_step.count) == (True, STEPS - 1)
    params = make_params()
    twin = MAKERS[name](params)
    for step in (step for step in range(1, STEPS + 1) if step != BAD):
        set_grads(params, step)
        twin.step()
    assert_equal(bits[-1], bits_of(twin, params))


@pytest.mark.parametrize("name", MAKERS)
def test_rollback_restores_the_bits_of_an_earlier_step(name: str) -> None:
    with pytest.warns(NumericsWarning, match="skip batches 25 to 30"):
        optimizer, spikes, bits = train(name, "rollback", range(1, BAD + 1), keep=5)
    assert_equal(bits[-1], bits[24])
    assert str(spikes.actions[0]).endswith("went back before step 25: skip batches 25 to 30")
    assert optimizer.last_step.reason == str(spikes.actions[0])
    params = make_params()
    twin = MAKERS[name](params)
    for step in (*range(1, 25), 31, 32):
        set_grads(params, step)
        twin.step()
    for step in (31, 32):
        set_grads(list(optimizer.state), step)
        optimizer.step()
    assert_equal(bits_of(optimizer, list(optimizer.state)), bits_of(twin, params))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_are_left_out_from_the_first_step(bad: float) -> None:
    params, spikes = make_params(), Spikes("rollback", keep=1)
    optimizer = optim.AdamW(params, spikes=spikes)
    set_grads(params, 1, bad)
    optimizer.step()
    assert not any(optimizer.state.values())
    assert spikes.actions[0].action == "skip"
    assert optimizer.last_step is not None
    assert not optimizer.last_step.taken


def test_loss_decides_like_the_norm_and_a_function_on_each_step() -> None:
    warnings: list[Warned] = []
    answers = iter(["skip", None, "rollback", "stay"])

    def choose(warning: Warned) -> str | None:
        warnings.append(warning)
        return next(answers)

    params, spikes = make_params(), Spikes(choose, keep=4)
    optimizer = optim.AdamW(params, spikes=spikes)
    for step in range(1, 25):
        set_grads(params, step)
        loss = torch.tensor(2.0 if step > 21 else 1.0)
        if step == 23:
            spikes.log_loss(loss)
            optimizer.step()
        elif step == 24:
            spikes.log_loss(loss)
            with pytest.warns(NumericsWarning, match="went back before step 21"):
                optimizer.step()
        else:
            optimizer.step(lambda loss=loss: loss)
    assert [(w.step, w.kind, w.number) for w in warnings] == [
        (22 + i, "loss", 2.0) for i in range(3)
    ]
    assert [action.action for action in spikes.actions] == ["skip", "rollback"]
    assert optimizer.state[params[0]]["step"].item() == 20
    spikes.log_loss(math.nan)
    previous_bits = bits_of(optimizer, params)
    with pytest.raises(
        InvalidTypeError, match="must return 'skip', 'rollback' or None, not 'stay'"
    ):
        optimizer.step()
    assert_equal(previous_bits, bits_of(optimizer, params))


def test_skipped_step_clears_accumulated_gradients() -> None:
    params, spikes = make_params(), Spikes("skip")
    optimizer = optim.AdamW(params, accumulate=2, spikes=spikes)
    for step in range(1, 5):
        set_grads(params, step, math.nan if step == 1 else 1.0)
        optimizer.step()
    twin_params = make_params()
    twin = optim.AdamW(twin_params, accumulate=2)
    for step in (3, 4):
        set_grads(twin_params, step)
        twin.step()
    assert_equal(list(params), list(twin_params))


def test_a_loaded_state_is_not_taken_back() -> None:
    params, spikes = make_params(), Spikes("rollback", keep=3)
    optimizer = optim.AdamW(params, spikes=spikes)
    for step in range(1, 4):
        set_grads(params, step)
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    set_grads(params, 4, math.nan)
    optimizer.step()
    assert spikes.actions[0].action == "skip"


@pytest.mark.parametrize("name", ["plain", "clipped", "rules"])
def test_replayed_steps_record_the_norms_of_planned_ones(name: str) -> None:
    histories = []
    for is_replayed in (True, False):
        params, spikes = make_params(), Spikes("skip")
        optimizer = MAKERS[name](params, spikes=spikes)
        for step in range(1, 32):
            set_grads(params, step, 0.0 if step == 5 else 1.0)
            spikes.log_loss(1 / step)
            optimizer.step()
            if not is_replayed:
                optimizer.step_cache.forget_replay()
        assert spikes.judge is not None
        histories.append(spikes.judge.history)
        assert optimizer.last_step.grad_norm == histories[-1][2][-1]
        replay = optimizer.step_cache.replay
        assert (replay is not None and replay.taken > 20) == is_replayed
    assert histories[0] == histories[1]


def test_steps_with_changing_sets_of_gradients_are_replayed_and_judged() -> None:
    runs = []
    every_options: list[dict[str, Any]] = [{}, {"spikes": Spikes("skip")}]
    for options in every_options:
        params = make_params()
        optimizer = optim.AdamW(params, **options)
        for step in range(1, BAD + 1):
            set_grads(params, step, 1e4 if step == BAD and options else 1.0)
            params[step % 2].grad = None
            assert step < BAD or optimizer.step_cache.replay is not None
            if step < BAD or options:
                optimizer.step()
        runs.append(params)
    assert_equal(*runs)


def resume_by_state_dict(source: Any, target: Any, path: Path) -> None:
    torch.save(source.state_dict(), path)
    target.load_state_dict(torch.load(path))


def resume_by_file(source: Any, target: Any, path: Path) -> None:
    checkpoint.save(path, optimizer=source)
    checkpoint.restore(path, optimizer=target)


RESUMES = [resume_by_state_dict, resume_by_file]


@pytest.mark.parametrize("resume", RESUMES)
@pytest.mark.parametrize("name", ["plain", "rules", "8 bits"])
def test_resumed_optimizer_judges_as_the_saved_one(name: str, resume: Any, tmp_path: Path) -> None:
    source, spikes, _ = train(name, "skip", range(1, BAD))
    params, resumed = make_params(), Spikes("rollback", keep=2)
    optimizer = MAKERS[name](params, spikes=resumed)
    resume(source, optimizer, tmp_path / "state")
    assert optimizer.step_cache.replay is None
    assert resumed.judge is not None
    assert spikes.judge is not None
    assert resumed.judge.history == spikes.judge.history
    set_grads(params, BAD, 1e4)
    optimizer.step()
    assert [action.warning.step for action in resumed.actions] == [BAD]


@pytest.mark.parametrize("resume", RESUMES)
def test_states_without_history_load_and_begin_one(resume: Any, tmp_path: Path) -> None:
    plain = MAKERS["plain"](make_params())
    set_grads(plain.param_groups[0]["params"], 1)
    plain.step()
    judged, spikes, _ = train("plain", "skip", range(1, BAD))
    resume(plain, judged, tmp_path / "plain")
    assert spikes.judge is not None
    assert spikes.judge.history == [0, [], []]
    resume(judged, plain, tmp_path / "judged")
    assert "spike_history" not in plain.state_dict()["param_groups"][0]


def test_groups_of_a_live_optimizer_load_without_a_history() -> None:
    optimizer, spikes, _ = train("plain", "skip", range(1, 4))
    groups = [{**group, "params": [0, 1]} for group in optimizer.param_groups]
    state = optimizer.state_dict()["state"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    assert spikes.judge is not None
    assert spikes.judge.history == [0, [], []]


def test_history_loaded_before_a_failed_construction_is_kept() -> None:
    _, spikes, _ = train("plain", "skip", range(1, 4))
    loaded = Spikes("skip")
    loaded.load_state_dict(spikes.state_dict())
    params = make_params()
    with pytest.raises(ValueError, match="more than one parameter group"):
        optim.AdamW([{"params": params}, {"params": params}], spikes=loaded)
    gc.collect()
    optim.AdamW(params, spikes=loaded)
    assert loaded.state_dict() == spikes.state_dict()


@pytest.mark.parametrize("history", ["?", [1, [0.5]], [-1, [], []], [1, [math.nan], []]])
def test_invalid_history_is_rejected_and_changes_nothing(history: Any) -> None:
    optimizer, spikes, _ = train("plain", "skip", range(1, 4))
    state_dict = optimizer.state_dict()
    state_dict["param_groups"][0]["spike_history"] = history
    assert spikes.judge is not None
    former = spikes.judge.history
    with pytest.raises(CheckpointMismatchError, match="the history of steps is"):
        optimizer.load_state_dict(state_dict)
    assert spikes.judge.history == former


@pytest.mark.parametrize("loss", [3.0, math.inf])
def test_step_that_allocates_state_keeps_a_logged_loss(loss: float) -> None:
    """`torch.distributed.checkpoint` takes a step with zero gradients at a rate of 0."""
    params, spikes = make_params(), Spikes("rollback")
    optimizer = optim.AdamW(params, lr=0.0, spikes=spikes)
    spikes.log_loss(loss)
    for factor in (0.0, 1.0):
        set_grads(params, 1, factor)
        optimizer.param_groups[0]["lr"] = 0.1 * factor
        optimizer.step()
        assert len(optimizer.state) == len(params)
        assert len(spikes.actions) == (factor == 1.0 and loss == math.inf)
    assert spikes.judge is not None
    assert optimizer.param_groups[0]["spike_history"] == [0, [], []]
    step_count, losses, norms = spikes.judge.history
    expected_losses = [loss] if math.isfinite(loss) else []
    assert (step_count, losses, len(norms)) == (1, expected_losses, 1)


@pytest.mark.parametrize("is_log", [False, True])
def test_safe_limit_of_a_band_is_within_the_band(is_log: bool) -> None:
    band, random = NumberBand(0.1, is_log), np.random.default_rng(0)
    numbers = np.exp(random.normal(0, 2, 400).cumsum() / 10 * (1 if is_log else 0.1)).tolist()
    for index, number in enumerate(numbers):
        limit = band.measure()[1]
        assert (number in band) == (number <= limit)
        assert band.safe_limit <= limit * (1 + 1e-15)
        if index % UPDATE_ROWS == 2:
            band.update_limit()
        band.values.append(number)
    assert math.nan not in band
    assert -math.inf not in band


def test_copies_have_detectors_of_their_own_with_the_history() -> None:
    optimizer, spikes, _ = train("plain", "rollback", range(1, BAD), keep=3)
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        detector = twin.step_options.spikes
        assert (detector.judge.action, detector.judge.keep) == ("rollback", 3)
        assert detector.state_dict() == spikes.state_dict()
        set_grads(list(twin.state), BAD, 1e4)
        twin.step()
        assert [action.steps for action in detector.actions] == [range(BAD, BAD + 1)]
        assert not spikes.actions
    with pytest.raises(FailedPreconditionError, match="another optimizer"):
        optim.AdamW(make_params(), spikes=spikes)


ERRORS = [
    (lambda: Spikes("stop"), InvalidTypeError, "action must be 'skip', 'rollback'"),
    (lambda: Spikes("skip", keep=2), InvalidArgumentError, "keep is 2"),
    (lambda: Spikes("rollback", keep=0), InvalidArgumentError, "keep is 0"),
    (
        lambda: Spikes("rollback", keep=cast("Any", 2.0)),
        InvalidTypeError,
        "keep must be an integer",
    ),
    (lambda: Spikes(keep=2), InvalidArgumentError, "keep is 2"),
    (lambda: Spikes().log_loss(1.0), FailedPreconditionError, "have no action"),
    (lambda: Spikes("skip").log_loss(1.0), FailedPreconditionError, "of no optimizer"),
    (lambda: optim.SGD(make_params(), spikes=Spikes()), InvalidTypeError, "with an action"),
    (lambda: optim.SGD(make_params(), spikes="skip"), InvalidTypeError, "spikes must be a Spikes"),
    (
        lambda: optim.SGD(make_params(), spikes=Spikes("skip"), in_backward=True),
        InvalidArgumentError,
        "choose one",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), ERRORS)
def test_invalid_arguments_are_rejected(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("change", ["shape", "group"])
def test_rollback_of_changed_parameters_leaves_out_the_step(change: str) -> None:
    optimizer, spikes, _ = train("plain", "rollback", range(1, BAD), keep=5)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if change == "shape":
        params[1].data = torch.ones(5)
        optimizer.state.pop(params[1])
    else:
        params.append(torch.nn.Parameter(torch.ones(3)))
        optimizer.add_param_group({"params": params[2:]})
    for step, factor in ((BAD, 1.0), (BAD + 1, 1e4)):
        previous = bits_of(optimizer, params) if factor > 1 else []
        set_grads(params, step, factor)
        optimizer.step()
    assert [action.action for action in spikes.actions] == ["skip"]
    assert_equal(bits_of(optimizer, params), previous)


def test_spikes_of_a_freed_optimizer_begin_anew() -> None:
    optimizer, spikes, _ = train("plain", "rollback", range(1, BAD), keep=5)
    del optimizer
    params = make_params()
    optimizer = optim.AdamW(params, spikes=spikes)
    for step in range(1, 30):
        set_grads(params, step)
        optimizer.step()
    set_grads(params, 30, 1e4)
    with pytest.warns(NumericsWarning, match="went back before step"):
        optimizer.step()
    assert spikes.actions[-1].warning.step == 30


def test_function_without_copies_that_asks_for_a_rollback_raises() -> None:
    with pytest.raises(InvalidArgumentError, match=r"keep=20"):
        train("plain", lambda warning: "rollback", range(1, BAD + 1))


@pytest.mark.parametrize("keep", [1, 2, 7])
def test_rollback_takes_back_at_most_the_kept_steps(keep: int) -> None:
    for last in range(BAD - 3, BAD + 1):
        with pytest.warns(NumericsWarning, match="went back before step"):
            _, spikes, _ = train("plain", "rollback", range(BAD - last, BAD + 1), keep=keep)
        assert len(spikes.actions[-1].steps) - 1 <= keep
