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
from thalweg import GradientTape, Variable
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table, replay_kernel
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
        return sum((var * var * each).sum() for var, each in pairs)

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
        return [each.detach().clone() for each in (*self.variables, *state.values())]


def both(steps: int = 5, **given: Any) -> tuple[Training, Training]:
    own, twin = Training(**given), Training(is_twin=True, **given)
    for seed in range(steps):
        assert torch.equal(own.step(seed), twin.step(seed))
        assert_same(own, twin)
    return own, twin


def assert_same(own: Training, twin: Training) -> None:
    assert all(map(torch.equal, own.written(), twin.written()))
    assert own.take.was_applied == twin.take.was_applied
    assert torch.equal(own.take.learning_rate, twin.take.learning_rate)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_has_them(name: str, policy: str) -> None:
    own, twin = both(8, name=name, policy=policy)
    assert own.taken == 6
    assert twin.taken == 0
    assert own.take.was_applied


def test_without_a_list_of_variables() -> None:
    own, twin = Training(), Training(is_twin=True)
    for each in (own, twin):
        each.take = optimize_loss(each.loss, "Adam", {}, POLICIES["fixed"])
    for seed in range(6):
        assert torch.equal(own.step(seed), twin.step(seed))
        assert_same(own, twin)
    assert own.taken == 4


PROCESSED: dict[str, dict[str, Any]] = {
    "clipping": {"clip_gradients": 0.5},
    "clipping that does nothing": {"clip_gradients": 1e6},
    "LARC": {"larc_params": {"larc_eta": 0.01}},
    "LARC that scales": {"larc_params": {"larc_eta": 0.01, "larc_mode": "scale"}},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", PROCESSED)
def test_gradients_are_processed_in_them(name: str, policy: str) -> None:
    own, twin = both(8, policy=policy, **PROCESSED[name])
    assert own.taken == 6
    for each in (own, twin):
        each.inner.apply_gradients([(torch.ones_like(var), var) for var in each.variables])
        each.within = lambda each=each: each.data[0].fill_(float("inf"))
        each.step(8)
        each.within = lambda: None
    assert all(
        map(
            torch.equal, map(torch.nan_to_num, own.written()), map(torch.nan_to_num, twin.written())
        )
    )


NONE: dict[str, dict[str, Any]] = {
    "masters": {"dtype": "mixed", "kind": torch.float16},
    "masters and a scale": {"dtype": "mixed", "kind": torch.float16, "loss_scaling": "Backoff"},
    "several runs": {"iter_size": 2, "skip_update_ph": lambda: False},
}


@pytest.mark.parametrize("name", NONE)
def test_where_there_are_none(name: str) -> None:
    own, _ = both(**NONE[name])
    assert own.taken == 0


def test_gradients_from_elsewhere() -> None:
    own, twin = both(steps=0)
    for seed in range(6):
        for each in (own, twin):
            if each.is_twin:
                each.kept.replay = None
            dice = torch.Generator().manual_seed(seed)
            given = [torch.randn(shape, generator=dice) for shape in SHAPES]
            assert each.take.apply_gradients(given) is True
        assert_same(own, twin)
    assert own.taken == 4


def test_a_graph_has_them() -> None:
    found = []
    for is_twin in (False, True):
        graph = tf.Graph()
        with graph.as_default():
            dice = np.random.default_rng(0)
            variables = [
                tf.Variable(np.asarray(dice.normal(size=shape), "float32")) for shape in SHAPES
            ]
            made: list[Any] = []

            def make(learning_rate: Any, made: list[Any] = made) -> Any:
                made.append(train.AdamOptimizer(learning_rate))
                return made[0]

            loss = sum((var * var).sum() for var in variables)
            op = optimize_loss(loss, make, {}, POLICIES["decay"])
            init = tf.global_variables_initializer()
        session = tf.Session(graph=graph)
        session.run(init)
        losses = []
        for _ in range(8):
            kept = made[0]._plans._sessions.get(session)
            if is_twin and kept is not None:
                kept.replay = None
            losses.append(session.run(op))
        every = graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        found.append((losses, session.snapshot(every)))
        kept = made[0]._plans._sessions.get(session)
        assert getattr(kept.replay, "taken", 0) == (0 if is_twin else 6)
    assert found[0][0] == found[1][0]
    assert all(map(torch.equal, found[0][1], found[1][1]))


def _value(own: Training) -> None:
    own.variables[1].assign(torch.ones(70))


def _power(own: Training) -> None:
    own.inner._get_beta_accumulators()[0].assign(0.5)


def _count(own: Training) -> None:
    own.take.global_step.assign(100)


def _rate(own: Training) -> None:
    own.take._rate.value.fill_(5.0)


def _rate_without_a_version(own: Training) -> None:
    own.take._rate.value.data.fill_(5.0)


def _other_memory(own: Training) -> None:
    own.variables[1].data = torch.ones(70)


def _constraint(own: Training) -> None:
    own.variables[0].constraint = torch.abs


def _own_hook(own: Training) -> None:
    hook = own.inner._resource_apply_dense
    own.inner._resource_apply_dense = lambda grad, var: hook(grad * 2, var)


def _attribute(own: Training) -> None:
    own.inner._beta1 = 0.5


def _state(own: Training) -> None:
    own.take.load_state_dict({**own.take.state_dict(), "global_step": torch.tensor(7)})


def _frozen_in_the_loss(own: Training) -> None:
    own.within = lambda: setattr(own.variables[1], "requires_grad", False)


def _other_data_in_the_loss(own: Training) -> None:
    def change() -> None:
        own.variables[0].data = torch.ones(3, 2)

    own.within = change


def _a_tape_in_the_loss(own: Training) -> None:
    plain = own.loss

    def loss() -> Any:
        with GradientTape() as tape:
            value = plain()
        slope = tape.gradient(value, own.variables[0])
        return value + (slope * slope).sum()

    own.take._loss = loss


BETWEEN = [
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


@pytest.mark.parametrize(
    ("stays", "change"), BETWEEN, ids=lambda each: getattr(each, "__name__", "")
)
def test_what_happens_between_two_steps(
    stays: bool | None, change: Callable[[Training], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    own, twin = both()
    quick, taken = own.kept.replay, own.taken
    assert taken == 3
    for each in (own, twin):
        change(each)
    for seed in range(5, 10):
        assert torch.equal(own.step(seed), twin.step(seed))
        assert_same(own, twin)
        if seed == 5 and stays is not None:
            assert (own.kept.replay is quick and quick.taken == taken + 1) is stays


def test_a_variable_that_the_loss_freezes() -> None:
    own, twin = both(summaries=["learning_rate"])
    for each in (own, twin):
        _frozen_in_the_loss(each)
    for seed in range(5, 9):
        assert torch.equal(own.step(seed), twin.step(seed))
        assert_same(own, twin)


def test_what_is_refused_is_so_after_them() -> None:
    own, twin = both()
    for each in (own, twin):
        each.take._loss = lambda each=each: (each.variables[0] * float("inf")).sum().reshape(1)
    before, errors = own.written(), []
    for each in (own, twin):
        with pytest.raises(ValueError, match="loss must be a scalar") as caught:
            each.step(5)
        errors.append((str(caught.value), caught.value.__notes__))
        assert each.take.was_applied is False
    assert errors[0] == errors[1]
    assert all(map(torch.equal, before, own.written()))


@pytest.mark.parametrize("summaries", [None, ["learning_rate"]])
def test_a_variable_that_the_loss_leaves_out(summaries: Any) -> None:
    own, twin = both(summaries=summaries)
    before = own.written()
    for each in (own, twin):
        each.take._loss = lambda each=each: (each.variables[0] * 2).sum()
        if summaries is None:
            with pytest.raises(ValueError, match="'w1:0' has no gradient"):
                each.step(5)
            assert all(map(torch.equal, before, each.written()))
        else:
            each.step(5)
    assert_same(own, twin)
    assert own.taken == 0


def test_a_rate_is_as_it_was_if_the_step_fails() -> None:
    own, twin = both(policy="decay")
    rate = own.take.learning_rate

    def fail() -> None:
        raise KeyError("no data")

    for each in (own, twin):
        each.within = fail
        with pytest.raises(KeyError) as caught:
            each.step(5)
        assert "The step was not taken: no variable and no slot has changed." in (
            caught.value.__notes__
        )
        each.within = lambda: None
    assert torch.equal(own.take.learning_rate, rate)
    assert_same(own, twin)
    assert torch.equal(own.step(6), twin.step(6))
    assert_same(own, twin)


@pytest.mark.parametrize(
    ("is_after", "error"),  # that a signal's function may raise
    [
        (False, KeyboardInterrupt),
        (True, KeyboardInterrupt),
        (False, TimeoutError),
        (True, TimeoutError),
        (True, RuntimeError),
    ],
)
@pytest.mark.parametrize("where", ["take", "then"])
def test_an_interruption_leaves_the_step_whole(
    where: str, is_after: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, twin = both(policy="decay")
    rate = own.take.learning_rate
    place = (
        (guard_table.GuardTable, "replay") if where == "take" else (type(own.inner), "_take_again")
    )
    take = getattr(*place)

    def interrupted(*given: Any) -> int:
        mismatch = take(*given) if is_after else 0
        # Then the numbers of the step are computed, and this is called again.
        if mismatch == replay_kernel.NOT_TABLED:
            return mismatch
        raise error

    monkeypatch.setattr(*place, interrupted)
    with pytest.raises(error) as caught:
        own.step(5)
    monkeypatch.undo()
    notes = getattr(caught.value, "__notes__", [])
    assert ("The step was taken." in notes) is is_after
    assert own.take.was_applied is is_after
    assert torch.equal(own.take.learning_rate, rate) is not is_after
    if is_after:
        twin.step(5)
    assert_same(own, twin) if is_after else None
    own.step(6)
    twin.step(6)
    assert_same(own, twin)


def test_gradients_are_not_recorded_where_nobody_wants_them() -> None:
    own, twin = both()
    with torch.no_grad():
        assert torch.equal(own.step(5), twin.step(5))
    with torch.inference_mode():
        own.step(6)
        twin.step(6)
    assert_same(own, twin)
    with thalweg.engine("reference"):
        own.step(7)
        twin.step(7)
    assert_same(own, twin)


def test_nothing_keeps_a_step_but_its_user() -> None:
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
