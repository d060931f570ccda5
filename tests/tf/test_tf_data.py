"""`tf.data`: datasets in eager mode, and iterators in graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
import thalweg.tf.compat.v1 as v1
from thalweg._base.static_shape import UNKNOWN
from thalweg.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    OutOfRangeError,
)

Dataset = tf.data.Dataset


def count(end: int) -> Callable[[], Iterator[int]]:
    return lambda: iter(range(end))


# name: (the dataset, its elements as lists)
DATASETS: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "range": (lambda: Dataset.range(1, 7, 2), [1, 3, 5]),
    "slices of a list": (
        lambda: Dataset.from_tensor_slices([[1.0, 2.0], [3.0, 4.0]]), [[1, 2], [3, 4]],
    ),
    "slices of a pair": (
        lambda: Dataset.from_tensor_slices((np.arange(2), [5.0, 6.0])), [(0, 5), (1, 6)],
    ),
    "slices of a dict": (
        lambda: Dataset.from_tensor_slices({"a": [1, 2], "b": ([3, 4],)}),
        [{"a": 1, "b": (3,)}, {"a": 2, "b": (4,)}],
    ),
    "one tensor": (lambda: Dataset.from_tensors([1, 2]), [[1, 2]]),
    "generator": (lambda: Dataset.from_generator(count(3), tf.int64), [0, 1, 2]),
    "generator of pairs": (
        lambda: Dataset.from_generator(
            lambda n: ((i, [i, i]) for i in range(n)), (tf.int32, tf.float32), ((), (2,)), args=(2,)
        ),
        [(0, [0, 0]), (1, [1, 1])],
    ),
    "generator with a signature": (
        lambda: Dataset.from_generator(count(2), output_signature=tf.TensorSpec((), tf.int32)),
        [0, 1],
    ),
    "zip of a tuple": (
        lambda: Dataset.zip((Dataset.range(3), Dataset.range(5, 7))), [(0, 5), (1, 6)],
    ),
    "zip of several": (lambda: Dataset.zip(Dataset.range(1), Dataset.range(1)), [(0, 0)]),
    "concatenate": (lambda: Dataset.range(2).concatenate(Dataset.range(1)), [0, 1, 0]),
    "map": (lambda: Dataset.range(3).map(lambda x: x * 2), [0, 2, 4]),
    "map of a tuple": (
        lambda: Dataset.range(2).enumerate(5).map(lambda i, x: (x, i), num_parallel_calls=4),
        [(0, 5), (1, 6)],
    ),
    "map to an array": (lambda: Dataset.range(2).map(lambda x: np.ones(2) * 3), [[3, 3], [3, 3]]),
    "flat_map": (
        lambda: Dataset.range(3).flat_map(lambda n: Dataset.range(n).map(lambda x: (x, n))),
        [(0, 1), (0, 2), (1, 2)],
    ),
    "filter": (lambda: Dataset.range(5).filter(lambda x: x % 2 == 0), [0, 2, 4]),
    "take": (lambda: Dataset.range(5).take(2), [0, 1]),
    "take all": (lambda: Dataset.range(3).take(-2), [0, 1, 2]),
    "skip": (lambda: Dataset.range(5).skip(3), [3, 4]),
    "skip all": (lambda: Dataset.range(3).skip(-2), []),
    "shard": (lambda: Dataset.range(5).shard(2, 1), [1, 3]),
    "batch": (lambda: Dataset.range(5).batch(2), [[0, 1], [2, 3], [4]]),
    "whole batches": (lambda: Dataset.range(5).batch(2, drop_remainder=True), [[0, 1], [2, 3]]),
    "batch of pairs": (
        lambda: Dataset.range(3).enumerate().batch(2), [([0, 1], [0, 1]), ([2], [2])],
    ),
    "padded batch": (
        lambda: growing().padded_batch(2, [None]), [[[0, 0], [0, 1]], [[0, 1, 2]]],
    ),
    "padded batch of no shapes": (
        lambda: growing().padded_batch(3), [[[0, 0, 0], [0, 1, 0], [0, 1, 2]]],
    ),
    "padded batch of a shape": (
        lambda: growing().padded_batch(2, [4], -1),
        [[[0, -1, -1, -1], [0, 1, -1, -1]], [[0, 1, 2, -1]]],
    ),
    "padded whole batches": (
        lambda: growing().padded_batch(2, drop_remainder=True), [[[0, 0], [0, 1]]],
    ),
    "padded batch of pairs": (
        lambda: Dataset.zip((growing(), Dataset.range(3))).padded_batch(
            2, ([-1], tf.TensorShape([])), (tf.constant(7), None)
        ),
        [([[0, 7], [0, 1]], [0, 1]), ([[0, 1, 2]], [2])],
    ),
    "padded batch of dicts": (
        lambda: growing().map(lambda x: {"x": x, "y": x[:1]}).padded_batch(
            3, {"x": [3], "y": [None]}, {"x": 5, "y": 0}
        ),
        [{"x": [[0, 5, 5], [0, 1, 5], [0, 1, 2]], "y": [[0], [0], [0]]}],
    ),
    "repeat": (lambda: Dataset.range(2).repeat(2), [0, 1, 0, 1]),
    "repeat without end": (lambda: Dataset.range(2).repeat().take(5), [0, 1, 0, 1, 0]),
    "repeat without end by a count": (lambda: Dataset.range(2).repeat(-2).take(3), [0, 1, 0]),
    "repeat of nothing": (lambda: Dataset.range(0).repeat(-2), []),
    "repeat to nothing": (lambda: Dataset.range(2).filter(bool).repeat(0), []),
    "cache": (lambda: Dataset.range(2).cache().repeat(2), [0, 1, 0, 1]),
    "prefetch": (lambda: Dataset.range(2).prefetch(tf.data.AUTOTUNE), [0, 1]),
    "apply": (lambda: Dataset.range(2).apply(lambda x: x.skip(1)), [1]),
}  # fmt: skip


def listed(element: Any) -> Any:
    if isinstance(element, dict):
        return {key: listed(part) for key, part in element.items()}
    if isinstance(element, tuple):
        return tuple(map(listed, element))
    return np.asarray(element).tolist()


UNCOUNTED = ("generator", "filter", "flat_map", "padded")


@pytest.mark.parametrize("name", DATASETS)
def test_datasets_are_iterated_in_eager_mode(name: str) -> None:
    make, expected = DATASETS[name]
    dataset = make()
    for _ in range(2):  # a second pass is like the first
        assert [listed(x) for x in dataset.as_numpy_iterator()] == expected
    assert [listed(x) for x in dataset] == expected
    assert dataset.cardinality() in (len(expected), -2)
    assert (dataset.cardinality() == -2) == (name.split()[0] in UNCOUNTED)


def test_infinite_datasets_have_no_length() -> None:
    assert (bool(Dataset.range(0)), len(Dataset.range(3).repeat(2))) == (True, 6)
    for dataset in (Dataset.range(3).repeat(-3), Dataset.range(3).filter(bool)):
        assert dataset.batch(2).cardinality() < 0
        with pytest.raises(TypeError, match="no end"):
            len(dataset)


@pytest.mark.parametrize("name", DATASETS)
def test_datasets_are_iterated_in_a_graph(name: str) -> None:
    make, expected = DATASETS[name]
    with tf.Graph().as_default(), v1.Session() as session:
        element = make().make_one_shot_iterator().get_next()
        assert [listed(session.run(element)) for _ in expected] == expected
        with pytest.raises(OutOfRangeError, match="End of sequence"):
            session.run(element)


# name: (the dataset, shapes and dtypes as text)
SPECS: dict[str, tuple[Callable[[], Any], str]] = {
    "rows": (
        lambda: Dataset.from_tensor_slices(np.ones((4, 3), "f4")), "(3,) torch.float32",
    ),
    "batch": (lambda: Dataset.range(5).batch(2), "(None,) torch.int64"),
    "whole batches": (lambda: Dataset.range(5).batch(2, True), "(2,) torch.int64"),
    "padded": (lambda: growing().padded_batch(2), "(None, None) torch.int64"),
    "padded to a shape": (lambda: growing().padded_batch(2, 5, None, True), "(2, 5) torch.int64"),
    "flat_map": (
        lambda: Dataset.range(1).flat_map(lambda _: growing().batch(1)), "(None, None) torch.int64",
    ),
    "map of a batch": (
        lambda: Dataset.from_tensor_slices(np.ones((4, 3), "f4")).batch(2).map(lambda x: x @ x.T),
        "(None, None) torch.float32",
    ),
    "map by arrays": (
        lambda: Dataset.range(2).map(lambda x: np.float32(x)), "<unknown> torch.float32",
    ),
    "generator": (
        lambda: Dataset.from_generator(count(1), tf.float32, [None, 2]), "(None, 2) torch.float32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_datasets_have_element_specs(name: str) -> None:
    make, expected = SPECS[name]
    spec = make().element_spec
    assert f"{spec.shape if spec.shape is UNKNOWN else tuple(spec.shape)} {spec.dtype}" == expected


def test_cache_makes_each_element_once() -> None:
    calls: list[int] = []

    def note(x: Any) -> Any:
        calls.append(int(x))
        return x

    dataset = Dataset.range(3).map(note).cache()
    assert [len(list(dataset)) for _ in range(3)] == [3, 3, 3]
    assert calls == [0, 1, 2]


@pytest.mark.parametrize("size", [1, 3, 10, 100])
def test_shuffle_gives_each_element_once(size: int) -> None:
    orders = [listed(torch.stack(list(Dataset.range(10).shuffle(size, seed=1)))) for _ in range(2)]
    assert sorted(orders[0]) == list(range(10))
    assert orders[0] == orders[1]
    assert (orders[0] == list(range(10))) == (size == 1)
    assert all(x < place + size for place, x in enumerate(orders[0]))


def test_shuffle_reshuffles_each_iteration_by_default() -> None:
    reshuffled, fixed = (
        [listed(x) for x in Dataset.range(20).shuffle(20, reshuffle_each_iteration=mode).repeat(2)]
        for mode in (None, False)
    )
    assert reshuffled[:20] != reshuffled[20:]
    assert fixed[:20] == fixed[20:]
    assert sorted(reshuffled[:20]) == sorted(reshuffled[20:]) == list(range(20))


def test_shuffle_follows_the_seed_of_all_random_numbers() -> None:
    orders = []
    for _ in range(2):
        tf.random.set_seed(3)
        orders.append([int(x) for x in Dataset.range(20).shuffle(20)])
    assert orders[0] == orders[1]


def test_initializable_iterator_is_fed_at_initialization() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None, 2])
        y = v1.placeholder(tf.int64, [None])
        dataset = Dataset.from_tensor_slices((x, y)).repeat(2).batch(4)
        iterator = v1.data.make_initializable_iterator(dataset)
        rows, labels = iterator.get_next()
        assert (rows.shape.as_list(), labels.dtype) == ([None, 2], torch.int64)
        total = tf.reduce_sum(rows)
        with pytest.raises(FailedPreconditionError, match="has not been initialized"):
            session.run(total)
        for scale in (1.0, 10.0):  # it begins anew, with other values
            feeds = {x: scale * np.ones((3, 2)), y: [0, 1, 2]}
            session.run(iterator.initializer, feeds)
            got = [session.run([total, labels]) for _ in range(2)]
            assert [(a, b.tolist()) for a, b in got] == [
                (8 * scale, [0, 1, 2, 0]), (4 * scale, [1, 2]),
            ]  # fmt: skip


def test_reinitializable_iterator_reads_several_datasets() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        train, test = Dataset.range(2), Dataset.range(10, 12)
        iterator = tf.data.Iterator.from_structure(train.output_types, train.output_shapes)
        element = iterator.get_next()
        initializers = [iterator.make_initializer(dataset) for dataset in (train, test, train)]
        got = []
        for begin in initializers:
            session.run(begin)
            got += [int(session.run(element)) for _ in range(2)]
        assert got == [0, 1, 10, 11, 0, 1]
        with pytest.raises(FailedPreconditionError, match="does not have an initializer"):
            _ = iterator.initializer


def test_training_reads_one_batch_in_each_run() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        rows = np.arange(8, dtype="f4").reshape(4, 2)
        x = Dataset.from_tensor_slices(rows).batch(2).make_one_shot_iterator().get_next()
        w = v1.get_variable("w", [2, 1], initializer=tf.ones_initializer())
        loss = tf.reduce_sum(tf.matmul(x, w))
        step = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        session.run(v1.global_variables_initializer())
        assert session.run([loss, step])[0] == 6  # the loss is that of before the step
        np.testing.assert_array_equal(session.run(w), 1 - rows[:2].sum(0)[:, None])
        assert session.run([loss, step])[0] == (rows[2:] @ (1 - rows[:2].sum(0))).sum()


def test_sessions_iterate_separately() -> None:
    with tf.Graph().as_default():
        element = Dataset.range(3).make_one_shot_iterator().get_next()
        first, second = v1.Session(), v1.Session()
        assert [int(s.run(element)) for s in (first, first, second, first)] == [0, 1, 0, 2]


def test_the_end_of_the_data_ends_a_monitored_session() -> None:
    with tf.Graph().as_default():
        element = Dataset.range(3).make_one_shot_iterator().get_next()
        got = []
        with v1.train.MonitoredTrainingSession() as session:
            while not session.should_stop():
                got.append(int(session.run(element)))
        assert got == [0, 1, 2]


def test_eager_iterators_have_the_names_of_both_versions() -> None:
    iterator = v1.data.make_one_shot_iterator(Dataset.range(2))
    assert (int(iterator.get_next()), int(next(iterator))) == (0, 1)
    assert iterator.element_spec.dtype is torch.int64
    with pytest.raises(OutOfRangeError, match="End of sequence"):
        iterator.get_next()
    with pytest.raises(StopIteration):
        next(iterator)


def growing() -> Any:
    """[0], [0, 1], [0, 1, 2]."""
    return Dataset.from_generator(
        lambda: map(list, (range(1), range(2), range(3))), tf.int64, [None]
    )


# name: (what is refused, the error, a part of the message)
INVALID: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "rows": (
        lambda: list(Dataset.from_tensor_slices(([1], [1, 2]))), InvalidArgumentError,
        r"as many rows, not \[1, 2\]",
    ),
    "batch of 0": (lambda: Dataset.range(1).batch(0), InvalidArgumentError, "greater than zero"),
    "padding to less": (
        lambda: list(growing().padded_batch(3, [2])), InvalidArgumentError,
        r"up to \[3\] cannot be padded to \[2\]",
    ),
    "padding of dimensions": (
        lambda: list(growing().padded_batch(3, [2, 2])), InvalidArgumentError,
        r"of 2 dimensions here, not of \[1\]",
    ),
    "padding of another dtype": (
        lambda: list(growing().padded_batch(3, None, 0.5)), TypeError,
        "0.5 for a tensor of torch.int64",
    ),
    "padding of another structure": (
        lambda: list(growing().map(lambda x: {"x": x}).padded_batch(3, {"y": [2]})),
        InvalidArgumentError, "padded_shapes is {'y'",
    ),
    "padding of fewer parts": (
        lambda: list(growing().map(lambda x: (x, x)).padded_batch(3, None, (1,))),
        InvalidArgumentError, "padding_values is",
    ),
    "flat_map over nothing": (
        lambda: Dataset.range(0).flat_map(lambda _: growing()).element_spec,
        InvalidArgumentError, "no elements",
    ),
    "flat_map to no dataset": (
        lambda: list(Dataset.range(1).flat_map(lambda x: x)), TypeError, "must return a Dataset",
    ),
    "negative number of shards": (
        lambda: Dataset.range(1).shard(-2, 0), InvalidArgumentError, "num_shards must be greater",
    ),
    "negative buffer": (lambda: Dataset.range(1).prefetch(-2), InvalidArgumentError, "at least -1"),
    "buffer of 0": (lambda: Dataset.range(1).shuffle(0), InvalidArgumentError, "greater than zero"),
    "take": (lambda: Dataset.range(5).take(2.7), InvalidTypeError, "count must be .* not 2.7"),
    "skip": (lambda: Dataset.range(5).skip(np.float32(2)), InvalidTypeError, "count must be"),
    "repeat": (lambda: Dataset.range(5).repeat(tf.constant(2.0)), InvalidTypeError, "count must"),
    "batch": (lambda: Dataset.range(5).batch(2.0), InvalidTypeError, "batch_size must be"),
    "shards": (lambda: Dataset.range(5).shard(2.0, 1), InvalidTypeError, "num_shards must be"),
    "shard": (lambda: Dataset.range(5).shard(2, 0.5), InvalidTypeError, "index must be .* not 0.5"),
    "file": (lambda: Dataset.range(1).cache("/tmp/x"), NotImplementedError, "in memory only"),
    "no function": (lambda: Dataset.from_generator([1], tf.int32), TypeError, "callable"),
    "no dtypes": (lambda: Dataset.from_generator(count(1)), TypeError, "output_types"),
    "eager initializer": (
        lambda: Dataset.range(1).make_initializable_iterator(), FailedPreconditionError, "graphs",
    ),
    "name": (lambda: Dataset.range(1).interleave, AttributeError, "use from_generator"),
    "slip": (lambda: Dataset.range(1).bacth, AttributeError, "Did you mean 'batch'"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_invalid_dataset_arguments_raise(name: str) -> None:
    call, kind, message = INVALID[name]
    with pytest.raises(kind, match=message):
        call()


def test_a_dataset_is_not_iterated_while_a_graph_is_built() -> None:
    with tf.Graph().as_default(), pytest.raises(FailedPreconditionError, match="one_shot"):
        list(Dataset.range(2))


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # of Keras, which calls NumPy
def test_keras_trains_on_a_dataset() -> None:
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    rows, labels = np.eye(4, dtype="f4"), np.arange(4, dtype="f4")[:, None]
    pairs = Dataset.from_tensor_slices((rows, labels)).batch(2)
    models = []
    for feeds in ((pairs,), (rows, labels)):
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile("sgd", loss="mse")
        model.fit(*feeds, epochs=2, batch_size=None if len(feeds) == 1 else 2, shuffle=False,
                  validation_data=pairs, verbose=0)  # fmt: skip
        models.append(model)
    first, second = models
    predicted = [model.predict(rows, verbose=0) for model in models]
    np.testing.assert_array_equal(*predicted)
    expected = second.evaluate(rows, labels, batch_size=2, verbose=0)
    assert first.evaluate(pairs, verbose=0) == expected
    rows_only = Dataset.from_tensor_slices(rows).batch(2)
    predictions = first.predict(rows_only, verbose=0)
    np.testing.assert_array_equal(predictions, first.predict(rows, verbose=0))
    model.fit(pairs.repeat(), steps_per_epoch=3, verbose=0)
