"""Steps of `thalweg.v1.train` in one native call: only their time differs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
from thalweg import IndexedSlices, Variable
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table, replay_kernel
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

    def step(self, seed: int, change: Callable[[list[Any]], Any] = lambda pairs: pairs) -> None:
        if self.is_twin:
            self.kept.replay = None
        dice = torch.Generator().manual_seed(seed)
        pairs = [
            (torch.randn(var.shape, generator=dice).to(var.dtype), var) for var in self.variables
        ]
        self.optimizer.apply_gradients(change(pairs), self.global_step)

    def written(self) -> list[Any]:
        own = (*self.variables, *self.optimizer.variables(), self.global_step)
        return [each.detach().clone() for each in own]


def both(name: str = "Adam", steps: int = 5) -> tuple[Training, Training]:
    own, twin = Training(name), Training(name, is_twin=True)
    for seed in range(steps):
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)
    return own, twin


def assert_same(own: Training, twin: Training) -> None:
    for one, other in zip(own.written(), twin.written(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_has_them(name: str) -> None:
    own, twin = both(name, 8)
    assert own.taken == 6
    assert twin.taken == 0
    assert int(own.global_step) == 8


def test_without_a_global_step() -> None:
    own, twin = both(steps=0)
    own.global_step = twin.global_step = None
    for seed in range(6):
        own.step(seed)
        twin.step(seed)
    assert all(map(torch.equal, own.variables, twin.variables))
    assert own.taken == 4


@pytest.mark.parametrize("first", [2**24 - 1, 2**31, 2**53])
def test_a_count_of_steps_is_a_whole_number(first: int) -> None:
    own, twin = both(steps=0)
    for each in (own, twin):
        each.global_step.assign(first)
    for seed in range(6):
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)
    assert own.taken == 4
    assert int(own.global_step) == first + 6


NONE: dict[str, Callable[[], Any]] = {
    "averages": lambda: opt.MovingAverageOptimizer(train.AdamOptimizer(0.1)),
    "norms": lambda: opt.LARSOptimizer(0.1),
}


@pytest.mark.parametrize("name", NONE)
def test_where_there_are_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CLASSES, name, NONE[name])
    own, _ = both(name)
    assert own.taken == 0


def _other_attribute(own: Training) -> None:
    own.optimizer._lr = 0.5


def _power(own: Training) -> None:
    own.optimizer._get_beta_accumulators()[0].assign(0.5)


def _power_without_a_version(own: Training) -> None:
    own.optimizer._get_beta_accumulators()[0].data.fill_(0.5)


def _other_count(own: Training) -> None:
    own.global_step.assign(100)


def _another_global_step(own: Training) -> None:
    own.global_step = Variable(5, dtype=torch.int64, trainable=False)


def _narrow_global_step(own: Training) -> None:
    own.global_step = Variable(5, dtype=torch.int32, trainable=False)


def _own_hook(own: Training) -> None:
    optimizer = own.optimizer
    hook = optimizer._resource_apply_dense
    optimizer._resource_apply_dense = lambda grad, var: hook(grad * 2, var)


def _other_memory(own: Training) -> None:
    own.variables[1].data = torch.ones(70)


def _constraint(own: Training) -> None:
    own.variables[0].constraint = torch.abs


BETWEEN = [
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


@pytest.mark.parametrize(
    ("stays", "change"), BETWEEN, ids=lambda each: getattr(each, "__name__", "")
)
def test_what_happens_between_two_steps(
    stays: bool, change: Callable[[Training], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlanCache, "longest_wait", 1)
    own, twin = both()
    quick, taken = own.kept.replay, own.taken
    assert taken == 3
    for each in (own, twin):
        change(each)
    own.step(5)
    twin.step(5)
    assert_same(own, twin)
    assert (own.kept.replay is quick and quick.taken == taken + 1) is stays
    for seed in range(6, 10):
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)


def test_a_decay_that_is_set_is_seen() -> None:
    own, twin = both("AdamW")
    for each in (own, twin):
        each.optimizer._weight_decay = 0.5
    for seed in range(5, 9):
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)


def test_variables_that_are_chosen_for_a_decay_are_seen() -> None:
    own, twin = both("AdamW")
    for seed in range(5, 9):
        for each in (own, twin):
            if each.is_twin:
                each.kept.replay = None
            pairs = [(torch.ones_like(var.detach()), var) for var in each.variables]
            chosen = each.variables[seed % 3 :]
            each.optimizer.apply_gradients(pairs, each.global_step, decay_var_list=chosen)
        assert_same(own, twin)


@pytest.mark.parametrize("kind", [list, tuple])
def test_pairs_of_other_kinds(kind: Any) -> None:
    own, twin = both(steps=0)
    for seed in range(9):
        for each in (own, twin):
            each.step(seed, lambda pairs: kind(map(kind, pairs)))
        assert_same(own, twin)
    assert own.taken == 7


def test_a_rate_in_a_variable_is_read_at_each_step() -> None:
    own, twin = both("a rate that is a variable")
    for seed in range(5, 9):
        for each in (own, twin):
            each.optimizer._lr.assign(0.5 / seed)
            each.step(seed)
        assert_same(own, twin)
    assert own.taken == 7


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
def test_what_else_is_given(change: Callable[[list[Any]], Any]) -> None:
    own, twin = both()
    quick, taken = own.kept.replay, own.taken
    own.step(5, change)
    twin.step(5, change)
    assert quick.taken == taken
    for seed in range(6, 9):
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)


def test_what_is_refused_is_so_after_them() -> None:
    own, twin = both()
    before, errors = own.written(), []
    for each in (own, twin):
        with pytest.raises(ValueError, match="Gradient of") as caught:
            each.step(5, lambda pairs: [(pairs[0][0][:1], pairs[0][1]), *pairs[1:]])
        errors.append((str(caught.value), caught.value.__notes__))
    assert errors[0] == errors[1]
    assert all(map(torch.equal, before, own.written()))


def test_another_engine_is_seen() -> None:
    own, twin = both()
    quick = own.kept.replay
    with thalweg.engine("reference"):
        own.step(5)
        twin.step(5)
    assert quick.taken == 3
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
def test_an_interruption_leaves_the_step_whole(
    is_after: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, twin = both()
    take = guard_table.GuardTable.replay

    def interrupted(*given: Any) -> int:
        mismatch = take(*given) if is_after else 0
        if (
            mismatch == replay_kernel.NOT_TABLED
        ):  # the numbers of the step are computed, and it is called again
            return mismatch
        raise error

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    with pytest.raises(error) as caught:
        own.step(5)
    monkeypatch.undo()
    said = [
        note for note in getattr(caught.value, "__notes__", []) if note == "The step was taken."
    ]
    assert bool(said) is is_after
    if is_after:
        twin.step(5)
    assert_same(own, twin)
    own.step(6)
    twin.step(6)
    assert_same(own, twin)


@pytest.mark.usefixtures("threads_change_often")
def test_no_count_is_lost_between_two_threads() -> None:
    step = Variable(0, dtype=torch.int64, trainable=False)
    steps = 300

    def train_alone() -> None:
        variables = [Variable(torch.ones(3)) for _ in range(3)]
        optimizer = train.GradientDescentOptimizer(0.1)
        for _ in range(steps):
            optimizer.apply_gradients([(torch.ones(3), var) for var in variables], step)

    threads = [threading.Thread(target=train_alone) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert int(step) == 3 * steps


def test_nothing_keeps_an_optimizer_but_its_user() -> None:
    own, _ = both()
    assert own.taken == 3
    variable, optimizer = weakref.ref(own.variables[0]), weakref.ref(own.optimizer)
    gc.collect()
    gc.disable()
    try:
        del own
        assert optimizer() is None
        assert variable() is None
    finally:
        gc.enable()


def test_a_counter_that_is_a_power_too() -> None:
    own, twin = both()
    for each in (own, twin):
        each.global_step = each.optimizer._get_beta_accumulators()[0]
    for seed in range(5, 9):
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)


class _Doubled(train.AdamOptimizer):
    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        return super()._resource_apply_dense(grad * 2, handle)


def test_another_class_is_seen() -> None:
    own, twin = both()
    for each in (own, twin):
        each.optimizer.__class__ = _Doubled
    for seed in range(5, 9):
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)


def test_a_counter_that_is_updated_too() -> None:
    own, twin = both(steps=0)
    for each in (own, twin):
        each.optimizer = CLASSES["GradientDescent"]()
        each.global_step = Variable(5.0)
        each.variables.append(each.global_step)
    for seed in range(8):
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)
    assert own.taken == 0


def test_a_copy_begins_anew() -> None:
    own, _ = both()
    other = deepcopy(own)
    assert other.taken == 0
    for seed in range(5, 9):
        own.step(seed)
        other.step(seed)
        assert_same(own, other)


def test_a_float_that_counts_counts_as_far_as_it_can() -> None:
    own, twin = Training("GradientDescent"), Training("GradientDescent", is_twin=True)
    for each in (own, twin):
        each.global_step = Variable(torch.tensor(16777213.0), trainable=False)
    for seed in range(8):
        own.step(seed)
        twin.step(seed)
        assert float(own.global_step) == float(twin.global_step)
    assert float(own.global_step) == 16777216.0
    assert own.taken == 6


def test_a_rate_in_an_array_that_is_nan_is_refused() -> None:
    rate = np.array(0.5, np.float32)
    w = torch.nn.Parameter(torch.ones(3))
    opt = thalweg.v1.train.AdamOptimizer(rate)
    for _ in range(4):
        opt.apply_gradients([(torch.ones(3), w)])
    rate[...] = np.nan
    before = w.detach().clone()
    with pytest.raises(ValueError, match="is nan"):
        opt.apply_gradients([(torch.ones(3), w)])
    assert torch.equal(w, before)
