"""`slice_input_producer` and its relatives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.v1 as tf
from thalweg._base.execution_context import eagerly
from thalweg._graph import GraphKeys
from thalweg.errors import InvalidArgumentError, OutOfRangeError
from thalweg.v1 import train

ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)
LABELS = np.array([0, 1, 2])


@pytest.fixture(autouse=True)
def _graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


def produced(outputs: Any, count: int) -> list[Any]:
    """Return the values of at most so many runs of the outputs, and "end" if they come to one."""
    runs: list[Any] = []
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        coord = train.Coordinator()
        threads = train.start_queue_runners(session, coord)
        try:
            for _ in range(count):
                runs.append([np.asarray(value).tolist() for value in session.run(outputs)])
        except OutOfRangeError:
            runs.append("end")
        coord.request_stop()
        coord.join(threads)
    return runs


PAIRS = [[[0.0, 1.0], 0], [[2.0, 3.0], 1], [[4.0, 5.0], 2]]
# What TensorFlow 2.21 gives.
PRODUCERS: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "slices": (
        lambda: train.slice_input_producer([ROWS, LABELS], shuffle=False),
        [*PAIRS, *PAIRS, *PAIRS][:8],
    ),
    "epochs": (
        lambda: train.slice_input_producer([ROWS, LABELS], num_epochs=2, shuffle=False),
        [*PAIRS, *PAIRS, "end"],
    ),
    "a capacity of one": (
        lambda: train.slice_input_producer(
            [tf.constant(ROWS), LABELS], num_epochs=1, shuffle=False, capacity=1
        ),
        [*PAIRS, "end"],
    ),
    "rows that only a run knows": (
        lambda: train.slice_input_producer(
            [tf.placeholder_with_default(ROWS, [None, 2])], num_epochs=1, shuffle=False
        ),
        [[row] for row in ROWS.tolist()] + ["end"],
    ),
    "range": (
        lambda: [train.range_input_producer(3, num_epochs=1, shuffle=False).dequeue()],
        [[0], [1], [2], "end"],
    ),
    "values": (
        lambda: [train.input_producer([5.0, 6.0], num_epochs=1, shuffle=False).dequeue()],
        [[5.0], [6.0], "end"],
    ),
    "limit": (
        lambda: [train.limit_epochs(tf.constant([1, 2]), 2)],
        [[[1, 2]], [[1, 2]], "end"],
    ),
}


@pytest.mark.parametrize("name", PRODUCERS)
def test_rows_are_produced_in_order(name: str) -> None:
    make, expected = PRODUCERS[name]
    assert produced(make(), 8) == expected


def test_rows_are_shuffled_in_each_epoch() -> None:
    numbers = np.arange(50)
    orders = []
    for seed in (1, 1, 2):
        with tf.Graph().as_default():
            outputs = train.slice_input_producer([numbers], num_epochs=2, seed=seed)
            produced_rows = produced(outputs, 101)
        assert produced_rows.pop() == "end"
        order = [value for (value,) in produced_rows]
        assert sorted(order[:50]) == sorted(order[50:]) == numbers.tolist()
        assert order[:50] != order[50:]
        orders.append(order)
    assert orders[0] == orders[1] != orders[2]


def test_names_dtypes_and_collections_are_those_of_tensorflow() -> None:
    rows, labels = train.slice_input_producer([ROWS, LABELS], num_epochs=1, name="inp")
    assert [(str(x.dtype), tuple(x.shape)) for x in (rows, labels)] == [
        ("torch.float32", (2,)),
        ("torch.int64", ()),
    ]
    (runner,) = tf.get_collection(GraphKeys.QUEUE_RUNNERS)
    assert runner.name == "inp/input_producer"
    assert [var.name for var in tf.local_variables()] == [
        "inp/input_producer/limit_epochs/epochs:0"
    ]
    assert len(tf.get_collection(GraphKeys.SUMMARIES)) == 1


INVALID: dict[str, tuple[Callable[[], Any], str]] = {
    "nothing": (lambda: train.slice_input_producer([]), "at least one tensor"),
    "epochs": (lambda: train.slice_input_producer([ROWS], num_epochs=0), "must be > 0 not 0"),
    "a scalar": (lambda: train.slice_input_producer([ROWS, 1.0]), "must have rows"),
    "no rows": (lambda: train.input_producer(tf.constant(1.0)), "must have rows"),
}


@pytest.mark.parametrize("name", INVALID)
def test_arguments_that_do_not_fit_raise(name: str) -> None:
    make, match = INVALID[name]
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.parametrize("make", [train.slice_input_producer, train.input_producer])
def test_tensors_of_unknown_rank_are_accepted(make: Callable[..., Any]) -> None:
    rows = tf.placeholder(torch.float32)
    assert make([rows] if make is train.slice_input_producer else rows)


def test_fewer_rows_of_another_tensor_raise_in_a_run() -> None:
    outputs = train.slice_input_producer([ROWS, LABELS[:2]], num_epochs=1, shuffle=False)
    with pytest.raises(InvalidArgumentError, match="is not in"):
        produced(outputs, 3)


@pytest.mark.parametrize("make", [train.slice_input_producer, train.input_producer])
def test_queues_belong_to_a_graph(make: Callable[..., Any]) -> None:
    with eagerly(), pytest.raises(RuntimeError, match="belong to a graph"):
        make([ROWS])
