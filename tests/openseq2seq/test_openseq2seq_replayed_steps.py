"""Steps of `optimize_loss` in one native call: only their time differs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
import thalweg.v1 as tf
from bit_comparison import assert_same as assert_same_tensors
from thalweg import GradientTape, Variable
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table, replay_block
from thalweg.openseq2seq.optimizers import lr_policies, optimize_loss
from thalweg.v1 import train

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
SHAPES = [(3, 2), (70,), ()]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Momentum": {"momentum": 0.9},
    "Adam": {},
    "RMSProp": {"momentum": 0.5},
    "Ftrl": {},
    "AdamW": {"weight_decay": 0.01},
}
POLICIES: dict[str, Callable[[Any], Any]] = {
    "fixed": lambda step: lr_policies.fixed_lr(step, 0.1),
    "decay": lambda step: lr_policies.exp_decay(step, 0.1, 2, 0.5, use_staircase_decay=False),
    "a number of the step": lambda step: 0.1 / (1 + int(step)),
}


class Training:
    """A step over three variables; its twin takes none in one call."""

    def __init__(
        self, name: str = "Adam", policy: str = "fixed", is_twin: bool = False, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.variables = [
            Variable(torch.randn(shape).to(options.pop("kind", torch.float32)), name=f"w{place}")
            for place, shape in enumerate(SHAPES)
        ]
        self.is_twin = is_twin
        self.data = [torch.ones(shape) for shape in SHAPES]
        self.within: Callable[[], object] = lambda: None
        self.take = optimize_loss(
            self.loss, name, OPTIMIZERS[name], POLICIES[policy], self.variables, **options
        )

    def loss(self) -> Any:
        self.within()
        pairs = zip(self.variables, self.data, strict=True)
        return sum((var * var * factor).sum() for var, factor in pairs)

    @property
    def inner(self) -> Any:
        return self.take._inner

    @property
    def kept(self) -> Any:
        return self.inner._plans.now()

    @property
    def taken(self) -> int:
        return getattr(self.kept.replay, "taken", 0)

    def step(self, seed: int) -> Any:
        if self.is_twin:
            self.kept.replay = None
        dice = torch.Generator().manual_seed(seed)
        with torch.inference_mode(False):
            self.data = [torch.randn(shape, generator=dice) for shape in SHAPES]
        return self.take()

    def written(self) -> list[torch.Tensor]:
        state = self.take.state_dict()
        return [tensor.detach().clone() for tensor in (*self.variables, *state.values())]


def both(steps: int = 5, **options: Any) -> tuple[Training, Training]:
    fast, twin = Training(**options), Training(is_twin=True, **options)
    for seed in range(steps):
        assert_same_tensors([fast.step(seed)], [twin.step(seed)])
        assert_same(fast, twin)
    return fast, twin


def assert_same(fast: Training, twin: Training) -> None:
    assert_same_tensors(fast.written(), twin.written())
    assert fast.take.was_applied == twin.take.was_applied
    assert_same_tensors([fast.take.learning_rate], [twin.take.learning_rate])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_is_replayed(name: str, policy: str) -> None:
    fast, twin = both(8, name=name, policy=policy)
    assert fast.taken == 6
    assert twin.taken == 0
    assert fast.take.was_applied


def test_steps_without_var_list_are_replayed() -> None:
    fast, twin = Training(), Training(is_twin=True)
    for training in (fast, twin):
        training.take = optimize_loss(training.loss, "Adam", {}, POLICIES["fixed"])
    for seed in range(6):
        assert torch.equal(fast.step(seed), twin.step(seed))
        assert_same(fast, twin)
    assert fast.taken == 4


OPTIONS: dict[str, dict[str, Any]] = {
    "clipping": {"clip_gradients": 0.5},
    "clipping that does nothing": {"clip_gradients": 1e6},
    "LARC": {"larc_params": {"larc_eta": 0.01}},
    "LARC that scales": {"larc_params": {"larc_eta": 0.01, "larc_mode": "scale"}},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", OPTIONS)
def test_replayed_steps_process_gradients(name: str, policy: str) -> None:
    fast, twin = both(8, policy=policy, **OPTIONS[name])
    assert fast.taken == 6
    for training in (fast, twin):
        training.inner.apply_gradients([(torch.ones_like(var), var) for var in training.variables])
        training.within = lambda training=training: training.data[0].fill_(float("inf"))
        training.step(8)
        training.within = lambda: None
    pairs = zip(fast.written(), twin.written(), strict=True)
    assert all(torch.equal(*map(torch.nan_to_num, pair)) for pair in pairs)


NO_REPLAYS: dict[str, dict[str, Any]] = {
    "masters": {"dtype": "mixed", "kind": torch.float16},
    "masters and a scale": {"dtype": "mixed", "kind": torch.float16, "loss_scaling": "Backoff"},
    "several runs": {"iter_size": 2, "skip_update_ph": lambda: False},
}


@pytest.mark.parametrize("name", NO_REPLAYS)
def test_unsupported_options_are_not_replayed(name: str) -> None:
    fast, _ = both(**NO_REPLAYS[name])
    assert fast.taken == 0


def test_passed_gradients_are_replayed() -> None:
    fast, twin = both(steps=0)
    for seed in range(6):
        for training in (fast, twin):
            if training.is_twin:
                training.kept.replay = None
            dice = torch.Generator().manual_seed(seed)
            gradients = [torch.randn(shape, generator=dice) for shape in SHAPES]
            assert training.take.apply_gradients(gradients) is True
        assert_same(fast, twin)
    assert fast.taken == 4


def test_graph_steps_are_replayed() -> None:
    outcomes = []
    for is_twin in (False, True):
        graph = tf.Graph()
        with graph.as_default():
            dice = np.random.default_rng(0)
            variables = [
                tf.Variable(np.asarray(dice.normal(size=shape), "float32")) for shape in SHAPES
            ]
            optimizers: list[Any] = []

            def make(learning_rate: Any, optimizers: list[Any] = optimizers) -> Any:
                optimizers.append(train.AdamOptimizer(learning_rate))
                return optimizers[0]

            loss = sum((var * var).sum() for var in variables)
            op = optimize_loss(loss, make, {}, POLICIES["decay"])
            init = tf.global_variables_initializer()
        session = tf.Session(graph=graph)
        session.run(init)
        losses = []
        for _ in range(8):
            plans = optimizers[0]._plans._sessions.get(session)
            if is_twin and plans is not None:
                plans.replay = None
            losses.append(session.run(op))
        all_variables = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        outcomes.append((losses, session.snapshot(all_variables)))
        plans = optimizers[0]._plans._sessions.get(session)
        assert getattr(plans.replay, "taken", 0) == (0 if is_twin else 6)
    assert outcomes[0][0] == outcomes[1][0]
    assert_same_tensors(outcomes[0][1], outcomes[1][1])


def _value(training: Training) -> None:
    training.variables[1].assign(torch.ones(70))


def _power(training: Training) -> None:
    training.inner._get_beta_accumulators()[0].assign(0.5)


def _count(training: Training) -> None:
    training.take.global_step.assign(100)


def _rate(training: Training) -> None:
    training.take._rate.value.fill_(5.0)


def _rate_without_a_version(training: Training) -> None:
    training.take._rate.value.data.fill_(5.0)


def _other_memory(training: Training) -> None:
    training.variables[1].data = torch.ones(70)


def _constraint(training: Training) -> None:
    training.variables[0].constraint = torch.abs


def _own_hook(training: Training) -> None:
    hook = training.inner._resource_apply_dense
    training.inner._resource_apply_dense = lambda grad, var: hook(grad * 2, var)


def _attribute(training: Training) -> None:
    training.inner._beta1 = 0.5


def _state(training: Training) -> None:
    training.take.load_state_dict({**training.take.state_dict(), "global_step": torch.tensor(7)})


def _frozen_in_the_loss(training: Training) -> None:
    training.within = lambda: setattr(training.variables[1], "requires_grad", False)


def _other_data_in_the_loss(training: Training) -> None:
    def change() -> None:
        training.variables[0].data = torch.ones(3, 2)

    training.within = change


def _a_tape_in_the_loss(training: Training) -> None:
    original_loss = training.loss

    def loss() -> Any:
        with GradientTape() as tape:
            value = original_loss()
        slope = tape.gradient(value, training.variables[0])
        return value + (slope * slope).sum()

    training.take._loss = loss


CHANGES = [
    (True, _value),
    (True, _power),
    (True, _count),
    (True, _rate),
    (True, _rate_without_a_version),
    (False, _other_memory),
    (False, _constraint),
    (False, _own_hook),
    (False, _attribute),
    (None, _state),
    (None, _other_data_in_the_loss),
    (True, _a_tape_in_the_loss),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("replay_stays", "change"), CHANGES, ids=lambda change: getattr(change, "__name__", "")
)
def test_changes_between_replayed_steps_are_detected(
    replay_stays: bool | None, change: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    fast, twin = both()
    quick, replay_count = fast.kept.replay, fast.taken
    assert replay_count == 3
    for training in (fast, twin):
        change(training)
    for seed in range(5, 10):
        assert_same_tensors([fast.step(seed)], [twin.step(seed)])
        assert_same(fast, twin)
        if seed == 5 and replay_stays is not None:
            assert (fast.kept.replay is quick and quick.taken == replay_count + 1) is replay_stays


def test_variable_frozen_by_the_loss_is_not_updated() -> None:
    fast, twin = both(summaries=["learning_rate"])
    for training in (fast, twin):
        _frozen_in_the_loss(training)
    for seed in range(5, 9):
        assert torch.equal(fast.step(seed), twin.step(seed))
        assert_same(fast, twin)


def test_invalid_loss_raises_after_replays() -> None:
    fast, twin = both()
    for training in (fast, twin):
        training.take._loss = lambda run=training: (run.variables[0] * torch.inf).sum().reshape(1)
    tensors_before, errors = fast.written(), []
    for training in (fast, twin):
        with pytest.raises(ValueError, match="loss must be a scalar") as excinfo:
            training.step(5)
        errors.append((str(excinfo.value), excinfo.value.__notes__))
        assert training.take.was_applied is False
    assert errors[0] == errors[1]
    assert_same_tensors(tensors_before, fast.written())


@pytest.mark.parametrize("summaries", [None, ["learning_rate"]])
def test_variable_left_out_by_the_loss_is_not_updated(summaries: Any) -> None:
    fast, twin = both(summaries=summaries)
    tensors_before = fast.written()
    for training in (fast, twin):
        training.take._loss = lambda training=training: (training.variables[0] * 2).sum()
        if summaries is None:
            with pytest.raises(ValueError, match="'w1:0' has no gradient"):
                training.step(5)
            assert_same_tensors(tensors_before, training.written())
        else:
            training.step(5)
    assert_same(fast, twin)
    assert fast.taken == 0


def test_failed_step_restores_the_rate() -> None:
    fast, twin = both(policy="decay")
    rate = fast.take.learning_rate

    def fail() -> None:
        raise KeyError("no data")

    for training in (fast, twin):
        training.within = fail
        with pytest.raises(KeyError) as excinfo:
            training.step(5)
        assert "The step was not taken: no variable and no slot has changed." in (
            excinfo.value.__notes__
        )
        training.within = lambda: None
    assert torch.equal(fast.take.learning_rate, rate)
    assert_same(fast, twin)
    assert torch.equal(fast.step(6), twin.step(6))
    assert_same(fast, twin)


@pytest.mark.parametrize(
    ("step_is_taken", "error"),  # that a signal's function may raise
    [
        (False, KeyboardInterrupt),
        (True, KeyboardInterrupt),
        (False, TimeoutError),
        (True, TimeoutError),
        (True, RuntimeError),
    ],
)
@pytest.mark.parametrize("method", ["take", "then"])
def test_interrupted_replay_is_atomic(
    method: str, step_is_taken: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, twin = both(policy="decay")
    rate = fast.take.learning_rate
    place = (
        (guard_table.GuardTable, "replay")
        if method == "take"
        else (type(fast.inner), "_take_again")
    )
    take = getattr(*place)

    def interrupted(*args: Any) -> int:
        mismatch = take(*args) if step_is_taken else 0
        # Then the numbers of the step are computed, and this is called again.
        if mismatch == replay_block.NOT_TABLED:
            return mismatch
        raise error

    monkeypatch.setattr(*place, interrupted)
    with pytest.raises(error) as excinfo:
        fast.step(5)
    monkeypatch.undo()
    notes = getattr(excinfo.value, "__notes__", [])
    assert ("The step was taken." in notes) is step_is_taken
    assert fast.take.was_applied is step_is_taken
    assert torch.equal(fast.take.learning_rate, rate) is not step_is_taken
    if step_is_taken:
        twin.step(5)
    assert_same(fast, twin) if step_is_taken else None
    fast.step(6)
    twin.step(6)
    assert_same(fast, twin)


def test_grad_modes_are_respected_by_replay() -> None:
    fast, twin = both()
    with torch.no_grad():
        assert torch.equal(fast.step(5), twin.step(5))
    with torch.inference_mode():
        fast.step(6)
        twin.step(6)
    assert_same(fast, twin)
    with thalweg.engine("reference"):
        fast.step(7)
        twin.step(7)
    assert_same(fast, twin)


def test_replay_does_not_keep_a_step_alive() -> None:
    variable = Variable(torch.ones(3))
    step = optimize_loss(lambda: (variable * 2).sum(), "Adam", {}, POLICIES["fixed"], [variable])
    for _ in range(5):
        step()
    inner = weakref.ref(step.optimizer)
    gc.collect()
    gc.disable()
    try:
        del step
        assert inner() is None
    finally:
        gc.enable()
