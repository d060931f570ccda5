"""Steps of `thalweg.v1.train` in one native call: only their time differs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from bit_comparison import assert_same as assert_same_tensors
from thalweg import IndexedSlices, Variable
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table, replay_block
from thalweg.v1 import train
from thalweg.v1.contrib import opt

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
CLASSES: dict[str, Callable[[], Any]] = {
    "GradientDescent": lambda: train.GradientDescentOptimizer(0.1),
    "Momentum": lambda: train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Adam": lambda: train.AdamOptimizer(0.1),
    "Adagrad": lambda: train.AdagradOptimizer(0.1),
    "Adadelta": lambda: train.AdadeltaOptimizer(0.1),
    "RMSProp": lambda: train.RMSPropOptimizer(0.1, momentum=0.5, centered=True),
    "Ftrl": lambda: train.FtrlOptimizer(0.1),
    "ProximalAdagrad": lambda: train.ProximalAdagradOptimizer(0.1),
    "AdaMax": lambda: opt.AdaMaxOptimizer(0.1),
    "Nadam": lambda: opt.NadamOptimizer(0.1),
    "AdamW": lambda: opt.AdamWOptimizer(0.01, learning_rate=0.1),
    "ProximalGradientDescent": lambda: train.ProximalGradientDescentOptimizer(0.1),
    "a rate that is a tensor": lambda: train.AdamOptimizer(torch.tensor(0.1)),
    "a rate that is a variable": lambda: train.AdamOptimizer(Variable(0.1)),
}


class Training:
    """An optimizer over nine variables; its twin takes no step in one call."""

    def __init__(self, name: str = "Adam", is_twin: bool = False) -> None:
        torch.manual_seed(0)
        self.variables = [
            Variable(torch.randn(shape).to(dtype), name=f"{place}_{dtype}")
            for dtype in DTYPES
            for place, shape in enumerate([(3, 2), (70,), ()])
        ]
        self.optimizer = CLASSES[name]()
        self.global_step: Any = Variable(0, dtype=torch.int64, trainable=False)
        self.is_twin = is_twin

    @property
    def kept(self) -> Any:
        return self.optimizer._plans.now()

    @property
    def taken(self) -> int:
        return getattr(self.kept.replay, "taken", 0)

    def step(self, seed: int, change: Callable[..., Any] = lambda pairs: pairs) -> None:
        if self.is_twin:
            self.kept.replay = None
        dice = torch.Generator().manual_seed(seed)
        pairs = [
            (torch.randn(var.shape, generator=dice).to(var.dtype), var) for var in self.variables
        ]
        self.optimizer.apply_gradients(change(pairs), self.global_step)

    def written(self) -> list[Any]:
        tensors = (*self.variables, *self.optimizer.variables(), self.global_step)
        return [tensor.detach().clone() for tensor in tensors]


def both(name: str = "Adam", steps: int = 5) -> tuple[Training, Training]:
    fast, twin = Training(name), Training(name, is_twin=True)
    for seed in range(steps):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)
    return fast, twin


def assert_same(fast: Training, twin: Training) -> None:
    assert_same_tensors(fast.written(), twin.written())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_replayed(name: str) -> None:
    fast, twin = both(name, 8)
    assert fast.taken == 6
    assert twin.taken == 0
    assert int(fast.global_step) == 8


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CLASSES)
def test_large_steps_are_replayed(name: str, large_steps: None) -> None:
    fast, _ = both(name, 6)
    assert fast.taken == 4
    assert fast.kept.replay._native_step.guards.releases_lock


def test_steps_without_a_global_step_are_replayed() -> None:
    fast, twin = both(steps=0)
    fast.global_step = twin.global_step = None
    for seed in range(6):
        fast.step(seed)
        twin.step(seed)
    assert_same_tensors(fast.variables, twin.variables)
    assert fast.taken == 4


@pytest.mark.parametrize("first", [2**24 - 1, 2**31, 2**53])
def test_integer_global_steps_are_counted_exactly(first: int) -> None:
    fast, twin = both(steps=0)
    for training in (fast, twin):
        training.global_step.assign(first)
    for seed in range(6):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)
    assert fast.taken == 4
    assert int(fast.global_step) == first + 6


NO_REPLAYS: dict[str, Callable[[], Any]] = {
    "averages": lambda: opt.MovingAverageOptimizer(train.AdamOptimizer(0.1)),
    "norms": lambda: opt.LARSOptimizer(0.1),
}


@pytest.mark.parametrize("name", NO_REPLAYS)
def test_unsupported_optimizers_are_not_replayed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CLASSES, name, NO_REPLAYS[name])
    fast, _ = both(name)
    assert fast.taken == 0


def _other_attribute(training: Training) -> None:
    training.optimizer._lr = 0.5


def _power(training: Training) -> None:
    training.optimizer._get_beta_accumulators()[0].assign(0.5)


def _power_without_a_version(training: Training) -> None:
    training.optimizer._get_beta_accumulators()[0].data.fill_(0.5)


def _other_count(training: Training) -> None:
    training.global_step.assign(100)


def _another_global_step(training: Training) -> None:
    training.global_step = Variable(5, dtype=torch.int64, trainable=False)


def _narrow_global_step(training: Training) -> None:
    training.global_step = Variable(5, dtype=torch.int32, trainable=False)


def _own_hook(training: Training) -> None:
    optimizer = training.optimizer
    hook = optimizer._resource_apply_dense
    optimizer._resource_apply_dense = lambda grad, var: hook(grad * 2, var)


def _other_memory(training: Training) -> None:
    training.variables[1].data = torch.ones(70)


def _constraint(training: Training) -> None:
    training.variables[0].constraint = torch.abs


CHANGES = [
    (False, _other_attribute),
    (True, _power),
    (True, _power_without_a_version),
    (True, _other_count),
    (False, _another_global_step),
    (False, _narrow_global_step),
    (False, _own_hook),
    (False, _other_memory),
    (False, _constraint),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("replay_stays", "change"), CHANGES, ids=lambda change: getattr(change, "__name__", "")
)
def test_changes_between_replayed_steps_are_detected(
    replay_stays: bool, change: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    fast, twin = both()
    quick, replay_count = fast.kept.replay, fast.taken
    assert replay_count == 3
    for training in (fast, twin):
        change(training)
    fast.step(5)
    twin.step(5)
    assert_same(fast, twin)
    assert (fast.kept.replay is quick and quick.taken == replay_count + 1) is replay_stays
    for seed in range(6, 10):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)


def test_changed_decay_is_detected() -> None:
    fast, twin = both("AdamW")
    for training in (fast, twin):
        training.optimizer._weight_decay = 0.5
    for seed in range(5, 9):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)


def test_decay_list_is_detected() -> None:
    fast, twin = both("AdamW")
    for seed in range(5, 9):
        for training in (fast, twin):
            if training.is_twin:
                training.kept.replay = None
            pairs = [(torch.ones_like(var.detach()), var) for var in training.variables]
            weights = training.variables[seed % 3 :]
            training.optimizer.apply_gradients(pairs, training.global_step, decay_var_list=weights)
        assert_same(fast, twin)


@pytest.mark.parametrize("kind", [list, tuple])
def test_other_pair_containers_are_replayed(kind: Any) -> None:
    fast, twin = both(steps=0)
    for seed in range(9):
        for training in (fast, twin):
            training.step(seed, lambda pairs: kind(map(kind, pairs)))
        assert_same(fast, twin)
    assert fast.taken == 7


def test_a_rate_in_a_variable_is_read_at_each_step() -> None:
    fast, twin = both("a rate that is a variable")
    for seed in range(5, 9):
        for training in (fast, twin):
            training.optimizer._lr.assign(0.5 / seed)
            training.step(seed)
        assert_same(fast, twin)
    assert fast.taken == 7


def _reversed(pairs: list[Any]) -> Any:
    return pairs[::-1]


def _fewer(pairs: list[Any]) -> Any:
    return pairs[:-1]


def _without_one(pairs: list[Any]) -> Any:
    return [(None, pairs[0][1]), *pairs[1:]]


def _rows(pairs: list[Any]) -> Any:
    grad, var = pairs[0]
    return [(IndexedSlices(grad[:2], torch.tensor([2, 0]), (3, 2)), var), *pairs[1:]]


def _arrays(pairs: list[Any]) -> Any:
    return [(pairs[0][0].numpy(), pairs[0][1]), *pairs[1:]]


@pytest.mark.parametrize("change", [_reversed, _fewer, _without_one, _rows, _arrays])
def test_other_pairs_equal_the_full_step(change: Callable[..., Any]) -> None:
    fast, twin = both()
    quick, replay_count = fast.kept.replay, fast.taken
    fast.step(5, change)
    twin.step(5, change)
    assert quick.taken == replay_count
    for seed in range(6, 9):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)


def test_invalid_gradient_raises_after_replays() -> None:
    fast, twin = both()
    tensors_before, errors = fast.written(), []
    for training in (fast, twin):
        with pytest.raises(ValueError, match="Gradient of") as excinfo:
            training.step(5, lambda pairs: [(pairs[0][0][:1], pairs[0][1]), *pairs[1:]])
        errors.append((str(excinfo.value), excinfo.value.__notes__))
    assert errors[0] == errors[1]
    assert_same_tensors(tensors_before, fast.written())


def test_changed_engine_is_detected() -> None:
    fast, twin = both()
    quick = fast.kept.replay
    with thalweg.engine("reference"):
        fast.step(5)
        twin.step(5)
    assert quick.taken == 3
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
def test_interrupted_replay_is_atomic(
    step_is_taken: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, twin = both()
    take = guard_table.GuardTable.replay

    def interrupted(*args: Any) -> int:
        mismatch = take(*args) if step_is_taken else 0
        if (
            mismatch == replay_block.NOT_TABLED
        ):  # the numbers of the step are computed, and it is called again
            return mismatch
        raise error

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    with pytest.raises(error) as excinfo:
        fast.step(5)
    monkeypatch.undo()
    notes = [
        note for note in getattr(excinfo.value, "__notes__", []) if note == "The step was taken."
    ]
    assert bool(notes) is step_is_taken
    if step_is_taken:
        twin.step(5)
    assert_same(fast, twin)
    fast.step(6)
    twin.step(6)
    assert_same(fast, twin)


@pytest.mark.usefixtures("threads_change_often")
def test_threads_sharing_a_global_step_lose_no_count() -> None:
    step = Variable(0, dtype=torch.int64, trainable=False)
    steps = 300

    def train_alone() -> None:
        variables = [Variable(torch.ones(3)) for _ in range(3)]
        optimizer = train.GradientDescentOptimizer(0.1)
        for _ in range(steps):
            optimizer.apply_gradients([(torch.ones(3), var) for var in variables], step)

    threads = [threading.Thread(target=train_alone) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(step) == 3 * steps


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_error_after_a_step_notes_that_it_was_taken(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    training, _ = both(steps=steps)
    make_lock = type(training.optimizer)._locked

    @contextmanager
    def interrupt_after_step(optimizer: Any) -> Iterator[None]:
        count = int(training.global_step)
        with make_lock(optimizer):
            yield
        if int(training.global_step) > count:
            raise RuntimeError("a signal handler")

    monkeypatch.setattr(type(training.optimizer), "_locked", interrupt_after_step)
    with pytest.raises(RuntimeError, match="a signal handler") as raised:
        training.step(steps)
    assert raised.value.__notes__ == ["The step was taken."]
    assert int(training.global_step) == steps + 1


def test_replay_does_not_keep_an_optimizer_alive() -> None:
    training, _ = both()
    assert training.taken == 3
    variable, optimizer = weakref.ref(training.variables[0]), weakref.ref(training.optimizer)
    gc.collect()
    gc.disable()
    try:
        del training
        assert optimizer() is None
        assert variable() is None
    finally:
        gc.enable()


def test_global_step_shared_with_a_power_is_updated() -> None:
    fast, twin = both()
    for training in (fast, twin):
        training.global_step = training.optimizer._get_beta_accumulators()[0]
    for seed in range(5, 9):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)


class _Doubled(train.AdamOptimizer):
    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return super()._resource_apply_dense(grad * 2, handle)


def test_changed_class_is_detected() -> None:
    fast, twin = both()
    for training in (fast, twin):
        training.optimizer.__class__ = _Doubled
    for seed in range(5, 9):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)


def test_global_step_that_is_also_a_variable_is_updated() -> None:
    fast, twin = both(steps=0)
    for training in (fast, twin):
        training.optimizer = CLASSES["GradientDescent"]()
        training.global_step = Variable(5.0)
        training.variables.append(training.global_step)
    for seed in range(8):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)
    assert fast.taken == 0


def test_copied_optimizer_starts_without_replay() -> None:
    training, _ = both()
    training_copy = deepcopy(training)
    assert training_copy.taken == 0
    for seed in range(5, 9):
        training.step(seed)
        training_copy.step(seed)
        assert_same(training, training_copy)


def test_float_global_step_saturates() -> None:
    fast, twin = Training("GradientDescent"), Training("GradientDescent", is_twin=True)
    for training in (fast, twin):
        training.global_step = Variable(torch.tensor(16777213.0), trainable=False)
    for seed in range(8):
        fast.step(seed)
        twin.step(seed)
        assert float(fast.global_step) == float(twin.global_step)
    assert float(fast.global_step) == 16777216.0
    assert fast.taken == 6


def test_nan_rate_in_an_array_raises() -> None:
    rate = np.array(0.5, np.float32)
    w = torch.nn.Parameter(torch.ones(3))
    opt = thalweg.v1.train.AdamOptimizer(rate)
    for _ in range(4):
        opt.apply_gradients([(torch.ones(3), w)])
    rate[...] = np.nan
    initial = w.detach().clone()
    with pytest.raises(ValueError, match="is nan"):
        opt.apply_gradients([(torch.ones(3), w)])
    assert torch.equal(w, initial)
