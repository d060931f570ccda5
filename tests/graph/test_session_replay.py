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
from bit_comparison import assert_same as assert_same_tensors
from thalweg._core.plan_cache import PlanCache
from thalweg._engines import torch_layout_probe
from thalweg._engines.cpu import guard_table, replay_block
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

    def __init__(self, name: str = "Adam", is_twin: bool = False, by_feed: bool = False) -> None:
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
            if not by_feed:
                losses = [(var * var * feed).sum() for feed, var in pairs]
                self.loss = losses[0] + losses[1] + losses[2]
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
        feed_dict = self.feed(seed) if feed is None else feed
        return self.session.run(self.train_op if op is None else op, feed_dict)

    def written(self) -> list[torch.Tensor]:
        variables = self.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        return self.session.snapshot([var for var in variables if self.session.is_initialized(var)])


def both(name: str = "Adam", steps: int = 5, by_feed: bool = False) -> tuple[Training, Training]:
    fast, twin = Training(name, by_feed=by_feed), Training(name, is_twin=True, by_feed=by_feed)
    for seed in range(steps):
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)
    return fast, twin


def assert_same(fast: Training, twin: Training) -> None:
    assert_same_tensors(fast.written(), twin.written())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("by_feed", [False, True])
@pytest.mark.parametrize("name", CLASSES)
def test_every_class_is_replayed(name: str, by_feed: bool) -> None:
    fast, twin = both(name, 8, by_feed)
    assert fast.taken == 6
    assert twin.taken == 0


def test_fetches_beside_a_replayed_step_equal_full_runs() -> None:
    fast, twin = both(steps=0)
    for seed in range(6):
        fetches = [
            run.step(seed, {"done": run.train_op, "those": (run.loss, [run.count])})
            for run in (fast, twin)
        ]
        assert fetches[0] == fetches[1]
        assert fetches[0]["done"] is None
        assert fetches[0]["those"][1] == [seed]
    assert fast.taken == 4


def _load(training: Training) -> None:
    training.variables[1].load(np.ones(70, "float32"), training.session)


def _load_all(run: Training) -> None:
    run.session.load_all({run.variables[0]: torch.ones(3, 2), run.variables[2]: torch.ones(())})


def _power(training: Training) -> None:
    power = training.optimizer._non_slots["beta1_power", training.graph]
    power.load(0.25, training.session)


def _power_without_a_version(training: Training) -> None:
    power = training.optimizer._non_slots["beta1_power", training.graph]
    training.session.leaf(power).data.fill_(0.25)


def _count(training: Training) -> None:
    training.count.load(100, training.session)


def _other_memory(training: Training) -> None:
    training.session.leaf(training.variables[1]).data = torch.ones(70)


def _constraint(training: Training) -> None:
    training.session.leaf(training.variables[0]).constraint = torch.abs


def _other_leaves(training: Training) -> None:
    variables = training.graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
    values = training.session.snapshot(variables)
    training.session.values.clear()
    training.session.load_all(dict(zip(variables, values, strict=True)))


def _more_of_the_graph(training: Training) -> None:
    with training.graph.as_default():
        counter = tf.Variable(1.0, name="more", trainable=False)
    training.session.run(counter.initializer)


def _attribute(training: Training) -> None:
    training.optimizer._lr = 0.9  # which a graph has read when it was built


def _own_hook(training: Training) -> None:
    hook = training.optimizer._prepare
    training.optimizer._prepare = lambda: hook()


def _options(training: Training) -> None:
    training.optimizer.engine = "reference"


CHANGES = [
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


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("replay_stays", "change"), CHANGES, ids=lambda change: getattr(change, "__name__", "")
)
def test_changes_between_replayed_runs_are_detected(
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


def _as_lists(feed: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value.tolist() for key, value in feed.items()}


def _as_tensors(feed: dict[Any, Any]) -> dict[Any, Any]:
    return {key: torch.from_numpy(value.copy()).requires_grad_() for key, value in feed.items()}


def _as_doubles(feed: dict[Any, Any]) -> dict[Any, Any]:
    return {key: value.astype("float64").astype(">f4") for key, value in feed.items()}


def _by_name(feed: dict[Any, Any]) -> dict[Any, Any]:
    return {key.name: value for key, value in feed.items()}


@pytest.mark.parametrize("by_feed", [False, True])
@pytest.mark.parametrize("change", [_as_lists, _as_tensors, _as_doubles, _by_name])
def test_replayed_run_reads_feeds(change: Callable[..., Any], by_feed: bool) -> None:
    fast, twin = both(by_feed=by_feed)
    fast.step(5, feed=change(fast.feed(5)))
    twin.step(5)
    assert_same(fast, twin)
    assert fast.taken == 4


def test_replayed_run_does_not_keep_feeds() -> None:
    fast, twin = both(by_feed=True)
    feed = fast.feed(5)
    fast.step(5, feed=feed)
    for value in feed.values():
        value.fill(7)
    twin.step(5)
    assert_same(fast, twin)


def test_invalid_feed_raises_after_replays() -> None:
    fast, twin = both(by_feed=True)
    tensors_before, errors = fast.written(), []
    for run in (fast, twin):
        with pytest.raises(ValueError, match="Cannot feed value of shape") as excinfo:
            run.step(5, feed={**run.feed(5), run.feeds[0]: np.ones((2, 3), "float32")})
        errors.append(str(excinfo.value))
    assert errors[0] == errors[1]
    assert_same_tensors(tensors_before, fast.written())


def test_two_steps_of_one_optimizer_are_replayed() -> None:
    fast, twin = both(steps=0)
    second_ops: list[Any] = []
    for training in (fast, twin):
        with training.graph.as_default():
            pairs = list(zip(training.feeds, training.variables, strict=True))
            second_ops.append(training.optimizer.apply_gradients(pairs[:2]))
    for seed in range(9):
        for training, second_op in zip((fast, twin), second_ops, strict=True):
            training.step(seed)
            training.step(seed + 100, second_op)
        assert_same(fast, twin)


def test_two_sessions_of_one_graph_are_replayed() -> None:
    fast, twin = both()
    with fast.graph.as_default():
        init = tf.global_variables_initializer()
    first, second_session = fast.session, tf.Session(graph=fast.graph)
    second_session.run(init)
    late_twin = Training(is_twin=True)
    for seed in range(6):
        fast.session = second_session
        fast.step(seed)
        late_twin.step(seed)
        assert_same(fast, late_twin)
        fast.session = first
        fast.step(seed)
        twin.step(seed)
        assert_same(fast, twin)
    assert fast.taken == 9


def test_closed_session_raises_after_replays() -> None:
    fast, _ = both()
    fast.session.close()
    with pytest.raises(RuntimeError, match="closed Session"):
        fast.step(5)
    assert fast.taken == 3


def test_changed_engine_is_detected() -> None:
    fast, twin = both()
    quick = fast.kept.replay
    with thalweg.engine("reference"):
        fast.step(5)
        twin.step(5)
    assert quick.taken == 3
    assert_same(fast, twin)


def test_a_rate_in_a_variable_is_read_at_each_run() -> None:
    fast, twin = both("a rate in a variable")
    for seed in range(5, 9):
        for training in (fast, twin):
            training.optimizer._lr.load(0.5 / seed, training.session)
            training.step(seed)
        assert_same(fast, twin)
    assert fast.taken == 7


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
        # Then the numbers of the step are computed, and this is called again.
        if mismatch == replay_block.NOT_TABLED:
            return mismatch
        raise error

    monkeypatch.setattr(guard_table.GuardTable, "replay", interrupted)
    with pytest.raises(error) as excinfo:
        fast.step(5)
    monkeypatch.undo()
    notes = getattr(excinfo.value, "__notes__", [])
    assert ("The step was taken." in notes) is step_is_taken
    if step_is_taken:
        twin.step(5)
    assert_same(fast, twin)
    fast.step(6)
    twin.step(6)
    assert_same(fast, twin)
    assert torch.is_grad_enabled()


@pytest.mark.usefixtures("threads_change_often")
def test_threads_share_replays_of_one_session() -> None:
    training = Training("GradientDescent")
    steps = 60

    def train_alone() -> None:
        for seed in range(steps):
            training.step(seed)

    threads = [threading.Thread(target=train_alone) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(training.session.run(training.count)) == 3 * steps
    assert training.taken > steps


def test_operation_arguments_are_copied_for_each_run() -> None:
    graph = tf.Graph()
    nests: list[Any] = []

    def note(nest: Any) -> None:
        nest["plain"].append(len(nest["plain"]))
        nests.append(nest)

    with graph.as_default():
        feed = placeholder("float32", ())
        op = operation(note, [{"fed": [feed], "plain": [], "pair": (feed, 2)}], "note")
    session = tf.Session(graph=graph)
    session.run(op, {feed: 1.0})
    session.run(op, {feed: 2.0})
    assert [nest["plain"] for nest in nests] == [[0], [0]]
    assert [float(nest["fed"][0]) for nest in nests] == [1.0, 2.0]
    assert [(float(nest["pair"][0]), nest["pair"][1]) for nest in nests] == [(1.0, 2), (2.0, 2)]


def test_variable_truncated_by_an_operation_raises() -> None:
    graph = tf.Graph()
    with graph.as_default():
        var = tf.Variable(np.ones(4, "float32"))
        first = torch.exp(var)

        def cut(leaf: torch.Tensor) -> None:
            leaf.untyped_storage().resize_(0)

        op = operation(cut, [by_reference(var)], "cut", kind="pure", control_inputs=[first])
        with graph.control_dependencies([op]):
            exp_op = torch.exp(var)
        init = var.initializer
    session = tf.Session(graph=graph)
    session.run(init)
    with pytest.raises(thalweg.errors.LayoutError, match="storage was cut"):
        session.run([first, exp_op])


def test_variable_with_replaced_memory_is_read_again() -> None:
    graph = tf.Graph()
    with graph.as_default():
        var = tf.Variable(np.ones(2, "float32"), validate_shape=False)
        first = torch.exp(var)
        with graph.control_dependencies([first]):
            longer = tf.assign(var, np.zeros(3, "float32"), validate_shape=False)
        with graph.control_dependencies([longer]):
            exp_op = torch.exp(var)
        init = var.initializer
    session = tf.Session(graph=graph)
    session.run(init)
    values = session.run([first, exp_op])
    assert [array.shape for array in values] == [(2,), (3,)]
