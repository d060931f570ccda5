"""Forks while other threads are in a step, in a run, or compiling."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import thalweg
from forks import TIMEOUT, Stop, run_in_child
from thalweg import _graph as tf
from thalweg import optim, v1
from thalweg._base.locks import Lock
from thalweg._core import norms
from thalweg._engines.cpu import kernel_cache, openmp
from thalweg._graph import Graph, Session, by_reference, operation
from thalweg.keras import optimizers as keras
from thalweg.openseq2seq.optimizers import optimize_loss
from thalweg.v1.train.rendezvous import Rendezvous

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
]


class Case(NamedTuple):
    """Something that takes steps.

    Attributes:
        owner: What remembers.
        step: Takes a step.
        saves: What saves.
        load: Loads a state that was saved before.
        values: What is remembered.
    """

    owner: Any
    step: Callable[[], Any]
    saves: list[Callable[[], Any]]
    load: Callable[[], Any]
    values: Callable[[], Any]


def _copies(owner: Any) -> list[Callable[[], Any]]:
    return [
        lambda: copy.copy(owner),
        lambda: copy.deepcopy(owner),
        lambda: pickle.dumps(owner),
    ]


def _listed(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _listed(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, torch.Tensor) else state


def _plain(optimizer: Any) -> Case:
    var = thalweg.Variable([1.0, 2.0], name="w")
    grad = torch.tensor([0.5, -0.5])

    def step() -> Any:
        return optimizer.apply_gradients([(grad, var)])

    step()
    state = optimizer.state_dict()
    saves = [optimizer.state_dict, *_copies(optimizer)]
    load: Callable[[], Any] = lambda: optimizer.load_state_dict(state)  # noqa: E731
    return Case(optimizer, step, saves, load, lambda: _listed(optimizer.state_dict()))


class _Rate:
    """A learning rate; its copies stop nowhere."""

    def __init__(self, stop: Stop | None = None) -> None:
        self.stop = stop

    def __call__(self) -> float:
        if self.stop is not None:
            self.stop()
        return 0.1

    def __reduce__(self) -> Any:
        return _Rate, ()


def keras_adam(stop: Stop) -> Case:
    case = _plain(keras.Adam(_Rate(stop)))
    return case._replace(saves=[*case.saves, case.owner.get_weights])


def keras_by_weights(stop: Stop) -> Case:
    case = keras_adam(stop)
    weights = case.owner.get_weights()
    return case._replace(load=lambda: case.owner.set_weights(weights))


def keras_rule(stop: Stop) -> Case:
    return _plain(keras.RuleOptimizer(thalweg.rules.LARS, _Rate(stop)))


def v1_momentum(stop: Stop) -> Case:
    return _plain(v1.train.MomentumOptimizer(_Rate(stop), 0.9))


def v1_locking(stop: Stop) -> Case:
    return _plain(v1.train.AdamOptimizer(_Rate(stop), use_locking=True))


def training_step(stop: Callable[[], None]) -> Case:
    var = thalweg.Variable([1.0, 2.0], name="w")

    def loss() -> Any:
        stop()
        return (var * var).sum()

    step: Any = optimize_loss(
        loss,
        optimizer="Adam",
        optimizer_params={},
        learning_rate_decay_fn=lambda step: 0.1,
        var_list=[var],
    )
    step()
    state = step.state_dict()
    load: Callable[[], Any] = lambda: step.load_state_dict(state)  # noqa: E731
    return Case(step, step, [step.state_dict], load, lambda: _listed(step.state_dict()))


def training_step_in_the_update(stop: Stop) -> Case:
    case = training_step(lambda: None)
    inner = case.owner.optimizer
    original = inner._make_hooks

    def hooks(*args: Any) -> Any:
        stop()
        return original(*args)

    inner.__dict__["_make_hooks"] = hooks
    return case


CASES = [
    keras_adam,
    keras_by_weights,
    keras_rule,
    v1_momentum,
    v1_locking,
    training_step,
    training_step_in_the_update,
]


def _refused(call: Callable[..., Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return "not refused"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_a_step_under_way_at_the_fork_marks_its_optimizer_in_the_child(make):
    stop = Stop()
    case = make(stop)
    values_before = case.values()

    def child() -> Any:
        messages = [_refused(call) for call in (case.step, *case.saves, case.step)]
        case.load()
        loaded = case.values()
        case.step()
        for save in case.saves:
            save()
        return messages, loaded

    with stop.reached_by(case.step):
        messages, loaded = run_in_child(child)
    name = type(case.owner).__name__
    for message in messages:
        assert name in message
        assert f"process {os.getpid()} forked" in message
        assert "load_state_dict" in message
    assert loaded == values_before
    case.step()  # here nothing is marked
    assert case.values() != values_before


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_failed_load_keeps_the_fork_mark(make):
    stop = Stop()
    case = make(stop)

    def child() -> Any:
        with contextlib.suppress(ValueError):
            if make is keras_by_weights:
                case.owner.set_weights([])
            else:
                case.owner.load_state_dict({"nothing": torch.zeros(())})
        return _refused(case.step)

    with stop.reached_by(case.step):
        assert "forked" in run_in_child(child)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_other_optimizers_step_in_the_child(make):
    stop = Stop()
    busy, free = make(stop), make(Stop())
    opt_copy = make(Stop())
    opt_copy.step()

    def child() -> Any:
        free.step()
        return free.values()

    with stop.reached_by(busy.step):
        assert run_in_child(child) == opt_copy.values()


def test_a_fork_within_the_step_of_its_own_thread_marks_nothing():
    forks: list[Any] = []
    var = thalweg.Variable([1.0, 2.0])

    def rate() -> float:
        if forks:
            forks.pop()()
        return 0.1

    optimizer = keras.Adam(rate)
    optimizer.apply_gradients([([1.0, 1.0], var)])
    twin = copy.deepcopy(optimizer)
    children: list[int] = []

    def fork() -> None:
        children.append(os.fork())

    forks.append(fork)
    reading, writing = os.pipe()
    optimizer.apply_gradients([([1.0, 1.0], var)])
    if not children[0]:
        code = 1
        try:
            optimizer.apply_gradients([([1.0, 1.0], var)])
            optimizer.state_dict()
            code = 0
        finally:
            os.write(writing, bytes([code]))
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"\0"
    os.waitpid(children[0], 0)
    assert int(optimizer.iterations) == int(twin.iterations) + 1


def test_averages_in_progress_raise_in_the_child():
    stop = Stop()
    averages = v1.train.ExponentialMovingAverage(0.9)
    var = thalweg.Variable([1.0])
    averages.apply([var])

    def hold() -> None:
        with averages._lock:
            stop()

    def child() -> Any:
        calls = (lambda: averages.apply([var]), lambda: averages.average(var), averages.state_dict)
        messages = [_refused(call) for call in calls]
        averages.load_state_dict({"Variable/ExponentialMovingAverage": torch.tensor([3.0])}, [var])
        averages.apply([var])
        return messages, averages.average(var).item()

    with stop.reached_by(hold):
        messages, average = run_in_child(child)
    assert len(messages) == 3
    for message in messages:
        assert "ExponentialMovingAverage" in message
        assert "load a state by load_state_dict" in message
    assert average == pytest.approx(2.8)


# What is compiled


def _halved(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    return (var - learning_rate * 0.5 * grad,)


def _doubled(var: Any, grad: Any, *, learning_rate: Any) -> Any:
    return (var - learning_rate * 2.0 * grad,)


HALVED, DOUBLED = (
    thalweg.Rule(name="Fork", update=update, hypers=(thalweg.Hyper("learning_rate", 1.0),))
    for update in (_halved, _doubled)
)


def test_a_fork_waits_for_a_compilation(monkeypatch, tmp_path):
    monkeypatch.setenv("THALWEG_CACHE_DIR", str(tmp_path))
    stop, make = Stop(), kernel_cache._load_address

    def slowly(*args: Any) -> int:
        stop()
        return make(*args)

    monkeypatch.setattr(kernel_cache, "_load_address", slowly)

    def train(rule: thalweg.Rule) -> list[float]:
        var = thalweg.Variable([1.0, 2.0])
        keras.RuleOptimizer(rule).apply_gradients([([1.0, 1.0], var)])
        return var.tolist()

    with stop.reached_by(lambda: train(HALVED)):
        timer = threading.Timer(0.3, stop._go.set)
        timer.start()
        assert run_in_child(lambda: train(DOUBLED)) == [-1.0, 0.0]


def test_fork_within_a_compilation_does_not_deadlock(monkeypatch):
    with kernel_cache._lock:
        assert run_in_child(lambda: _plain(keras.SGD(0.1)).values()["iterations"]) == 1


def test_fork_wait_times_out(monkeypatch):
    monkeypatch.setattr("thalweg._base.locks._PATIENCE", 0.2)
    stop = Stop()

    def hold() -> None:
        with kernel_cache._lock:
            stop()

    with stop.reached_by(hold):
        start = time.monotonic()
        assert run_in_child(lambda: kernel_cache._lock.acquire(blocking=False))
        assert time.monotonic() - start < TIMEOUT


def test_a_measure_under_way_does_not_hold_up_the_child(monkeypatch):
    stop, make = Stop(), norms.norms_of

    def slowly(*args: Any) -> Any:
        stop()
        return make(*args)

    monkeypatch.setattr(norms, "norms_of", slowly)
    first, second = _plain(keras.Adam(0.1, clipnorm=1.0)), _plain(keras.Adam(0.1, clipnorm=1.0))
    with stop.reached_by(first.step):
        assert run_in_child(lambda: second.step() is not None)


# Graphs and sessions


def _counting(graph: Graph) -> tuple[Any, Any, Session, Stop]:
    stop = Stop()
    var = tf.Variable([1.0, 2.0], name="w")

    def write(leaf: torch.Tensor) -> None:
        leaf.detach().add_(1.0)
        stop()
        leaf.detach().add_(1.0)

    op = operation(write, [by_reference(var)], "write", kind="update")
    session = Session(graph=graph)
    session.run(var.initializer)
    return var, op, session, stop


def test_a_run_that_updates_is_forgotten_in_the_child(graph):
    var, op, session, stop = _counting(graph)

    def child() -> Any:
        messages = [_refused(partial(session.run, fetch)) for fetch in (var, op)]
        session.run(var.initializer)
        session.run(op)
        values = session.run(var).tolist()
        var.load([5.0, 5.0], session)
        return messages, values, session.run(var).tolist()

    with stop.reached_by(lambda: session.run(op)):
        messages, values, loaded = run_in_child(child)
    for message in messages:
        assert "uninitialized value w" in message
        assert f"process {os.getpid()} forked" in message
    assert (values, loaded) == ([3.0, 4.0], [5.0, 5.0])
    assert session.run(var).tolist() == [3.0, 4.0]


def test_a_run_that_reads_is_forgotten_in_the_child_and_its_values_are_not(graph):
    var, op, session, _ = _counting(graph)
    stop = Stop()

    def read(value: torch.Tensor) -> torch.Tensor:
        stop()
        return value * 1

    output = operation(read, [var], "read", kind="pure", outputs=var)

    def child() -> Any:
        session.run(op)
        return session.run([var, output])[0].tolist()

    with stop.reached_by(lambda: session.run(output)):
        assert run_in_child(child) == [3.0, 4.0]


def test_fork_within_a_session_run_does_not_deadlock(graph):
    var = tf.Variable([1.0], name="w")
    answers: list[Any] = []
    session = Session(graph=graph)

    def write(leaf: torch.Tensor) -> None:
        def child() -> Any:
            leaf.detach().add_(1.0)
            return session.run(var).tolist(), session._lock._writing

        answers.append(run_in_child(child))

    op = operation(write, [by_reference(var)], "write", kind="update")
    session.run(var.initializer)
    session.run(op)
    assert answers == [([2.0], True)]
    assert session.run(var).tolist() == [1.0]


@pytest.mark.parametrize("face", ["v1", "keras"])
def test_optimizer_within_a_session_run_is_not_marked(graph, face):
    stop = Stop()
    var = tf.Variable([1.0, 2.0], name="w")
    grad = torch.tensor([1.0, 1.0])
    opt: Any = keras.Adam(0.5) if face == "keras" else v1.train.GradientDescentOptimizer(0.5)
    take = opt._make_hooks

    def hooks(*args: Any) -> Any:
        stop()
        return take(*args)

    opt.__dict__["_make_hooks"] = hooks
    op = opt.apply_gradients([(grad, var)])
    start = tf.global_variables_initializer()
    session = Session(graph=graph)
    session.run(start)

    def child() -> Any:
        message = _refused(lambda: session.run(op))
        session.run(start)
        session.run(op)
        return message, session.run(var).tolist()

    with stop.reached_by(lambda: session.run(op)):
        message, values = run_in_child(child)
    assert "uninitialized" in message
    assert np.allclose(values, [0.5, 1.5], atol=1e-3)


def test_a_module_that_was_being_called_has_its_own_weights_in_the_child(graph):
    stop = Stop()

    class Layer(torch.nn.Linear):
        def forward(self, x: Tensor) -> torch.Tensor:
            stop()
            return super().forward(x)

    layer = Layer(2, 2)
    weight = layer.weight
    output = layer(tf.placeholder(torch.float32, (1, 2), name="x"))
    session = Session(graph=graph)
    session.run(tf.global_variables_initializer())
    feed = {"x:0": [[1.0, 2.0]]}
    values = session.run(output, feed).tolist()
    with stop.reached_by(lambda: session.run(output, feed)):
        assert layer.weight is not weight
        assert run_in_child(
            lambda: (layer.weight is weight, session.run(output, feed).tolist())
        ) == (
            True,
            values,
        )
    assert layer.weight is weight


def test_a_graph_that_was_being_built_can_be_built_on(graph):
    stop = Stop()

    def hold() -> None:
        with graph.lock:
            stop()

    with stop.reached_by(hold):
        assert run_in_child(lambda: tf.Variable([1.0], name="w").name) == "w:0"


def test_locks_held_by_threads_are_free_in_the_child():
    coordinator = v1.train.Coordinator()
    stop = Stop()

    def hold() -> None:
        with coordinator._lock, coordinator._stopped._cond:
            stop()

    def child() -> Any:
        coordinator.request_stop()
        coordinator.join()
        return coordinator.should_stop()

    with stop.reached_by(hold):
        assert run_in_child(child)


def test_waiting_workers_get_no_token_from_the_child():
    meeting, go = Rendezvous(lambda: []), threading.Event()
    worker = threading.Thread(target=lambda: go.set() or meeting.meet([], 0), daemon=True)
    worker.start()
    assert go.wait(TIMEOUT)
    while not meeting._era.workers:
        time.sleep(0.01)

    def child() -> Any:
        meeting.put_tokens("token", 1)
        return meeting.meet([], 0)

    assert run_in_child(child) == "token"
    meeting.put_tokens("token", 1)
    worker.join(TIMEOUT)
    assert not worker.is_alive()


def test_a_half_added_gradient_ends_the_meeting_in_the_child():
    meeting, stop = Rendezvous(lambda: []), Stop()

    def hold() -> None:
        with meeting._condition:
            stop()

    def child() -> Any:
        message = _refused(lambda: meeting.meet([], 0))
        meeting.begin(0)
        meeting.put_tokens("token", 1)
        return message, meeting.meet([], 0)

    with stop.reached_by(hold):
        message, token = run_in_child(child)
    assert "forked" in message
    assert token == "token"


def test_runners_of_queues_start_threads_of_their_own_in_the_child(graph):
    var = tf.Variable(0, name="n")
    stop = Stop()
    op = operation(lambda: stop(), [], "fill", kind="blocking")
    runner = v1.train.QueueRunner(var, [op])
    session = Session(graph=graph)

    def child() -> Any:
        threads = runner.create_threads(session)
        session.close()
        for thread in threads:
            thread.start()
            thread.join(TIMEOUT)
        return len(threads), dict(runner._running)

    threads = runner.create_threads(session)
    with stop.reached_by(threads[0].run):
        assert run_in_child(child) == (1, {})
        session.close()


# Threads of OpenMP


def test_child_steps_large_tensors_after_openmp(threads):
    threads(2)
    count = 400_000
    var = torch.nn.Parameter(torch.ones(count))
    grad = torch.ones(count).mul_(0.5)
    optimizer = keras.Adam(0.1)
    optimizer.apply_gradients([(grad, var)])
    state = optimizer.state_dict()

    def train(opt: Any) -> float:
        param = torch.nn.Parameter(torch.ones(count))
        opt.apply_gradients([(grad, param)])
        return float(param.detach().double().sum())

    def child() -> Any:
        optimizer.apply_gradients([(grad, var)])
        optimizer.load_state_dict(optimizer.state_dict())
        copy.deepcopy(optimizer)
        return train(keras.Adam(0.1, clipnorm=1.0)), train(v1.train.AdamOptimizer(0.1))

    expected = train(keras.Adam(0.1, clipnorm=1.0)), train(v1.train.AdamOptimizer(0.1))
    assert run_in_child(child) == expected
    optimizer.load_state_dict(state)
    assert (train(keras.Adam(0.1, clipnorm=1.0)), train(v1.train.AdamOptimizer(0.1))) == expected


def test_child_steps_if_openmp_team_cannot_be_paused(threads, monkeypatch):
    threads(2)
    var = torch.from_numpy(np.ones(400_000, np.float32)).requires_grad_()
    grad = torch.from_numpy(np.full(400_000, 1.0, np.float32))
    optimizer = keras.SGD(0.5)
    optimizer.apply_gradients([(grad, var)])
    monkeypatch.setattr(openmp, "_find_runtime", lambda: None)

    def child() -> Any:
        optimizer.apply_gradients([(grad, var)])
        return openmp._has_lost_team, var.detach().numpy().tolist() == [0.0] * 400_000

    assert run_in_child(child) == (True, True)


def test_replayed_step_in_the_child_uses_one_thread(threads, monkeypatch):
    threads(2)
    param = torch.nn.Parameter(torch.from_numpy(np.ones(400_000, np.float32)))
    optimizer = optim.SGD([param], lr=0.25)
    param.grad = torch.from_numpy(np.ones(400_000, np.float32))
    for _ in range(3):
        optimizer.step()
    quick = optimizer.step_cache.replay
    assert quick is not None
    assert quick.taken == 1
    monkeypatch.setattr(openmp, "_find_runtime", lambda: None)

    def child() -> Any:
        optimizer.step()
        return quick.taken, param.detach().numpy().tolist() == [0.0] * 400_000

    assert run_in_child(child) == (2, True)


def test_kernels_with_locking_work_in_the_child():
    from thalweg.v1 import training_kernels

    stop = Stop()

    def hold() -> None:
        with training_kernels._LOCK:
            stop()

    with stop.reached_by(hold):
        assert run_in_child(lambda: training_kernels._LOCK.acquire(blocking=False))


def test_every_lock_of_the_package_is_one_that_forks_renew():
    """`threading`'s own are left where a fork is answered otherwise."""
    folder = Path(thalweg.__file__).parent
    lock = re.compile(r"threading\.(R?Lock|Condition|Semaphore|Event)\(|cached_property")
    paths = {path for path in folder.rglob("*.py") if lock.search(path.read_text())}
    assert {path.relative_to(folder).as_posix() for path in paths} == {
        "_graph/locks.py",  # `ReadWriteLock.renew`
        "_base/lazy.py",
        "_base/locks.py",
        "v1/train/coordinator.py",  # `Coordinator._renew`
        "v1/train/queues.py",  # a condition over a `Lock`
        "v1/train/rendezvous.py",  # the same
    }


def test_fork_safe_lock_behaves_as_threading_lock():
    lock = Lock()
    with lock, lock:
        assert not run_in_child(lambda: _taken_by_another(lock))
    assert run_in_child(lambda: _taken_by_another(lock))


def _taken_by_another(lock: Lock) -> bool:
    is_free: list[bool] = []
    thread = threading.Thread(target=lambda: is_free.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    return is_free[0]
