"""Runs of a session whose steps are taken in one native call: only their time differs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
import thalweg.v1 as tf
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table, replay_kernel
from thalweg._graph import by_reference, operation, placeholder
from thalweg.v1 import train
from thalweg.v1.contrib import opt

pytestmark = pytest.mark.skipif(
    isinstance(torch_layout_probe.layout(), str), reason="torch's objects cannot be read here"
)
SHAPES = {"w": (3, 2), "b": (70,), "s": ()}
CLASSES: dict[str, Callable[[Any], Any]] = {
    "GradientDescent": lambda step: train.GradientDescentOptimizer(0.1),
    "Momentum": lambda step: train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "Adam": lambda step: train.AdamOptimizer(0.1),
    "RMSProp": lambda step: train.RMSPropOptimizer(0.1, momentum=0.5, centered=True),
    "Ftrl": lambda step: train.FtrlOptimizer(0.1),
    "Nadam": lambda step: opt.NadamOptimizer(0.1),
    "AdamW": lambda step: opt.AdamWOptimizer(0.01, learning_rate=0.1),
    "a rate that decays": lambda step: train.AdamOptimizer(
        train.exponential_decay(0.1, step, 2, 0.5)
    ),
    "Ftrl with a rate that decays": lambda step: train.FtrlOptimizer(
        train.exponential_decay(0.1, step, 2, 0.5)
    ),
    "a rate in a variable": lambda step: train.AdamOptimizer(
        tf.Variable(0.1, trainable=False, name="rate")
    ),
    "a beta that is a tensor": lambda step: train.AdamOptimizer(0.1, beta1=tf.constant(0.9)),
}


class Training:
    """A graph of a small loss, and a session that trains it; the twin's steps are careful."""

    def __init__(self, name: str = "Adam", is_twin: bool = False, is_fed: bool = False) -> None:
        self.is_twin = is_twin
        self.graph = tf.Graph()
        dice = np.random.default_rng(0)
        with self.graph.as_default():
            self.variables = [
                tf.Variable(dice.normal(size=shape).astype("float32"), name=name)
                for name, shape in SHAPES.items()
            ]
            self.count = train.get_or_create_global_step()
            self.optimizer = CLASSES[name](self.count)
            self.feeds = [placeholder("float32", var.shape) for var in self.variables]
            pairs = list(zip(self.feeds, self.variables, strict=True))
            if not is_fed:
                own = [(var * var * fed).sum() for fed, var in pairs]
                self.loss = own[0] + own[1] + own[2]
                pairs = self.optimizer.compute_gradients(self.loss, self.variables)
            self.train_op = self.optimizer.apply_gradients(pairs, self.count)
            init = tf.global_variables_initializer()
        self.session = tf.Session(graph=self.graph)
        self.session.run(init)

    @property
    def kept(self) -> Any:
        return self.optimizer._plans._sessions.get(self.session)

    @property
    def taken(self) -> int:
        return getattr(self.kept.replay, "taken", 0)

    def feed(self, seed: int) -> dict[Any, Any]:
        dice = np.random.default_rng(seed)
        shapes = SHAPES.values()
        values = [np.asarray(dice.normal(size=shape), "float32") for shape in shapes]
        return dict(zip(self.feeds, values, strict=True))

    def step(self, seed: int, op: Any = None, feed: Any = None) -> Any:
        if self.is_twin and self.kept is not None:
            self.kept.replay = None
        given = self.feed(seed) if feed is None else feed
        return self.session.run(self.train_op if op is None else op, given)

    def written(self) -> list[torch.Tensor]:
        every = self.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        return self.session.snapshot([var for var in every if self.session.is_initialized(var)])


def both(name: str = "Adam", steps: int = 5, is_fed: bool = False) -> tuple[Training, Training]:
    own, twin = Training(name, is_fed=is_fed), Training(name, is_twin=True, is_fed=is_fed)
    for seed in range(steps):
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)
    return own, twin


def assert_same(own: Training, twin: Training) -> None:
    assert all(map(torch.equal, own.written(), twin.written()))


@pytest.mark.parametrize("is_fed", [False, True])
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_has_them(name: str, is_fed: bool) -> None:
    own, twin = both(name, 8, is_fed)
    assert own.taken == 6
    assert twin.taken == 0


def test_what_is_fetched_beside_them() -> None:
    own, twin = both(steps=0)
    for seed in range(6):
        found = [
            each.step(seed, {"done": each.train_op, "those": (each.loss, [each.count])})
            for each in (own, twin)
        ]
        assert found[0] == found[1]
        assert found[0]["done"] is None
        assert found[0]["those"][1] == [seed]
    assert own.taken == 4


def _load(own: Training) -> None:
    own.variables[1].load(np.ones(70, "float32"), own.session)


def _load_all(own: Training) -> None:
    own.session.load_all({own.variables[0]: torch.ones(3, 2), own.variables[2]: torch.ones(())})


def _power(own: Training) -> None:
    power = own.optimizer._non_slots["beta1_power", own.graph]
    power.load(0.25, own.session)


def _power_without_a_version(own: Training) -> None:
    power = own.optimizer._non_slots["beta1_power", own.graph]
    own.session.leaf(power).data.fill_(0.25)


def _count(own: Training) -> None:
    own.count.load(100, own.session)


def _other_memory(own: Training) -> None:
    own.session.leaf(own.variables[1]).data = torch.ones(70)


def _constraint(own: Training) -> None:
    own.session.leaf(own.variables[0]).constraint = torch.abs


def _other_leaves(own: Training) -> None:
    every = own.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    values = own.session.snapshot(every)
    own.session.values.clear()
    own.session.load_all(dict(zip(every, values, strict=True)))


def _more_of_the_graph(own: Training) -> None:
    with own.graph.as_default():
        more = tf.Variable(1.0, name="more", trainable=False)
    own.session.run(more.initializer)


def _attribute(own: Training) -> None:
    own.optimizer._lr = 0.9  # which a graph has read when it was built


def _own_hook(own: Training) -> None:
    hook = own.optimizer._prepare
    own.optimizer._prepare = lambda: hook()


def _options(own: Training) -> None:
    own.optimizer.engine = "reference"


BETWEEN = [
    (True, _load),
    (False, _load_all),
    (True, _power),
    (True, _power_without_a_version),
    (True, _count),
    (False, _other_memory),
    (False, _constraint),
    (False, _other_leaves),
    (False, _more_of_the_graph),
    (False, _attribute),
    (False, _own_hook),
    (False, _options),
]


@pytest.mark.parametrize(
    ("stays", "change"), BETWEEN, ids=lambda each: getattr(each, "__name__", "")
)
def test_what_happens_between_two_runs(
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


def _as_lists(feed: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value.tolist() for key, value in feed.items()}


def _as_tensors(feed: dict[Any, Any]) -> dict[Any, Any]:
    return {key: torch.from_numpy(value.copy()).requires_grad_() for key, value in feed.items()}


def _as_doubles(feed: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value.astype("float64").astype(">f4") for key, value in feed.items()}


def _by_name(feed: dict[Any, Any]) -> dict[Any, Any]:
    return {key.name: value for key, value in feed.items()}


@pytest.mark.parametrize("is_fed", [False, True])
@pytest.mark.parametrize("change", [_as_lists, _as_tensors, _as_doubles, _by_name])
def test_what_is_fed(change: Callable[[Any], Any], is_fed: bool) -> None:
    own, twin = both(is_fed=is_fed)
    own.step(5, feed=change(own.feed(5)))
    twin.step(5)
    assert_same(own, twin)
    assert own.taken == 4


def test_what_was_fed_is_not_kept() -> None:
    own, twin = both(is_fed=True)
    feed = own.feed(5)
    own.step(5, feed=feed)
    for value in feed.values():
        value.fill(7)
    twin.step(5)
    assert_same(own, twin)


def test_what_is_refused_is_so_after_them() -> None:
    own, twin = both(is_fed=True)
    before, errors = own.written(), []
    for each in (own, twin):
        with pytest.raises(ValueError, match="Cannot feed value of shape") as caught:
            each.step(5, feed={**each.feed(5), each.feeds[0]: np.ones((2, 3), "float32")})
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert all(map(torch.equal, before, own.written()))


def test_two_steps_of_one_optimizer() -> None:
    own, twin = both(steps=0)
    others: list[Any] = []
    for each in (own, twin):
        with each.graph.as_default():
            pairs = list(zip(each.feeds, each.variables, strict=True))
            others.append(each.optimizer.apply_gradients(pairs[:2]))
    for seed in range(9):
        for each, other in zip((own, twin), others, strict=True):
            each.step(seed)
            each.step(seed + 100, other)
        assert_same(own, twin)


def test_two_sessions_of_one_graph() -> None:
    own, twin = both()
    with own.graph.as_default():
        init = tf.global_variables_initializer()
    first, other = own.session, tf.Session(graph=own.graph)
    other.run(init)
    again = Training(is_twin=True)
    for seed in range(6):
        own.session = other
        own.step(seed)
        again.step(seed)
        assert_same(own, again)
        own.session = first
        own.step(seed)
        twin.step(seed)
        assert_same(own, twin)
    assert own.taken == 9


def test_a_closed_session() -> None:
    own, _ = both()
    own.session.close()
    with pytest.raises(RuntimeError, match="closed Session"):
        own.step(5)
    assert own.taken == 3


def test_another_engine_is_seen() -> None:
    own, twin = both()
    quick = own.kept.replay
    with thalweg.engine("reference"):
        own.step(5)
        twin.step(5)
    assert quick.taken == 3
    assert_same(own, twin)


def test_a_rate_in_a_variable_is_read_at_each_run() -> None:
    own, twin = both("a rate in a variable")
    for seed in range(5, 9):
        for each in (own, twin):
            each.optimizer._lr.load(0.5 / seed, each.session)
            each.step(seed)
        assert_same(own, twin)
    assert own.taken == 7


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
        # Then the numbers of the step are computed, and this is called again.
        if mismatch == replay_kernel.NOT_TABLED:
            return mismatch
        raise error

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    with pytest.raises(error) as caught:
        own.step(5)
    monkeypatch.undo()
    notes = getattr(caught.value, "__notes__", [])
    assert ("The step was taken." in notes) is is_after
    if is_after:
        twin.step(5)
    assert_same(own, twin)
    own.step(6)
    twin.step(6)
    assert_same(own, twin)
    assert torch.is_grad_enabled()


@pytest.mark.usefixtures("threads_change_often")
def test_threads_of_one_session() -> None:
    own = Training("GradientDescent")
    steps = 60

    def train_alone() -> None:
        for seed in range(steps):
            own.step(seed)

    threads = [threading.Thread(target=train_alone) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert int(own.session.run(own.count)) == 3 * steps
    assert own.taken > steps


def test_a_list_of_an_operation_is_its_own_in_each_run() -> None:
    graph = tf.Graph()
    found: list[Any] = []

    def note(nest: Any) -> None:
        nest["plain"].append(len(nest["plain"]))
        found.append(nest)

    with graph.as_default():
        fed = placeholder("float32", ())
        op = operation(note, [{"fed": [fed], "plain": [], "pair": (fed, 2)}], "note")
    session = tf.Session(graph=graph)
    session.run(op, {fed: 1.0})
    session.run(op, {fed: 2.0})
    assert [each["plain"] for each in found] == [[0], [0]]
    assert [float(each["fed"][0]) for each in found] == [1.0, 2.0]
    assert [(float(each["pair"][0]), each["pair"][1]) for each in found] == [(1.0, 2), (2.0, 2)]


def test_a_variable_that_an_operation_cuts_is_refused_after_it() -> None:
    graph = tf.Graph()
    with graph.as_default():
        var = tf.Variable(np.ones(4, "float32"))
        first = torch.exp(var)

        def cut(leaf: torch.Tensor) -> None:
            leaf.untyped_storage().resize_(0)

        op = operation(cut, [by_reference(var)], "cut", kind="pure", control_inputs=[first])
        with graph.control_dependencies([op]):
            last = torch.exp(var)
        init = var.initializer
    session = tf.Session(graph=graph)
    session.run(init)
    with pytest.raises(thalweg.errors.LayoutError, match="storage was cut"):
        session.run([first, last])


def test_a_variable_that_a_run_gives_other_memory_is_read_anew() -> None:
    graph = tf.Graph()
    with graph.as_default():
        var = tf.Variable(np.ones(2, "float32"), validate_shape=False)
        first = torch.exp(var)
        with graph.control_dependencies([first]):
            longer = tf.assign(var, np.zeros(3, "float32"), validate_shape=False)
        with graph.control_dependencies([longer]):
            last = torch.exp(var)
        init = var.initializer
    session = tf.Session(graph=graph)
    session.run(init)
    found = session.run([first, last])
    assert [each.shape for each in found] == [(2,), (3,)]
