"""`tf.layers`, `tf.contrib.layers`, initial values, losses and samplers beside their numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
import thalweg.tf.compat.v1 as tf
from case_batches import many
from thalweg import tf as newer

IMAGES = np.random.RandomState(1).randn(2, 6, 6, 3).astype("f4")
ROWS = np.random.RandomState(2).randn(8, 5).astype("f4")


@pytest.fixture
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def valued(fetch: Any, feeds: Any = None) -> Any:
    """Return the values of tensors in a new, initialized session."""
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        return session.run(fetch, feeds)


def names(variables: Any) -> list[str]:
    return [variable.op.name for variable in variables]


# What is refused: (what is called with rows of 5, images, and a placeholder without a rank)
INVALID: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    "dense of a vector": (lambda r, i, u: tf.layers.dense(r[0], 2), "at least 2 dimensions"),
    "dense of anything": (lambda r, i, u: tf.layers.dense(u, 2), "of an unknown number"),
    "conv2d of rows": (lambda r, i, u: tf.layers.conv2d(r, 2, 3), "inputs of 4 dimensions"),
    "padding": (lambda r, i, u: tf.layers.conv2d(i, 2, 3, padding="some"), "'SAME' or 'VALID'"),
    "strides": (lambda r, i, u: tf.nn.max_pool(i, 2, [2, 2, 2, 1], "SAME"), "batch and the chann"),
    "activation": (lambda r, i, u: tf.layers.dense(r, 2, "relo"), "'relo' is none of elu"),
    "initializer": (
        lambda r, i, u: tf.layers.dense(r, 2, kernel_initializer="zeroes"),
        "'zeroes' is none of zeros",
    ),
    "a second variable": (
        lambda r, i, u: [tf.layers.dense(r, 2, name="a") for _ in range(2)],
        "a/kernel already exists",
    ),
    "reuse of nothing": (
        lambda r, i, u: tf.layers.dense(r, 2, name="a", reuse=True),
        "a/kernel does not exist",
    ),
    "labels": (
        lambda r, i, u: tf.losses.mean_squared_error(r, r[:, :1]),
        r"labels have shape \(8, 5\) and predictions have \(8, 1\)",
    ),
    "no labels": (
        lambda r, i, u: tf.losses.mean_squared_error(None, r),
        "labels must not be None",
    ),
    "weights": (
        lambda r, i, u: tf.losses.mean_squared_error(r, r, weights=tf.ones([8])),
        r"weights of shape \(8,\) cannot be broadcast",
    ),
    "reduction": (
        lambda r, i, u: tf.losses.mean_squared_error(r, r, reduction="mean"),
        "'mean' is none of tf.losses.Reduction",
    ),
    "no losses": (lambda r, i, u: tf.losses.get_total_loss(), "No losses"),
    "cosine without axis": (lambda r, i, u: tf.losses.cosine_distance(r, r), "specify 'axis'"),
    "transposed": (
        lambda r, i, u: tf.nn.conv2d_transpose(i, tf.zeros([3, 3, 2, 3]), [2, 9, 9, 2], 2),
        r"sizes \(9, 9\) does not fit",
    ),
    "channels": (
        lambda r, i, u: tf.nn.conv2d(i, tf.zeros([3, 3, 2, 4]), 1, "SAME"),
        "3 channels, which is no multiple of the 2",
    ),
    "sampler": (
        lambda r, i, u: tf.nn.log_uniform_candidate_sampler(tf.zeros([1, 1]), 1, 5, True, 4),
        "5 unique classes cannot be sampled from 4",
    ),
    "top_k": (lambda r, i, u: tf.nn.top_k(r, 6), "no 6 largest of 5"),
    "auc": (lambda r, i, u: tf.metrics.auc(r, r, curve="roc"), "curve must be ROC or PR"),
    "dropout": (lambda r, i, u: tf.nn.dropout(r, rate=1.0), r"in \[0, 1\)"),
}


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (
            tf.layers.dense,
            r"dense\(\) got an unexpected keyword argument 'unit'; .* inputs, units,",
        ),
        (tf.contrib.layers.conv2d, r"conv2d\(\) got .* 'unit'; .* rate, activation_fn,"),
    ],
    ids=["tf.layers", "tf.contrib"],
)
def test_unknown_layer_arguments_raise(layer: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        layer(IMAGES, 2, 3, unit=5)


@many("name", INVALID)
def test_invalid_layer_arguments_raise(name: str) -> None:
    call, words = INVALID[name]
    with tf.Graph().as_default():
        rows, images = tf.constant(ROWS), tf.constant(IMAGES)
        with pytest.raises(ValueError, match=words):
            call(rows, images, tf.placeholder(tf.float32))


@pytest.mark.parametrize("name", ["renorm", "virtual_batch_size", "adjustment"])
def test_unsupported_batch_normalization_options_raise(name: str, graph: Any) -> None:
    with pytest.raises(NotImplementedError, match=name):
        tf.layers.batch_normalization(tf.constant(ROWS), **{name: 2})


# Shapes that are known while the graph is built: (what is made of images of unknown number)
SHAPES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "conv2d": (lambda x: tf.layers.conv2d(x, 4, 3, 2, "same"), (None, 3, 3, 4)),
    "conv2d_transpose": (lambda x: tf.layers.conv2d_transpose(x, 4, 3, 2), (None, 13, 13, 4)),
    "max_pooling2d": (lambda x: tf.layers.max_pooling2d(x, 2, 2), (None, 3, 3, 3)),
    "flatten": (tf.layers.flatten, (None, 108)),
    "batch_normalization": (
        lambda x: tf.layers.batch_normalization(x, training=tf.placeholder(tf.bool, [])),
        (None, 6, 6, 3),
    ),
    "dropout": (
        lambda x: tf.nn.dropout(
            x, tf.placeholder(tf.float32), noise_shape=[tf.shape(x)[0], 1, 1, 3]
        ),
        (None, 6, 6, 3),
    ),
    "dropout in training": (
        lambda x: tf.layers.dropout(x, training=tf.placeholder(tf.bool, [])),
        (None, 6, 6, 3),
    ),
    "nn.conv2d_transpose": (
        lambda x: tf.nn.conv2d_transpose(
            x, tf.zeros([3, 3, 2, 3]), tf.stack([tf.shape(x)[0], 12, 12, 2]), 2
        ),
        (None, None, None, 2),
    ),
}


@many("name", SHAPES)
def test_layers_infer_static_shapes(name: str) -> None:
    make, shape = SHAPES[name]
    with tf.Graph().as_default():
        assert make(tf.placeholder(tf.float32, [None, 6, 6, 3])).shape == shape


def test_channels_first_is_the_same_convolution(graph: Any) -> None:
    nhwc = tf.constant(IMAGES)
    first = tf.transpose(nhwc, [0, 3, 1, 2])
    options = {"padding": "same", "strides": 2, "activation": tf.nn.relu}
    tensors = []
    for images, data_format, reuse in ((nhwc, "channels_last", None), (first, "channels_first", 1)):
        with tf.variable_scope("net", reuse=bool(reuse)):
            options["data_format"] = data_format
            x = tf.layers.conv2d(images, 4, 3, **options)
            x = tf.layers.conv2d_transpose(x, 2, 2, **options)
            axis = 1 if reuse else -1
            x = tf.layers.batch_normalization(x, axis=axis, training=True)
            x = tf.layers.average_pooling2d(x, 2, 1, "same", data_format)
            tensors.append(tf.layers.flatten(x, data_format=data_format))
    array, transposed = valued(tensors)
    np.testing.assert_allclose(array, transposed, rtol=1e-4, atol=1e-5)


def test_a_training_moves_averages_by_the_operations_in_update_ops(graph: Any) -> None:
    x = tf.placeholder(tf.float32, [None, 5])
    training = tf.placeholder_with_default(False, [])
    with tf.variable_scope("tower"):
        y = tf.layers.batch_normalization(x, momentum=0.5, training=training)
    loss = tf.reduce_mean(tf.square(tf.layers.dense(y, 1)))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS, scope="tower")):
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
    mean = next(v for v in tf.global_variables() if v.op.name.endswith("moving_mean"))
    assert names(tf.trainable_variables("tower")) == [
        "tower/batch_normalization/gamma",
        "tower/batch_normalization/beta",
    ]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(train, {x: ROWS})
        assert not session.run(mean).any()
        session.run(train, {x: ROWS, training: True})
        np.testing.assert_allclose(session.run(mean), ROWS.mean(0) / 2, rtol=1e-5)
        session.run(y, {x: ROWS, training: True})  # without the operations nothing moves
        np.testing.assert_allclose(session.run(mean), ROWS.mean(0) / 2, rtol=1e-5)


def test_dropout_keeps_its_fraction_and_the_mean(graph: Any) -> None:
    x = tf.ones([200, 100])
    keep, training = tf.placeholder(tf.float32), tf.placeholder(tf.bool, [])
    old = tf.nn.dropout(x, keep)
    new = newer.nn.dropout(x, rate=0.25, noise_shape=[200, 1], seed=1)
    layer = tf.layers.dropout(x, 0.25, training=training)
    feeds = {keep: 0.75, training: True}
    for values in valued([old, new, layer], feeds):
        assert set(np.unique(values.round(5))) == {0, np.float32(4 / 3).round(5)}
        assert abs(values.mean() - 1) < 0.15
    assert {len(np.unique(row)) for row in valued(new)} == {1}
    np.testing.assert_array_equal(valued(layer, {training: False}), np.ones([200, 100]))
    np.testing.assert_array_equal(valued(new), valued(new))


def test_dropout_gradient_equals_its_mask(graph: Any) -> None:
    x = tf.constant(ROWS)
    y = tf.nn.dropout(x, keep_prob=tf.constant(0.5), seed=3)
    values, (gradient,) = valued([y, tf.gradients(y, x)])
    np.testing.assert_array_equal(gradient, np.where(values == 0, 0, 2))


# As tf.enable_eager_execution() had it: layers hold variables, and do at once what they do.
def test_layers_work_in_eager_mode() -> None:
    rows = torch.from_numpy(ROWS)
    dense = tf.layers.Dense(3, activation=tf.nn.relu, kernel_regularizer=lambda w: (w * w).sum())
    normal = tf.layers.BatchNormalization(momentum=0.5)
    with newer.GradientTape() as tape:
        loss = tf.reduce_sum(normal(dense(rows), training=True))
    assert isinstance(dense.kernel, thalweg.Variable)
    assert [tuple(weight.shape) for weight in dense.weights] == [(5, 3), (3,)]
    assert tape.gradient(loss, dense.trainable_variables)[0].shape == (5, 3)
    (penalty,) = dense.losses
    assert penalty.item() == pytest.approx((dense.kernel**2).sum().item())
    assert len(normal.non_trainable_weights) == 2
    mean = dense(rows).mean(0).detach() / 2
    torch.testing.assert_close(normal.moving_mean.detach(), mean)
    assert tf.layers.conv2d(torch.from_numpy(IMAGES), 2, 3).shape == (2, 4, 4, 2)
    assert tf.losses.mean_squared_error(rows, rows + 1).item() == pytest.approx(1)


# As TensorFlow 2 has it: (what is called with images, rows; the same with torch)
LOSS = torch.nn.functional
NEWER: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "max_pool": (
        lambda i, r: newer.nn.max_pool(i, 2, 2, "SAME"),
        lambda i, r: LOSS.max_pool2d(i.movedim(-1, 1), 2).movedim(1, -1),
    ),
    "avg_pool2d": (
        lambda i, r: newer.nn.avg_pool2d(i, [3, 2], [3, 2], "VALID"),
        lambda i, r: LOSS.avg_pool2d(i.movedim(-1, 1), (3, 2)).movedim(1, -1),
    ),
    "conv2d with margins": (
        lambda i, r: newer.nn.conv2d(
            i, newer.ones([1, 1, 3, 1]), 1, [[0, 0], [1, 0], [0, 2], [0, 0]]
        ),
        lambda i, r: LOSS.pad(i.sum(-1, keepdim=True), (0, 0, 0, 2, 1, 0)),
    ),
    "conv2d_transpose": (
        lambda i, r: newer.nn.conv2d_transpose(
            i, newer.ones([1, 1, 1, 3]), newer.constant([2, 6, 6, 1]), strides=1
        ),
        lambda i, r: i.sum(-1, keepdim=True),
    ),
    "moments": (
        lambda i, r: newer.nn.moments(r, [0], keepdims=True)[1],
        lambda i, r: r.var(0, correction=0, keepdim=True),
    ),
    "top_k": (lambda i, r: newer.nn.top_k(r, k=2).values, lambda i, r: r.topk(2).values),
    "in_top_k": (
        lambda i, r: newer.nn.in_top_k(r.argmax(1), r, 1),
        lambda i, r: torch.ones(8, dtype=torch.bool),
    ),
    "in_top_k of TensorFlow 1": (
        lambda i, r: newer.nn.in_top_k(r, r.argmin(1), 4),
        lambda i, r: torch.zeros(8, dtype=torch.bool),
    ),
    "crelu": (
        lambda i, r: newer.nn.crelu(r, axis=0),
        lambda i, r: torch.cat([r.relu(), (-r).relu()]),
    ),
    "dropout of nothing": (lambda i, r: newer.nn.dropout(r, 0.0), lambda i, r: r),
    "nce_loss without samples": (
        lambda i, r: newer.nn.nce_loss(
            torch.ones(7, 5), torch.zeros(7), torch.ones(8, 1), r, 0, 7,
            sampled_values=(torch.zeros(0, dtype=torch.int64), torch.ones(8, 1), torch.ones(0)),
        ),
        lambda i, r: LOSS.softplus(-r.sum(1)),
    ),
}  # fmt: skip


@many("name", NEWER)
def test_nn_functions_work_in_eager_mode(name: str) -> None:
    function, reference = NEWER[name]
    images, rows = torch.from_numpy(IMAGES), torch.from_numpy(ROWS)
    torch.testing.assert_close(function(images, rows), reference(images, rows))


def test_a_subclass_makes_its_own_variables(graph: Any) -> None:
    class Scaled(tf.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.scale = self.add_variable("scale", [input_shape[-1]], initializer="ones")
            super().build(input_shape)

        def call(self, inputs: Any) -> Any:
            return inputs * self.scale

    layer = Scaled(name="mine")
    first, second = layer(tf.constant(ROWS)), layer.apply(tf.constant(ROWS))
    assert names(layer.trainable_variables) == ["mine/scale"]
    assert layer.scope_name == "mine"
    np.testing.assert_array_equal(*valued([first, second]))


def test_a_variable_scope_gives_the_defaults(graph: Any) -> None:
    with tf.variable_scope("s", initializer=tf.constant_initializer(2.0)):
        layer = tf.layers.Dense(1, trainable=False)
        y = layer(tf.ones([1, 3]))
    assert tf.trainable_variables() == []
    assert y.op.name == "s/dense/BiasAdd"
    np.testing.assert_array_equal(valued(y), [[6]])


# Initial values of a kernel (3, 3, 20, 40): how they are distributed.
KERNEL = (3, 3, 20, 40)
SPREAD: dict[str, tuple[Callable[[], Any], float, float | None]] = {
    # name: (initializer, standard deviation, largest absolute value)
    "glorot_normal": (
        tf.glorot_normal_initializer,
        math.sqrt(2 / 540),
        2 * math.sqrt(2 / 540) / 0.87,
    ),
    "he_normal": (tf.he_normal, math.sqrt(2 / 180), 2 * math.sqrt(2 / 180) / 0.87),
    "he_uniform": (tf.he_uniform, math.sqrt(2 / 180), math.sqrt(6 / 180)),
    "lecun_normal": (tf.lecun_normal, math.sqrt(1 / 180), None),
    "lecun_uniform": (tf.lecun_uniform, math.sqrt(1 / 180), math.sqrt(3 / 180)),
    "fan_out": (
        lambda: tf.variance_scaling_initializer(2.0, "fan_out", "untruncated_normal"),
        math.sqrt(2 / 360),
        None,
    ),
    "unit scaling": (tf.uniform_unit_scaling_initializer, 1 / math.sqrt(180), math.sqrt(3 / 180)),
    "xavier": (tf.contrib.layers.xavier_initializer, math.sqrt(2 / 540), math.sqrt(6 / 540)),
    "contrib": (
        # 1.3 times the variance, of which the cut leaves 0.774
        tf.contrib.layers.variance_scaling_initializer,
        math.sqrt(1.3 * 0.77374 * 2 / 180),
        2 * math.sqrt(1.3 * 2 / 180),
    ),
}


@many("name", SPREAD)
def test_initializers_have_expected_spread(name: str) -> None:
    make, deviation, largest = SPREAD[name]
    with tf.Graph().as_default():
        values = valued(tf.get_variable("w", KERNEL, initializer=make()))
    assert values.std() == pytest.approx(deviation, rel=0.03)
    assert abs(values.mean()) < 0.05 * deviation
    if largest is not None:
        assert 0.9 * largest < np.abs(values).max() <= largest


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (2, 3, 4)])
def test_orthogonal_initializer_is_orthogonal(shape: tuple[int, ...], graph: Any) -> None:
    values = valued(tf.orthogonal_initializer(gain=2.0)(shape)).reshape(-1, shape[-1])
    small = values @ values.T if len(values) < shape[-1] else values.T @ values
    np.testing.assert_allclose(small, 4 * np.eye(len(small)), atol=1e-5)


def test_sampler_draws_classes_by_frequency(graph: Any) -> None:
    labels = tf.constant([[0], [9]])
    unique = tf.nn.log_uniform_candidate_sampler(labels, 1, 8, True, 10, seed=1)
    all_tries = tf.nn.log_uniform_candidate_sampler(labels, 1, 20_000, False, 10, seed=1)
    even = tf.nn.uniform_candidate_sampler(labels, 1, 20_000, False, 10)
    unique, all_tries, even = valued([unique, all_tries, even])
    assert len(set(unique.sampled_candidates.tolist())) == 8
    assert ((unique.true_expected_count > 0) & (unique.true_expected_count <= 1)).all()
    share = np.bincount(all_tries.sampled_candidates, minlength=10) / 20_000
    k = np.arange(10)
    np.testing.assert_allclose(share, np.log((k + 2) / (k + 1)) / np.log(11), atol=0.01)
    expected = 20_000 * np.log(2) / np.log(11), 20_000 * np.log(11 / 10) / np.log(11)
    np.testing.assert_allclose(all_tries.true_expected_count[:, 0], expected, rtol=1e-5)
    assert set(np.bincount(even.sampled_candidates, minlength=10) // 1000) <= {1, 2}
    np.testing.assert_allclose(even.sampled_expected_count, 2000, rtol=1e-5)


def test_the_expected_count_of_unique_classes_is_that_of_their_tries(graph: Any) -> None:
    labels = tf.constant([[0], [3]])
    everything = tf.nn.log_uniform_candidate_sampler(labels, 1, 4, True, 4, seed=1)
    sampled = valued(everything)
    p = np.log((np.array([0, 3]) + 2) / (np.array([0, 3]) + 1)) / np.log(5)
    tries = np.log1p(-sampled.true_expected_count[:, 0]) / np.log1p(-p)
    assert tries[0] == pytest.approx(tries[1], rel=1e-3)
    assert round(tries[0]) >= 4


def test_sampled_losses_have_gradients_of_rows(graph: Any) -> None:
    weights = tf.get_variable("w", [50, 4])
    biases = tf.get_variable("b", [50], initializer=tf.zeros_initializer())
    inputs, labels = tf.ones([3, 4]), tf.constant([[1], [2], [3]])
    for loss in (tf.nn.nce_loss, tf.nn.sampled_softmax_loss):
        losses = loss(weights, biases, labels, inputs, 5, 50)
        assert losses.shape == (3,)
        gradients = tf.gradients(losses, [weights, biases])
        rows = valued(gradients[0])
        assert rows.indices.shape == (8,)
        assert rows.values.shape == (8, 4)


CONTRIB: dict[str, tuple[Callable[[Any, Any], Any], list[str]]] = {
    "fully_connected": (
        lambda r, i: tf.contrib.layers.fully_connected(r, 4),
        ["fully_connected/weights", "fully_connected/biases"],
    ),
    "conv2d": (
        lambda r, i: tf.contrib.layers.conv2d(i, 4, 3, stride=2, scope="c"),
        ["c/weights", "c/biases"],
    ),
    "conv2d normalized": (
        lambda r, i: tf.contrib.layers.conv2d(
            i, 4, 3, normalizer_fn=tf.contrib.layers.batch_norm, normalizer_params={"decay": 0.9}
        ),
        [
            "Conv/weights",
            "Conv/BatchNorm/beta",
            "Conv/BatchNorm/moving_mean",
            "Conv/BatchNorm/moving_variance",
        ],
    ),
    "conv2d_transpose": (
        lambda r, i: tf.contrib.layers.conv2d_transpose(i, 4, 3, biases_initializer=None),
        ["Conv2d_transpose/weights"],
    ),
    "batch_norm": (
        lambda r, i: tf.contrib.layers.batch_norm(r, scale=True),
        [f"BatchNorm/{name}" for name in ("gamma", "beta", "moving_mean", "moving_variance")],
    ),
    "layer_norm": (
        lambda r, i: tf.contrib.layers.layer_norm(i),
        ["LayerNorm/beta", "LayerNorm/gamma"],
    ),
    "two": (
        lambda r, i: tf.contrib.layers.linear(tf.contrib.layers.relu(r, 3), 2),
        [f"fully_connected{end}/{name}" for end in ("", "_1") for name in ("weights", "biases")],
    ),
    "none": (
        lambda r, i: tf.contrib.layers.flatten(
            tf.contrib.layers.dropout(tf.contrib.layers.max_pool2d(i, 2), 0.9, is_training=False)
        ),
        [],
    ),
}


@many("name", CONTRIB)
def test_contrib_layers_name_their_variables(name: str) -> None:
    make, expected = CONTRIB[name]
    with tf.Graph().as_default():
        y = make(tf.constant(ROWS), tf.constant(IMAGES))
        assert names(tf.global_variables()) == expected
        in_model = names(tf.get_collection(tf.GraphKeys.MODEL_VARIABLES))
        assert sorted(in_model) == sorted(expected)
        assert np.isfinite(valued(y)).all()


def test_layer_norm_normalizes_each_example(graph: Any) -> None:
    normalized = valued(tf.contrib.layers.layer_norm(tf.constant(IMAGES)))
    expected = torch.nn.functional.layer_norm(torch.from_numpy(IMAGES), IMAGES.shape[1:], eps=1e-12)
    np.testing.assert_allclose(normalized, expected, rtol=1e-4, atol=1e-5)


def test_contrib_layers_are_reused_and_collected(graph: Any) -> None:
    rows = tf.constant(ROWS)
    options = {
        "scope": "f",
        "weights_regularizer": tf.contrib.layers.l2_regularizer(2.0),
        "variables_collections": {"weights": ["W"]},
        "outputs_collections": "out",
    }
    first = tf.contrib.layers.fully_connected(rows, 3, **options)
    second = tf.contrib.layers.fully_connected(rows, 3, reuse=True, **options)
    assert names(tf.get_collection("out")) == [first.op.name, second.op.name]
    assert set(names(tf.get_collection("W"))) == {"f/weights"}
    (penalty,) = tf.losses.get_regularization_losses()
    old, reused, loss, weights = valued([first, second, penalty, tf.trainable_variables()[0]])
    np.testing.assert_array_equal(old, reused)
    assert loss == pytest.approx((weights**2).sum(), rel=1e-5)


def test_contrib_batch_norm_can_update_averages_in_place(graph: Any) -> None:
    y = tf.contrib.layers.batch_norm(tf.constant(ROWS), decay=0.5, updates_collections=None)
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == []
    mean, variance = tf.global_variables()[-2:]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(y)
        np.testing.assert_allclose(session.run(mean), ROWS.mean(0) / 2, rtol=1e-5)
        expected = 0.5 + ROWS.var(0, ddof=1) / 2
        np.testing.assert_allclose(session.run(variance), expected, rtol=1e-5)


def test_contrib_regularizers_add_penalties(graph: Any) -> None:
    weights = tf.constant([[1.0, -2.0]])
    layers = tf.contrib.layers
    norm = layers.sum_regularizer([layers.l1_regularizer(0.5), layers.l2_regularizer(1.0), None])
    total = layers.apply_regularization(norm, [weights, weights])
    assert valued(total) == pytest.approx(2 * (1.5 + 2.5))
    assert tf.losses.get_regularization_losses() == [total]


def test_metrics_restart_with_their_local_variables(graph: Any) -> None:
    x = tf.placeholder(tf.float32, [None])
    value, update = tf.metrics.mean(x, metrics_collections=["m"], updates_collections=["u"])
    second_mean, _ = tf.metrics.mean(x)
    assert names(tf.local_variables()) == [
        "mean/total",
        "mean/count",
        "mean_1/total",
        "mean_1/count",
    ]
    assert tf.get_collection(tf.GraphKeys.METRIC_VARIABLES) == tf.local_variables()
    assert (tf.get_collection("m"), tf.get_collection("u")) == ([value], [update])
    with tf.Session() as session:
        for _ in range(2):
            session.run(tf.local_variables_initializer())
            assert session.run(value) == 0
            assert session.run(update, {x: [1, 2]}) == 1.5
            assert session.run(update, {x: [6]}) == 3
            assert session.run([value, second_mean]) == [3, 0]


def test_metrics_raise_in_eager_mode() -> None:
    with pytest.raises(RuntimeError, match="variables of a graph"):
        tf.metrics.mean([1.0])


def test_graph_mode_selects_v1_losses_and_metrics(graph: Any) -> None:
    assert newer.losses is tf.losses
    assert newer.metrics is tf.metrics
    assert newer.initializers is tf.initializers
    assert newer.optimizers.SGD is newer.keras.optimizers.SGD


def test_eager_mode_selects_keras_losses_and_metrics() -> None:
    pytest.importorskip("keras")
    assert newer.losses.MeanSquaredError is not None
    assert newer.metrics.Mean is not None


def test_ambiguous_positional_arguments_raise(graph: Any) -> None:
    images, filters = tf.constant(IMAGES), tf.zeros([3, 3, 3, 2])
    with pytest.raises(TypeError, match="use_cudnn_on_gpu"):
        newer.nn.conv2d(images, filters, 1, "SAME", "NHWC")
    assert newer.nn.conv2d(images, filter=filters, strides=1, padding="SAME").shape == (2, 6, 6, 2)
    with pytest.raises(TypeError, match="partition_strategy"):
        newer.nn.nce_loss(*[None] * 10)
