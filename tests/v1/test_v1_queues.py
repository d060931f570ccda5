"""`FIFOQueue` and `RandomShuffleQueue`, alone and filled by a QueueRunner."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from parallel_workers import run_together
from sessions import initialized
from thalweg import CancelledError, InvalidArgumentError
from thalweg.v1 import training_ops

v1 = tf.compat.v1
OutOfRangeError = tf.errors.OutOfRangeError


@pytest.fixture(params=["eager", "graph"])
def run(request: pytest.FixtureRequest) -> Any:
    """A function that gives the value of what a method returns."""
    if request.param == "eager":
        yield lambda x: x
        return
    with tf.Graph().as_default(), v1.Session() as session:
        yield session.run


def test_fifo_queue_keeps_order(run: Any) -> None:
    queue = v1.FIFOQueue(5, [tf.float32, tf.int64], shapes=[[2], []])
    run(queue.enqueue(([1.0, 2.0], 7)))
    run(queue.enqueue_many(([[3.0, 4.0], [5.0, 6.0]], [8, 9])))
    assert run(queue.size()) == 3
    first = run(queue.dequeue())
    np.testing.assert_array_equal(first[0], [1.0, 2.0])
    assert first[1] == 7
    rows = run(queue.dequeue_many(2))
    np.testing.assert_array_equal(rows[0], [[3.0, 4.0], [5.0, 6.0]])
    np.testing.assert_array_equal(rows[1], [8, 9])
    assert (rows[1].dtype, run(queue.size())) == (first[1].dtype, 0)


def test_eager_kernel_result_can_be_enqueued() -> None:
    queue = v1.FIFOQueue(5, tf.float32, shapes=[[2]])
    updated = training_ops.apply_gradient_descent(torch.ones(2), 0.5, torch.ones(2))
    assert queue.enqueue(updated) is None
    assert queue.dequeue().tolist() == [0.5, 0.5]


def test_closed_queue_returns_remaining_elements(run: Any) -> None:
    queue = v1.FIFOQueue(5, tf.int32, shapes=[])
    run(queue.enqueue_many([[1, 2, 3]]))
    assert not run(queue.is_closed())
    run(queue.close())
    assert run(queue.is_closed())
    assert run(queue.dequeue()) == 1
    with pytest.raises(OutOfRangeError, match="closed and has insufficient elements"):
        run(queue.dequeue_many(3))
    np.testing.assert_array_equal(run(queue.dequeue_up_to(3)), [2, 3])
    with pytest.raises(OutOfRangeError):
        run(queue.dequeue())
    with pytest.raises(CancelledError, match="is closed"):
        run(queue.enqueue(1))


def test_queue_elements_have_names(run: Any) -> None:
    queue = v1.FIFOQueue(5, [tf.int32, tf.float32], shapes=[[], []], names=["a", "b"])
    run(queue.enqueue({"a": 1, "b": 2.0}))
    assert run(queue.dequeue()) == {"a": 1, "b": 2.0}


def test_random_shuffle_queue_keeps_min_after_dequeue(run: Any) -> None:
    queue = v1.RandomShuffleQueue(20, 4, tf.int32, shapes=[[]], seed=3)
    run(queue.enqueue_many([list(range(14))]))
    numbers = [int(run(queue.dequeue())) for _ in range(10)]
    run(queue.close())
    numbers += [int(run(queue.dequeue())) for _ in range(4)]
    assert sorted(numbers) == list(range(14))
    assert numbers != sorted(numbers)


INVALID = {
    "another dtype": (lambda queue: queue.enqueue(tf.constant([1, 2])), "takes"),
    "another shape": (lambda queue: queue.enqueue(tf.zeros([3])), "takes"),
    "too many components": (lambda queue: queue.enqueue(([1.0], [2.0])), "1 components, not 2"),
}


@pytest.mark.parametrize(("use", "match"), INVALID.values(), ids=INVALID.keys())
def test_invalid_queue_elements_raise(run: Any, use: Any, match: str) -> None:
    queue = v1.FIFOQueue(5, tf.float32, shapes=[[2]])
    with pytest.raises(InvalidArgumentError, match=match):
        run(use(queue))
    assert run(queue.size()) == 0


def test_inconsistent_rows_raise(run: Any) -> None:
    queue = v1.FIFOQueue(5, [tf.int32, tf.int32], shapes=[[], []], names=["a", "b"])
    for first_column, second_column in (([1, 2], [1]), (1, 2)):
        with pytest.raises(InvalidArgumentError, match="takes as many rows of each component, not"):
            run(queue.enqueue_many({"a": first_column, "b": second_column}))
    with pytest.raises(InvalidArgumentError, match=r"named \['a', 'b'\], not \['a'\]"):
        queue.enqueue({"a": 1})
    assert run(queue.size()) == 0


def test_negative_capacity_is_unlimited(run: Any) -> None:
    queue = v1.FIFOQueue(-1, tf.int32, shapes=[[]])
    run(queue.enqueue_many([list(range(100))]))
    assert run(queue.size()) == 100


def test_dequeue_many_of_zero_returns_no_elements(run: Any) -> None:
    queue = v1.FIFOQueue(5, tf.int32, shapes=[[]])
    for take in (queue.dequeue_many, queue.dequeue_up_to):
        assert len(run(take(0))) == 0


def _filling(queue: Any, session: Any, failed: list[Exception]) -> threading.Thread:
    """A thread that adds 1, 2 and 3 to a queue that has room for one."""
    add, size = queue.enqueue_many([[1, 2, 3]]), queue.size()

    def fill() -> None:
        try:
            session.run(add)
        except Exception as error:
            failed.append(error)

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    while not session.run(size):
        pass
    return filler


@pytest.mark.parametrize("cancels", [False, True])
def test_close_lets_pending_enqueues_finish_unless_cancelled(graph: Any, cancels: bool) -> None:
    queue = v1.FIFOQueue(1, tf.int32, shapes=[[]])
    failed: list[Exception] = []
    with v1.Session() as session:
        filler = _filling(queue, session, failed)
        session.run(queue.close(cancel_pending_enqueues=cancels))
        numbers = [int(session.run(queue.dequeue())) for _ in range(1 if cancels else 3)]
        with pytest.raises(OutOfRangeError):
            session.run(queue.dequeue())
        filler.join(120)
    assert numbers == ([1] if cancels else [1, 2, 3])
    assert [type(error) for error in failed] == ([CancelledError] if cancels else [])


def test_dequeue_many_needs_shapes() -> None:
    with pytest.raises(InvalidArgumentError, match="must be given shapes"):
        v1.FIFOQueue(5, tf.float32).dequeue_many(2)


def test_sessions_have_separate_queue_elements(graph: Any) -> None:
    queue = v1.FIFOQueue(5, tf.int32, shapes=[[]])
    add, size = queue.enqueue(1), queue.size()
    with v1.Session() as first_session, v1.Session() as second_session:
        first_session.run(add)
        assert (first_session.run(size), second_session.run(size)) == (1, 0)


def test_enqueue_and_dequeue_runs_wait_for_each_other(graph: Any) -> None:
    queue = v1.FIFOQueue(1, tf.int32, shapes=[[]])
    x = v1.placeholder(tf.int32, [])
    add, take = queue.enqueue(x), queue.dequeue()
    dequeued: list[int] = []
    with v1.Session() as session:

        def fill() -> None:
            for number in range(5):
                session.run(add, {x: number})

        run_together(fill, lambda: dequeued.extend(int(session.run(take)) for _ in range(5)))
    assert dequeued == list(range(5))


def test_closing_a_session_ends_waits(graph: Any) -> None:
    take = v1.FIFOQueue(1, tf.int32, shapes=[[]]).dequeue()
    session = v1.Session()
    failed: list[Exception] = []

    def wait() -> None:
        try:
            session.run(take)
        except Exception as error:
            failed.append(error)

    def close() -> None:
        while not session._resources:
            pass
        session.close()

    run_together(wait, close)
    assert isinstance(failed[0], CancelledError)


def test_training_reads_from_a_queue(graph: Any) -> None:
    """A QueueRunner fills it until the elements are used up, and the loop ends by that."""
    source = tf.Variable(0, trainable=False)
    with tf.control_dependencies([tf.debugging.assert_less(source.read_value(), 7)]):
        number = tf.cast(source.assign_add(1), tf.float32)
    queue = v1.FIFOQueue(3, tf.float32, shapes=[[]])
    runner = v1.train.QueueRunner(
        queue, [queue.enqueue(number)], queue_closed_exception_types=(InvalidArgumentError,)
    )
    v1.train.add_queue_runner(runner)
    w = tf.Variable(0.0)
    train = v1.train.GradientDescentOptimizer(1.0).minimize(-w * queue.dequeue())
    with initialized() as session:
        coordinator = v1.train.Coordinator()
        threads = v1.train.start_queue_runners(session, coordinator)
        with coordinator.stop_on_exception():
            while not coordinator.should_stop():
                session.run(train)
        coordinator.join(threads, stop_grace_period_secs=20)
        assert session.run(w) == sum(range(1, 8))


def test_branch_can_enqueue(graph: Any) -> None:
    queue, p = v1.FIFOQueue(3, tf.float32, shapes=[[]]), v1.placeholder(tf.bool, [])
    add = tf.cond(p, lambda: queue.enqueue(1.0), tf.no_op)
    size = queue.size()
    with v1.Session() as session:
        session.run(add, {p: False})
        assert session.run(size) == 0
        session.run(add, {p: True})
        assert session.run(size) == 1


def test_queue_runner_uses_queue_names() -> None:
    """Queues and threads have TensorFlow's names, by which a queue runner is found again."""
    with v1.Graph().as_default() as graph:
        with v1.name_scope("scope"):
            queue = v1.FIFOQueue(10, tf.float32, name="queue")
        assert [v1.FIFOQueue(1, tf.float32).name for _ in range(2)] == [
            "fifo_queue",
            "fifo_queue_1",
        ]
        ops = [v1.no_op(name=name) for name in ("enqueue", "close", "cancel")]
        runner = v1.train.QueueRunner(queue, ops[:1], *ops[1:])
        v1.train.add_queue_runner(runner)
        assert graph.get_collection(v1.GraphKeys.QUEUE_RUNNERS, "scope") == [runner]
        proto = runner.to_proto()
        assert proto is not None
        copy = v1.train.QueueRunner.from_proto(proto)
        kinds = copy.queue_closed_exception_types
        assert (copy.name, [*copy.enqueue_ops, copy.close_op, copy.cancel_op]) == (
            "scope/queue",
            ops,
        )
        assert set(kinds) == {CancelledError, OutOfRangeError}
        proto.queue_closed_exception_types.clear()
        assert v1.train.QueueRunner.from_proto(proto).queue_closed_exception_types == (
            OutOfRangeError,
        )
        assert runner.to_proto(export_scope="other") is None
        with v1.Session() as session:
            threads = runner.create_threads(session, v1.train.Coordinator())
            assert [thread.name for thread in threads] == [
                "QueueRunnerThread-scope/queue-enqueue",
                "QueueRunnerThread-scope/queue-close_on_stop",
            ]
            with pytest.raises(TypeError, match=r"must be a tf\.Session, not 'none'"):
                v1.train.start_queue_runners("none")
