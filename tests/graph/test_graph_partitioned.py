"""Variables that a partitioner divides: parts, reuse, training, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg._graph as tf
import thalweg.tf as facade
from sessions import initialized
from thalweg._base.execution_context import eagerly
from thalweg.errors import InvalidArgumentError
from thalweg.v1 import train

VALUES = np.arange(10, dtype=np.float32).reshape(5, 2)
F32 = torch.float32

# partitioner, shape, dtype, the parts along each axis as TensorFlow 2.21 counts them
COUNTS: dict[str, tuple[Callable[..., Any], list[int], torch.dtype, list[int]]] = {
    "fixed": (tf.fixed_size_partitioner(4, axis=1), [2, 10], F32, [1, 4]),
    "fixed, more than rows": (tf.fixed_size_partitioner(9), [3, 10], F32, [3, 1]),
    "bytes": (tf.variable_axis_size_partitioner(64), [10, 8], F32, [5, 1]),
    "bytes of float64": (tf.variable_axis_size_partitioner(64, 1), [4, 10], torch.float64, [1, 5]),
    "bytes, one row is more": (tf.variable_axis_size_partitioner(3), [4, 8], F32, [4, 1]),
    "bytes, at most": (tf.variable_axis_size_partitioner(4, max_shards=2), [9, 1], F32, [2, 1]),
    "least": (tf.min_max_variable_partitioner(8, 0, 64), [32, 4], F32, [8, 1]),
    "least, few bytes": (tf.min_max_variable_partitioner(8, 0, 256), [32, 4], F32, [2, 1]),
    "least, not even one": (tf.min_max_variable_partitioner(8), [32, 4], F32, [1, 1]),
    "least, few rows": (tf.min_max_variable_partitioner(8, 1, 4), [9, 3], F32, [1, 3]),
}


@pytest.fixture(autouse=True)
def graph_mode() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.mark.parametrize("name", COUNTS)
def test_partitioners_count_as_tensorflow(name: str) -> None:
    partitioner, shape, dtype, expected = COUNTS[name]
    assert partitioner(shape=tf.Shape(shape), dtype=dtype) == expected


def parts_of(name: str, count: int, axis: int = 0, **options: Any) -> Any:
    return tf.get_variable(name, partitioner=tf.fixed_size_partitioner(count, axis), **options)


def test_a_shape_may_be_a_number() -> None:
    var = parts_of("v", 2, shape=5)
    assert [tuple(part.shape) for part in var] == [(3,), (2,)]


@pytest.mark.parametrize(
    ("axis", "count", "shapes"),
    [(0, 2, [(3, 2), (2, 2)]), (0, 3, [(2, 2), (2, 2), (1, 2)]), (1, 2, [(5, 1), (5, 1)])],
)
def test_partitions_have_the_values_of_the_whole(axis: int, count: int, shapes: list[Any]) -> None:
    var = parts_of("v", count, axis, initializer=VALUES)
    assert [tuple(part.shape) for part in var] == shapes
    assert [part.op.name for part in var] == [f"v/part_{place}" for place in range(count)]
    assert (len(var), tuple(var.shape), tuple(var.get_shape())) == (count, (5, 2), (5, 2))
    assert tf.trainable_variables() == list(var)
    session = initialized()
    np.testing.assert_array_equal(session.run(var), VALUES)
    got = session.run(
        [2 * var, var - 1, torch.sum(var.as_tensor()), facade.reduce_sum(var), var[1]]
    )
    for actual, expected in zip(got, (2 * VALUES, VALUES - 1, 45.0, 45.0, VALUES[1]), strict=True):
        np.testing.assert_array_equal(actual, expected)
    session.run(var.assign_add(np.ones([5, 2], np.float32)))
    np.testing.assert_array_equal(session.run(var), VALUES + 1)
    session.run(var.assign(VALUES))
    session.run(var.assign_sub(VALUES))
    assert not session.run(var).any()


def test_single_partition_is_a_partitioned_variable() -> None:
    var = parts_of("v", 1, initializer=VALUES)
    np.testing.assert_array_equal(initialized().run(var), VALUES)
    assert tf.get_variable("scalar", [], partitioner=tf.fixed_size_partitioner(2)).shape == ()


@pytest.mark.parametrize("name", ["Adam", "Momentum"])
def test_training_partitions_equals_training_the_whole(name: str) -> None:
    results = []
    for partitioner in (None, tf.fixed_size_partitioner(2)):
        with tf.Graph().as_default():
            var = tf.get_variable("v", initializer=VALUES, partitioner=partitioner)
            rule = {"Adam": train.AdamOptimizer(0.1), "Momentum": train.MomentumOptimizer(0.1, 0.9)}
            step = rule[name].minimize(facade.reduce_sum(var * var))
            session = initialized()
            for _ in range(3):
                session.run(step)
            results.append(session.run(var))
    np.testing.assert_array_equal(*results)


def test_a_scope_gives_its_partitioner_and_finds_variables() -> None:
    with tf.variable_scope("s", partitioner=tf.fixed_size_partitioner(2)) as scope:
        var = tf.get_variable("v", [4])
        bias = tf.get_variable("bias", [])
    assert (var.name, len(var), bias.op.name) == ("s/v", 2, "s/bias")
    with tf.variable_scope(scope, reuse=True):
        assert tf.get_variable("v", [4]) is var
    with tf.variable_scope("s", reuse=True):
        assert tf.get_variable("v") is var
    with tf.variable_scope("s", reuse=tf.AUTO_REUSE, partitioner=tf.fixed_size_partitioner(2)):
        assert tf.get_variable("v", [4]) is var
    with tf.variable_scope("other") as other_scope:
        other_scope.set_partitioner(tf.fixed_size_partitioner(3))
        assert len(tf.get_variable("w", [3])) == 3


def test_a_scope_gives_its_dtype() -> None:
    partitioner = tf.fixed_size_partitioner(2)
    with tf.variable_scope("s", dtype=torch.float64, partitioner=partitioner) as scope:
        var = tf.get_variable("v", [4])
    assert [var.dtype, *(part.dtype for part in var)] == [torch.float64] * 3
    with tf.variable_scope(scope, dtype=torch.float32, reuse=True):
        assert tf.get_variable("v", [4]) is var


class WithoutSignature:
    """An initializer of which `inspect` knows no arguments, as of functions written in C."""

    __signature__ = "unknown"

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        return torch.ones(shape, dtype=dtype)


def test_an_initializer_without_a_signature_makes_parts() -> None:
    var = parts_of("v", 2, shape=[4], initializer=WithoutSignature())
    assert initialized().run(var).tolist() == [1.0] * 4


def test_initializers_are_given_the_position_of_a_part() -> None:
    positions = []

    def initialize(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        positions.append((list(shape), partition_info.full_shape, partition_info.var_offset))
        return torch.zeros(shape)

    parts_of("v", 2, shape=[3, 2], initializer=initialize)
    assert positions == [([2, 2], [3, 2], [0, 0]), ([1, 2], [3, 2], [2, 0])]
    fans = parts_of("w", 10, shape=[1000, 2], initializer=tf.glorot_uniform_initializer(seed=1))
    assert abs(initialized().run(fans)).max() < (6 / 1002) ** 0.5


TABLES = (torch.ones(2, 1), torch.ones(2, 1))
ERRORS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "not a function": (
        lambda: tf.get_variable("v", [2], partitioner=2),
        InvalidArgumentError,
        "partitioner is a fun",
    ),
    "not a function, scope": (
        lambda: tf.variable_scope("v", partitioner=2).__enter__(),
        InvalidArgumentError,
        "partitioner",
    ),
    "two axes": (
        lambda: tf.get_variable("v", [4, 4], partitioner=lambda **_: [2, 2]),
        ValueError,
        "only slice",
    ),
    "rank": (
        lambda: tf.get_variable("v", [4, 4], partitioner=lambda **_: [2]),
        ValueError,
        "rank: .2. vs",
    ),
    "zero": (
        lambda: tf.get_variable("v", [4], partitioner=lambda **_: [0]),
        ValueError,
        "zero part",
    ),
    "no sequence": (
        lambda: tf.get_variable("v", [4], partitioner=lambda **_: 2),
        ValueError,
        "return a sequence",
    ),
    "axis": (lambda: parts_of("v", 2, 1, shape=[4]), ValueError, "axis 1 when shape is only .4,"),
    "unknown shape": (lambda: parts_of("v", 2, shape=[None]), ValueError, "must be fully defined"),
    "made again": (lambda: parts_of("known", 2, shape=[4]), ValueError, "known already exists"),
    "made whole": (
        lambda: tf.get_variable("known", [4]),
        ValueError,
        "No partitioner was provided",
    ),
    "whole is there": (
        lambda: parts_of("whole", 2, shape=[4]),
        ValueError,
        "unpartitioned version",
    ),
    "max_shard_bytes": (
        lambda: tf.variable_axis_size_partitioner(0),
        ValueError,
        "max_shard_bytes",
    ),
    "max_partitions": (lambda: tf.min_max_variable_partitioner(0), ValueError, "max_partitions"),
    "more parts than rows": (
        lambda: tf.get_variable("v", [4], partitioner=lambda **_: [5]),
        ValueError,
        "5 parts along an axis of 4",
    ),
    "strategy": (
        lambda: facade.nn.embedding_lookup(list(TABLES), [1], partition_strategy="hash"),
        ValueError,
        "partition_strategy",
    ),
    "shape of a value": (
        lambda: parts_of("v", 2, shape=[4], initializer=VALUES),
        ValueError,
        r"shape \(4,\) cannot begin with a value of shape \(5, 2\)",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_invalid_partitionings_raise(name: str) -> None:
    function, kind, text = ERRORS[name]
    parts_of("known", 2, shape=[4])
    tf.get_variable("whole", [4])
    count = len(tf.global_variables())
    with pytest.raises(kind, match=text):
        function()
    new_names = [var.op.name for var in tf.global_variables()[count:]]
    assert new_names == (["e/part_0", "e/part_1"] if name == "lookup" else [])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"shape": [5]}, "specified shape .5,. and found shape .4,"),
        ({"shape": [4], "dtype": torch.float64}, "dtype float64 and found dtype float32"),
        (
            {"shape": [4], "partitioner": tf.fixed_size_partitioner(4)},
            "partitions .4. and found .2.",
        ),
    ],
)
def test_reusing_an_unpartitioned_variable_raises(changes: dict[str, Any], text: str) -> None:
    parts_of("v", 2, shape=[4])
    with (
        tf.variable_scope(tf.get_variable_scope(), reuse=True),
        pytest.raises(ValueError, match=text),
    ):
        tf.get_variable("v", **{"partitioner": tf.fixed_size_partitioner(2), **changes})
    with (
        tf.variable_scope(tf.get_variable_scope(), reuse=True),
        pytest.raises(ValueError, match="w does not exist"),
    ):
        parts_of("w", 2, shape=[4])


def test_eager_variables_are_not_partitioned() -> None:
    with eagerly(), pytest.raises(NotImplementedError, match="partitioned in eager mode"):
        parts_of("v", 2, shape=[4])


STRATEGIES = ("mod", "div")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_embedding_lookup_in_partitions(strategy: str) -> None:
    values = torch.arange(14.0).reshape(7, 2)
    variable = parts_of("v", 3, initializer=values)
    ids = facade.compat.v1.placeholder(torch.int32, [None, 2])
    # Row i is in place i // 3 of part i % 3, and the parts have 3, 2 and 2 rows.
    order = [0, 3, 5, 1, 4, 6, 2] if strategy == "mod" else list(range(7))
    for params in (variable, list(variable)):
        rows = facade.nn.embedding_lookup(params, ids, partition_strategy=strategy)
        assert rows.shape.as_list() == [None, 2, 2]
        session = initialized()
        for indices in ([[0, 6], [3, 1]], [[2, 2], [5, 4]]):
            rows_read = session.run(rows, {ids: indices})
            assert rows_read.tolist() == values[np.array(order)[np.array(indices)]].tolist()
        assert session.run(rows, {ids: np.zeros((0, 2), np.int32)}).shape == (0, 2, 2)
        for invalid_id in (-1, 7):
            with pytest.raises(InvalidArgumentError, match=r"not in \[0, 7\)"):
                session.run(rows, {ids: [[0, invalid_id]]})


def test_graphs_and_eager_mode_have_the_strategies_of_their_releases() -> None:
    tables = [torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [3.0]])]
    legacy = facade.compat.v1.nn.embedding_lookup(tables, [1])
    assert initialized().run([legacy, facade.nn.embedding_lookup(tables, [1])]) == [[[2.0]]] * 2
    with eagerly():
        assert facade.nn.embedding_lookup(tables, [1]).tolist() == [[1.0]]
        assert facade.compat.v1.nn.embedding_lookup(tables, [[1]]).tolist() == [[[2.0]]]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_partition_rows_train_as_rows_of_the_whole(strategy: str) -> None:
    order = [0, 3, 5, 1, 4, 6, 2] if strategy == "mod" else list(range(7))
    values = torch.arange(14.0).reshape(7, 2)
    parts = parts_of("v", 3, initializer=values)
    full_table = tf.get_variable("whole", initializer=values)
    ids = facade.compat.v1.placeholder(torch.int64, [None])
    embeddings = (
        facade.nn.embedding_lookup(parts, ids, partition_strategy=strategy),
        facade.nn.embedding_lookup(full_table, facade.gather(order, ids)),
    )
    losses = [facade.reduce_sum(facade.square(rows)) for rows in embeddings]
    optimizer = train.AdamOptimizer(0.1)
    pairs = [optimizer.compute_gradients(loss) for loss in losses]
    slices = [grad for grad, var in pairs[0] if grad is not None]
    assert all(isinstance(grad, facade.IndexedSlices) for grad in slices)
    steps = [
        train.AdamOptimizer(0.1).minimize(loss, var_list=variables)
        for loss, variables in zip(losses, (list(parts), [full_table]), strict=True)
    ]
    session = initialized()
    for indices in ([0, 6, 6], [1, 2, 0]):
        session.run(steps, {ids: indices})
    trained, expected = session.run([parts.as_tensor(), full_table])
    assert trained.tolist() == expected.tolist() != values.tolist()


def test_initializers_that_depend_on_the_whole_shape() -> None:
    initializers = facade.compat.v1.initializers
    identity = parts_of("identity", 2, shape=[3, 3], initializer=initializers.identity(gain=2.0))
    weight = parts_of("scaled", 4, shape=[400, 2], initializer=initializers.uniform_unit_scaling())
    session = initialized()
    assert session.run(identity.as_tensor()).tolist() == (2 * np.eye(3)).tolist()
    limit = (3 / 400) ** 0.5
    assert limit * 0.95 < np.abs(session.run(weight.as_tensor())).max() <= limit


# TensorFlow 2.21's losses for the classes and samples below.
SAMPLED_LOSSES = {
    ("nce_loss", "mod"): [15.7363, 6.0909],
    ("nce_loss", "div"): [13.5402, 5.9467],
    ("sampled_softmax_loss", "mod"): [5.4805, 1.7852],
    ("sampled_softmax_loss", "div"): [4.8574, 1.6021],
}


@pytest.mark.parametrize("is_legacy", [False, True])
@pytest.mark.parametrize(("name", "strategy"), SAMPLED_LOSSES)
def test_sampled_losses_look_up_classes_in_partitions(
    name: str, strategy: str, is_legacy: bool
) -> None:
    weights = parts_of("weights", 3, initializer=torch.arange(14.0).reshape(7, 2) / 10)
    biases = parts_of("biases", 3, initializer=torch.arange(7.0) / 7)
    sampled = (
        torch.tensor([1, 4, 5]),
        torch.tensor([[0.5], [0.25]]),
        torch.tensor([0.1, 0.2, 0.3]),
    )
    loss = getattr(facade.compat.v1.nn if is_legacy else facade.nn, name)(
        weights=weights,
        biases=list(biases),
        labels=torch.tensor([[0], [6]]),
        inputs=torch.tensor([[1.0, 2.0], [0.5, -1.0]]),
        num_sampled=3,
        num_classes=7,
        sampled_values=sampled,
        partition_strategy=strategy,
    )
    expected = SAMPLED_LOSSES[name, strategy]
    np.testing.assert_allclose(initialized().run(loss), expected, rtol=1e-4)


@pytest.mark.parametrize("initializer", [VALUES, tf.constant_initializer(VALUES[:, :1])])
def test_create_partitioned_variables_returns_the_parts(initializer: Any) -> None:
    parts = tf.create_partitioned_variables([5, 2], [1, 2], initializer, name="v")
    assert [part.op.name for part in parts] == ["v/part_0", "v/part_1"]
    assert [part._save_slice_info.spec for part in parts] == ["5 2 0,5:0,1", "5 2 0,5:1,1"]
    assert tf.trainable_variables() == parts
    got = np.concatenate(initialized().run(parts), 1)
    expected = VALUES if initializer is VALUES else VALUES[:, [0, 0]]
    np.testing.assert_array_equal(got, expected)


def test_create_partitioned_variables_names_and_reuses_them_as_scopes() -> None:
    options: dict[str, Any] = {"dtype": torch.int32, "trainable": False, "collections": ["own"]}
    values = np.arange(4, dtype=np.int64)
    with tf.variable_scope("s") as scope:
        first = tf.create_partitioned_variables([4], [2], values, **options)
        second = tf.create_partitioned_variables([4], [3], tf.ones_initializer(), torch.int32)
    with tf.variable_scope(scope, reuse=True):
        assert tf.create_partitioned_variables([4], [2], values) == first
    assert [part.op.name for part in first] == [
        f"s/PartitionedVariable/part_{index}" for index in range(2)
    ]
    assert second[0].op.name == "s/PartitionedVariable_1/part_0"
    assert [first[0].dtype, second[0].dtype] == [torch.int64, torch.int32]
    assert tf.get_collection("own") == first
    assert tf.trainable_variables() == second


# shape, slicing, part of the message
INVALID_SLICINGS: list[tuple[list[int], list[int], str]] = [
    ([], [], "has an axis"),
    ([5], [1, 1], "shape"),
    ([5, 2], [1], "does not match the Variable's rank"),
    ([5, 2], [6, 1], "6 parts along an axis of 5"),
    ([5, 2], [2, 2], "along one dimension"),
    ([5, 2], [0, 1], "zero partitions"),
    ([5, 3], [1, 3], "cannot begin with a value of shape"),
]


@pytest.mark.parametrize(("shape", "slicing", "match"), INVALID_SLICINGS)
def test_create_partitioned_variables_validates_arguments(
    shape: list[int], slicing: list[int], match: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        tf.create_partitioned_variables(shape, slicing, VALUES)
    assert not tf.global_variables()
    with eagerly(), pytest.raises(NotImplementedError, match="eager mode"):
        tf.create_partitioned_variables([5, 2], [2, 1], VALUES)
