"""`thalweg.tf`: TensorFlow's names, in eager mode and in graphs."""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

import fresh_process
import thalweg
import thalweg.tf as tf
from thalweg import tf as facade

A = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]], "f4")
B = np.array([[2.0, 2.0, 0.5], [1.0, -1.0, 3.0]], "f4")
P = np.abs(A)
BOOL = A > 0
ROW = np.array([1.0, 2.0, 3.0], "f4")
MATRIX = np.array([[1, -2, 0], [0, -5, 1]], "i4")


def softmax(x: Any) -> Any:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


# name: (what TensorFlow code calls, what it gives)
CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "abs": (lambda a, b: tf.abs(a), np.abs(A)),
    "exp": (lambda a, b: tf.exp(a), np.exp(A)),
    "log": (lambda a, b: tf.math.log(tf.abs(a)), np.log(P)),
    "sqrt": (lambda a, b: tf.sqrt(tf.abs(a)), np.sqrt(P)),
    "rsqrt": (lambda a, b: tf.math.rsqrt(tf.abs(a)), 1 / np.sqrt(P)),
    "square": (lambda a, b: tf.square(a), A * A),
    "sign": (lambda a, b: tf.sign(a), np.sign(A)),
    "negative": (lambda a, b: tf.negative(a), -A),
    "tanh": (lambda a, b: tf.tanh(a), np.tanh(A)),
    "sigmoid": (lambda a, b: tf.sigmoid(a), 1 / (1 + np.exp(-A))),
    "add": (lambda a, b: tf.add(a, b), A + B),
    "add a list": (lambda a, b: tf.add(a, [1.0, 2.0, 3.0]), A + ROW),
    "subtract from a number": (lambda a, b: tf.subtract(1.0, a), 1 - A),
    "multiply": (lambda a, b: tf.multiply(a, b), A * B),
    "divide": (lambda a, b: tf.divide(a, b), A / B),
    "divide_no_nan": (lambda a, b: tf.math.divide_no_nan(a, b - b), A * 0),
    "pow": (lambda a, b: tf.pow(a, 2), A**2),
    "mod": (lambda a, b: tf.math.mod(a, 4.0), np.mod(A, 4)),
    "floordiv": (lambda a, b: tf.math.floordiv(a, 4.0), np.floor_divide(A, 4)),
    "maximum": (lambda a, b: tf.maximum(0.0, a), np.maximum(A, 0)),
    "minimum": (lambda a, b: tf.minimum(a, b), np.minimum(A, B)),
    "squared_difference": (lambda a, b: tf.math.squared_difference(a, b), (A - B) ** 2),
    "add_n": (lambda a, b: tf.add_n([a, b, a]), 2 * A + B),
    "clip_by_value": (lambda a, b: tf.clip_by_value(a, -1.0, 2.0), np.clip(A, -1, 2)),
    "clip_by_norm": (lambda a, b: tf.clip_by_norm(a, 1.0), A / np.linalg.norm(A)),
    "clip_by_norm of rows": (
        lambda a, b: tf.clip_by_norm(a, 1.0, axes=[1]),
        A / np.linalg.norm(A, axis=1, keepdims=True),
    ),
    "clip_by_norm of zeros": (lambda a, b: tf.clip_by_norm(a - a, 1.0), A * 0),
    "global_norm": (lambda a, b: tf.linalg.global_norm([a, None, b]), np.sqrt((A**2 + B**2).sum())),
    "clip_by_global_norm": (
        lambda a, b: tf.clip_by_global_norm([a, b], 1.0)[0][1],
        B / np.sqrt((A**2 + B**2).sum()),
    ),
    "equal": (lambda a, b: tf.equal(a, 4.0), A == 4),
    "greater": (lambda a, b: tf.greater(a, b), A > B),
    "logical_and": (lambda a, b: tf.logical_and(a > 0, b > 0), (A > 0) & (B > 0)),
    "where": (lambda a, b: tf.where(a > 0, a, 0.0), np.where(BOOL, A, 0)),
    "cast": (lambda a, b: tf.cast(a, tf.int32), A.astype("i4")),
    "cast by name": (lambda a, b: tf.cast(a, "float64"), A.astype("f8")),
    "identity": (lambda a, b: tf.identity(a), A),
    "stop_gradient": (lambda a, b: tf.stop_gradient(a), A),
    "cumsum": (lambda a, b: tf.cumsum(a, axis=1), np.cumsum(A, 1)),
    "cumsum reversed": (
        lambda a, b: tf.math.cumsum(a, axis=1, exclusive=True, reverse=True),
        np.cumsum(A[:, ::-1], 1)[:, ::-1] - A,
    ),
    "reduce_sum": (lambda a, b: tf.reduce_sum(a), A.sum()),
    "reduce_sum of no axis": (lambda a, b: tf.reduce_sum(a, axis=[]), A),
    "reduce_mean": (
        lambda a, b: tf.reduce_mean(a, axis=1, keepdims=True),
        A.mean(1, keepdims=True),
    ),
    "reduce_max": (lambda a, b: tf.reduce_max(a, axis=[0, 1]), A.max()),
    "reduce_min": (lambda a, b: tf.reduce_min(a, axis=-1), A.min(-1)),
    "reduce_prod": (lambda a, b: tf.reduce_prod(a, axis=[0, 1]), A.prod()),
    "reduce_any": (lambda a, b: tf.reduce_any(a > 4, axis=0), (A > 4).any(0)),
    "reduce_all": (lambda a, b: tf.reduce_all(a > -9), np.True_),
    "reduce_logsumexp": (lambda a, b: tf.reduce_logsumexp(a), np.log(np.exp(A).sum())),
    "reduce_std": (lambda a, b: tf.math.reduce_std(a, axis=0), A.std(0)),
    "reduce_variance": (lambda a, b: tf.math.reduce_variance(a), A.var()),
    "argmax": (lambda a, b: tf.argmax(a, axis=1), A.argmax(1)),
    "argmin": (lambda a, b: tf.argmin(a), A.argmin(0)),
    "norm": (lambda a, b: tf.norm(a, axis=1), np.linalg.norm(A, axis=1)),
    "norm of order 1": (lambda a, b: tf.norm(a, ord=1), P.sum()),
    "reshape": (lambda a, b: tf.reshape(a, [3, -1]), A.reshape(3, -1)),
    "reshape to a number": (lambda a, b: tf.reshape(a, -1), A.reshape(-1)),
    "transpose": (lambda a, b: tf.transpose(a), A.T),
    "transpose by perm": (lambda a, b: tf.transpose(a, perm=[0, 1]), A),
    "expand_dims": (lambda a, b: tf.expand_dims(a, -1), A[..., None]),
    "squeeze": (lambda a, b: tf.squeeze(tf.expand_dims(a, 0), axis=[0]), A),
    "concat": (lambda a, b: tf.concat([a, b], axis=1), np.concatenate([A, B], 1)),
    "stack": (lambda a, b: tf.stack([a, b], axis=1), np.stack([A, B], 1)),
    "unstack": (lambda a, b: tf.unstack(a, axis=1)[2], A[:, 2]),
    "split": (lambda a, b: tf.split(a, [1, 2], axis=1)[1], A[:, 1:]),
    "split evenly": (lambda a, b: tf.split(a, 3, axis=1)[1], A[:, 1:2]),
    "tile": (lambda a, b: tf.tile(a, [2, 1]), np.tile(A, (2, 1))),
    "broadcast_to": (lambda a, b: tf.broadcast_to(a, [2, 2, 3]), np.stack([A, A])),
    "gather": (lambda a, b: tf.gather(a, [1, 1, 0]), A[[1, 1, 0]]),
    "gather along an axis": (lambda a, b: tf.gather(a, [2, 0], axis=1), A[:, [2, 0]]),
    "matmul": (lambda a, b: tf.matmul(a, b, transpose_b=True), A @ B.T),
    "tensordot": (lambda a, b: tf.tensordot(a, b, 2), (A * B).sum()),
    "einsum": (lambda a, b: tf.einsum("ij,kj->ik", a, b), A @ B.T),
    "shape": (lambda a, b: tf.shape(a), np.array([2, 3], "i4")),
    "size": (lambda a, b: tf.size(a), np.int32(6)),
    "rank": (lambda a, b: tf.rank(a), np.int32(2)),
    "zeros_like": (lambda a, b: tf.zeros_like(a), A * 0),
    "ones_like": (lambda a, b: tf.ones_like(a, dtype=tf.int64), np.ones_like(A, "i8")),
    "zeros": (lambda a, b: a + tf.zeros([2, 3]), A),
    "ones": (lambda a, b: a * tf.ones(3), A),
    "fill": (lambda a, b: a + tf.fill([2, 3], 2.0), A + 2),
    "eye": (lambda a, b: tf.matmul(a, tf.eye(3)), A),
    "range": (lambda a, b: tf.range(1, 7, 2), np.array([1, 3, 5], "i4")),
    "range of floats": (lambda a, b: tf.range(2.0), np.array([0, 1], "f4")),
    "linspace": (lambda a, b: tf.linspace(0.0, 1.0, 3), np.array([0, 0.5, 1], "f4")),
    "one_hot": (lambda a, b: tf.one_hot([1, 5], 3), np.array([[0, 1, 0], [0, 0, 0]], "f4")),
    "one_hot along an axis": (
        lambda a, b: tf.one_hot(tf.argmax(a, 1), 3, axis=0, dtype=tf.int32),
        np.eye(3, dtype="i4")[A.argmax(1)].T,
    ),
    "constant": (lambda a, b: a + tf.constant(1, tf.float32, [2, 3]), A + 1),
    "convert_to_tensor": (lambda a, b: tf.convert_to_tensor([a, b]), np.stack([A, B])),
    "relu": (lambda a, b: tf.nn.relu(a), np.maximum(A, 0)),
    "leaky_relu": (lambda a, b: tf.nn.leaky_relu(a, alpha=0.5), np.where(BOOL, A, A / 2)),
    "softplus": (lambda a, b: tf.nn.softplus(a), np.log1p(np.exp(A))),
    "softmax": (lambda a, b: tf.nn.softmax(a), softmax(A)),
    "log_softmax": (lambda a, b: tf.nn.log_softmax(a), np.log(softmax(A))),
    "softmax_cross_entropy_with_logits": (
        lambda a, b: tf.nn.softmax_cross_entropy_with_logits(labels=tf.abs(b), logits=a),
        -(np.abs(B) * np.log(softmax(A))).sum(1),
    ),
    "sparse_softmax_cross_entropy_with_logits": (
        lambda a, b: tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[2, 0], logits=a),
        -np.log(softmax(A))[[0, 1], [2, 0]],
    ),
    "sigmoid_cross_entropy_with_logits": (
        lambda a, b: tf.nn.sigmoid_cross_entropy_with_logits(labels=b, logits=a),
        np.maximum(A, 0) - A * B + np.log1p(np.exp(-P)),
    ),
    "l2_loss": (lambda a, b: tf.nn.l2_loss(a), (A**2).sum() / 2),
    "l2_normalize": (
        lambda a, b: tf.nn.l2_normalize(a, axis=1),
        A / np.linalg.norm(A, axis=1, keepdims=True),
    ),
    "bias_add": (lambda a, b: tf.nn.bias_add(a, [1.0, 2.0, 3.0]), A + ROW),
    "dropout": (lambda a, b: tf.nn.dropout(a, rate=0.0), A),
    "embedding_lookup": (lambda a, b: tf.nn.embedding_lookup(a, [1, 0, 1]), A[[1, 0, 1]]),
    "v1 reduce_sum": (lambda a, b: tf.compat.v1.reduce_sum(a, reduction_indices=[1]), A.sum(1)),
    "v1 reduce_mean": (
        lambda a, b: tf.compat.v1.reduce_mean(a, 0, keep_dims=True),
        A.mean(0, keepdims=True),
    ),
    "v1 argmax": (lambda a, b: tf.compat.v1.argmax(a, dimension=1), A.argmax(1)),
    "v1 dropout": (lambda a, b: tf.compat.v1.nn.dropout(a, keep_prob=1.0), A),
    "v1 cross entropy": (
        lambda a, b: tf.compat.v1.nn.softmax_cross_entropy_with_logits(labels=P, logits=a),
        -(P * np.log(softmax(A))).sum(1),
    ),
}


def assert_equal(got: Any, expected: Any) -> None:
    got = np.asarray(got)
    assert got.shape == np.shape(expected)
    same_kind = np.asarray(expected).dtype.kind == "f" and got.dtype == np.float32
    assert same_kind or got.dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", CALLS)
def test_functions_have_tensorflow_values_in_eager_mode(name: str) -> None:
    call, expected = CALLS[name]
    assert_equal(call(torch.tensor(A), torch.tensor(B)).numpy(), expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CALLS)
def test_functions_have_tensorflow_values_in_a_graph(name: str) -> None:
    call, expected = CALLS[name]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        a = tf.compat.v1.placeholder(tf.float32, [None, 3])
        b = tf.compat.v1.placeholder(tf.float32, [2, 3])
        result = call(a, b)
        assert isinstance(result, tf.Tensor)
        assert_equal(session.run(result, {a: A, b: B}), expected)


@pytest.mark.parametrize("name", ["square", "softmax", "clip_by_norm", "reduce_mean", "concat"])
def test_gradients_are_alike_in_both_modes(name: str) -> None:
    call, _ = CALLS[name]
    w = tf.Variable(A)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(call(w, torch.tensor(B)) ** 2)
    eager = tape.gradient(loss, w)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        w = tf.Variable(A)
        (gradient,) = tf.gradients(tf.reduce_sum(call(w, tf.constant(B)) ** 2), [w])
        session.run(tf.compat.v1.global_variables_initializer())
        np.testing.assert_allclose(session.run(gradient), eager.numpy(), rtol=1e-6)


# name: (call, what TensorFlow gives for integers)
INTEGERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "mean of int64": (lambda x: tf.reduce_mean(tf.cast(x, tf.int64)), np.int64(0)),
    "mean of int32": (lambda x: tf.reduce_mean(x, 0), np.array([0, -3, 0], "i4")),
    "mean of uint8": (lambda x: tf.reduce_mean(tf.cast(tf.abs(x), tf.uint8)), np.uint8(1)),
    "mean along no axis": (lambda x: tf.reduce_mean(x, []), MATRIX),
    "quotient of int32": (lambda x: tf.divide(x[0], 3), np.array([1, -2, 0]) / 3),
    "quotient of int64": (
        lambda x: tf.math.truediv(tf.cast(x[0], tf.int64), 3), np.array([1, -2, 0]) / 3,
    ),
    "quotient of int16": (
        lambda x: tf.divide(tf.cast(x[0], tf.int16), 3), np.array([1, -2, 0], "f4") / 3,
    ),
    "quotient of int32 and zero": (
        lambda x: tf.math.divide_no_nan(x[0], x[1]), np.array([0, 0.4, 0]),
    ),
    "variance of a number": (
        lambda x: tf.math.reduce_variance(tf.cast(x[0, 0], tf.float32)), np.float32(0),
    ),
}  # fmt: skip


def assert_exactly(got: Any, expected: Any) -> None:
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_functions_in_eager_mode(name: str) -> None:
    call, expected = INTEGERS[name]
    assert_exactly(call(torch.tensor(MATRIX)).numpy(), expected)


@pytest.mark.parametrize("name", INTEGERS)
def test_integer_functions_in_a_graph(name: str) -> None:
    call, expected = INTEGERS[name]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.int32, [None, 3])
        result = call(x)
        assert result.dtype == torch.from_numpy(np.asarray(expected)).dtype
        assert_exactly(session.run(result, {x: MATRIX}), expected)


INVALID: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "mean of bool": (
        lambda: tf.reduce_mean([True, False]), TypeError, "numbers, not bool. Cast the tensor.",
    ),
    "mean of no integers": (
        lambda: tf.reduce_mean(np.zeros(0, "i8")), ValueError, "no elements has no value in int64",
    ),
    "variance of integers": (
        lambda: tf.math.reduce_variance([1, 2]), TypeError, "reduce_variance takes real or complex",
    ),
    "deviation of an integer": (lambda: tf.math.reduce_std(1), TypeError, "not int32. Cast"),
    "label that is too large": (
        lambda: entropy([0, 3]), IndexError, r"labels\[1\] = 3 is not in \[0, 3\)",
    ),
    "negative label": (lambda: entropy([-1, 0]), ValueError, r"labels\[0\] = -1 is not in"),
    "label in a matrix": (
        lambda: entropy([[0], [7]], A[:, None]), ValueError, r"labels\[1, 0\] = 7 is not in",
    ),
    "labels of another shape": (
        lambda: entropy([[0, 1]]), ValueError, r"\(1, 2\) do not fit logits of shape \(2, 3\)",
    ),
    "labels that are floats": (
        lambda: entropy([0.0, 1.0]), TypeError, "labels must be integers, not float32",
    ),
}  # fmt: skip


def entropy(labels: Any, logits: Any = A) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)


@pytest.mark.parametrize("name", INVALID)
def test_invalid_arguments_raise(name: str) -> None:
    call, error, message = INVALID[name]
    with pytest.raises(error, match=message):
        call()


SQUARE = A[:, :2]

# What TensorFlow 1 and 2 read in different ways: (call, what is said in a graph)
AMBIGUOUS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "dropout": (lambda x: tf.nn.dropout(x, 0.9), r"^dropout has 'rate' in place 2.* 'keep_prob'"),
    "embedding_lookup": (
        lambda x: tf.nn.embedding_lookup(x, [0], None), "'max_norm' in place 3.*'partition_str",
    ),
    "Variable": (
        lambda x: tf.Variable([1.0], True, True), "^Variable has 'validate_shape' .* 'collections'",
    ),
    "transpose": (lambda x: tf.transpose(x, [1, 0], False), "'conjugate' in place 3.*'name'"),
    "gather": (lambda x: tf.gather(x, [0], None, 1), "'axis' in place 4.*'name'"),
    "shape": (lambda x: tf.shape(x, tf.int64), "'out_type' in place 2.*'name'"),
    "size": (lambda x: tf.size(x, tf.int64), "'out_type' in place 2.*'name'"),
    "argmax": (lambda x: tf.argmax(x, 1, tf.int32), "'output_type' in place 3.*'name'"),
    "argmin": (lambda x: tf.math.argmin(x, 1, tf.int32), "'output_type' in place 3.*'name'"),
    "convert_to_tensor": (
        lambda x: tf.convert_to_tensor(x, tf.float32, None), "'dtype_hint' in place 3.*'name'",
    ),
    "where": (lambda x: tf.where([True, False], x, x), "TensorFlow 1 chooses rows"),
    "labels that are trained": (
        lambda x: tf.nn.softmax_cross_entropy_with_logits(
            labels=tf.nn.softmax(tf.Variable(SQUARE)), logits=x
        ),
        "labels that depend on variables",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_calls_ambiguous_between_versions_raise(name: str) -> None:
    call, message = AMBIGUOUS[name]
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        call(tf.compat.v1.placeholder(tf.float32, [2, 2]))
    call(torch.tensor(SQUARE))  # in eager mode there is one version


# name: (call of TensorFlow 1's, what it gives)
VERSION_1: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "dropout": (lambda x: tf.compat.v1.nn.dropout(x, 1.0), SQUARE),
    "embedding_lookup": (lambda x: tf.compat.v1.nn.embedding_lookup(x, [1], "mod"), SQUARE[1:]),
    "transpose": (lambda x: tf.compat.v1.transpose(x, [1, 0], "turned"), SQUARE.T),
    "gather": (lambda x: tf.compat.v1.gather(x, [1], None, "rows"), SQUARE[1:]),
    "shape": (lambda x: tf.compat.v1.shape(x, "sizes"), np.array([2, 2], "i4")),
    "size": (lambda x: tf.compat.v1.size(x, "count"), np.array(4, "i4")),
    "argmax": (lambda x: tf.compat.v1.argmax(x, 1, "best"), SQUARE.argmax(1)),
    "convert_to_tensor": (lambda x: tf.compat.v1.convert_to_tensor(x, None, "x"), SQUARE),
    "where": (
        lambda x: tf.compat.v1.where([True, False], x, -x), SQUARE * np.array([[1], [-1]], "f4"),
    ),
    "where of matrices": (lambda x: tf.compat.v1.where(x > 0, x, -x), np.abs(SQUARE)),
    "a list of one table": (lambda x: tf.nn.embedding_lookup([x], [1]), SQUARE[1:]),
    "a list of one table of v1": (
        lambda x: tf.compat.v1.nn.embedding_lookup([x], [1]), SQUARE[1:],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VERSION_1)
def test_v1_functions_accept_their_old_arguments(name: str) -> None:
    call, expected = VERSION_1[name]
    assert_equal(call(torch.tensor(SQUARE)).numpy(), expected)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [2, 2])
        assert_equal(session.run(call(x), {x: SQUARE}), expected)


@pytest.mark.parametrize(
    "name",
    ["elementwise", "nn", "nn_v1", "compat.legacy", "compat.removed_in_v2", "compat.v1.layers"],
)
def test_functions_are_pickled_by_name_and_annotated(name: str) -> None:
    module = importlib.import_module(f"thalweg.tf.{name}")
    public = [label for label in getattr(module, "__all__", vars(module)) if label[0] != "_"]
    for function in filter(inspect.isfunction, (getattr(module, label) for label in public)):
        assert pickle.loads(pickle.dumps(function)) is function
        parameters = inspect.signature(function).parameters
        assert set(get_type_hints(function)) == {*parameters, "return"}, function


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("arg_max", "Return the index"),
        ("nn.conv2d", "`use_cudnn_on_gpu` is ignored."),
        ("nn.depthwise_conv2d", "`rate` is an older name of `dilations`."),
        ("nn.separable_conv2d", "`rate` is an older name of `dilations`."),
        ("nn.embedding_lookup", "ids are always validated."),
        ("nn.softmax", "`dim` is an older name of `axis`."),
        ("layers.batch_normalization", "return the outputs of this layer for `inputs`."),
    ],
)
def test_docstrings_of_v1_functions_describe_their_arguments(name: str, text: str) -> None:
    assert text in operator.attrgetter(name)(tf.compat.v1).__doc__


def test_v1_where_with_other_shapes_raises() -> None:
    for shapes in (((3,), (2, 2), (2, 2)), ((2, 2), (2, 2), (2, 1))):
        with pytest.raises(ValueError, match="where"):
            tf.compat.v1.where(torch.ones(shapes[0]) > 0, *map(torch.ones, shapes[1:]))


def test_gradients_of_labels_flow_where_the_name_ends_in_v2() -> None:
    with tf.Graph().as_default():
        w = tf.Variable(SQUARE)
        inputs = {"labels": tf.nn.softmax(w), "logits": tf.constant(SQUARE)}
        v1 = tf.compat.v1.nn
        assert tf.gradients(v1.softmax_cross_entropy_with_logits(**inputs), [w]) == [None]
        assert tf.gradients(v1.softmax_cross_entropy_with_logits_v2(**inputs), [w]) != [None]
        stopped = {**inputs, "labels": tf.stop_gradient(inputs["labels"])}
        assert tf.gradients(tf.nn.softmax_cross_entropy_with_logits(**stopped), [w]) == [None]


def test_embedding_lookup_takes_one_table() -> None:
    table = torch.ones(2, 1)
    for lookup in (thalweg.embedding_lookup, thalweg.v1.embedding_lookup):
        with pytest.raises(TypeError, match="embedding_lookup takes one table, not a list of 2"):
            lookup([table, table], [0])
        w = thalweg.Variable(np.ones((2, 2), "f4"))
        lookup([w], [1]).sum().backward()
        assert w.grad.to_dense().tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_out_of_range_labels_raise_in_a_run() -> None:
    expected = entropy([2, 0])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        labels = tf.compat.v1.placeholder(tf.int64, [None])
        loss = entropy(labels)
        np.testing.assert_allclose(session.run(loss, {labels: [2, 0]}), expected, rtol=1e-6)
        with pytest.raises(IndexError, match=r"labels\[0\] = 9 is not in \[0, 3\)"):
            session.run(loss, {labels: [9, 0]})


def test_operations_have_tensorflow_names() -> None:
    with tf.Graph().as_default() as graph, tf.name_scope("model"):
        loss = tf.reduce_mean(tf.square(tf.constant([1.0, 2.0])), name="loss")
        assert loss is graph.get_tensor_by_name("model/loss:0")
        for value in (0.1, np.float32(0.1), [loss, 0.1]):
            rate = tf.convert_to_tensor(value, tf.float32, name="rate")
            assert rate.op.name.partition("_")[0] == "model/rate"


@pytest.mark.parametrize("clip", [lambda s: tf.clip_by_value(s, -1.0, 1.0), tf.identity])
def test_slices_stay_slices_when_clipped(clip: Any) -> None:
    slices = tf.IndexedSlices(tf.constant([[3.0, 4.0]]), tf.constant([1]), [4, 2])
    clipped = tf.clip_by_norm(slices, 1.0)
    assert isinstance(clipped, tf.IndexedSlices)
    np.testing.assert_allclose(clipped.values.numpy(), [[0.6, 0.8]], rtol=1e-6)
    assert isinstance(tf.clip_by_global_norm([slices], 1.0)[0][0], tf.IndexedSlices)
    assert clip(slices).shape == (4, 2)


def test_clipping_a_sparse_gradient_of_a_graph() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        table = tf.Variable(np.ones((4, 2), "f4"))
        rows = tf.nn.embedding_lookup(table, [1, 1])
        opt = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        (pair,) = opt.compute_gradients(tf.reduce_sum(rows * 3.0))
        assert isinstance(pair[0], tf.IndexedSlices)
        clipped, norm = tf.clip_by_global_norm([pair[0]], 1.0)
        train = opt.apply_gradients(zip(clipped, [pair[1]], strict=True))
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(norm) == 6.0
        session.run(train)
        np.testing.assert_allclose(session.run(table)[:, 0], [1, 0, 1, 1], atol=1e-6)


def test_nonfinite_norm_gives_nan() -> None:
    (clipped,), _ = tf.clip_by_global_norm([tf.constant([np.inf, 1.0])], 1.0)
    assert np.isnan(clipped.numpy()).all()


NAN, INF = math.nan, math.inf
# Function, dtype, elements, limit -> what TensorFlow 2.21 makes of them.
CLIPS: list[tuple[str, str, list[float], float, list[float]]] = [
    ("clip_by_norm", "float32", [1, 2, NAN], 1.0, [NAN, NAN, NAN]),
    ("clip_by_norm", "float64", [1, 2, NAN], 0.5, [NAN, NAN, NAN]),
    ("clip_by_norm", "float16", [1, 2, NAN], 1000.0, [NAN, NAN, NAN]),
    ("clip_by_norm", "bfloat16", [NAN, NAN], 0.0, [NAN, NAN]),
    ("clip_by_norm", "float32", [1, INF], 0.5, [0, NAN]),
    ("clip_by_norm", "float32", [3, 4], -1.0, [0, 0]),
    ("clip_by_norm", "float32", [1e20, 1e19], 0.5, [0, 0]),
    ("clip_by_norm", "float64", [1e20, 1e19], 0.5, [0.4975185951, 0.04975185951]),
    ("clip_by_norm", "float16", [300, 400], 0.5, [0, 0]),
    ("clip_by_global_norm", "float16", [1, 2], 0.5, [0.2236, 0.4473]),
    ("clip_by_global_norm", "float16", [1, 2], 1000.0, [1, 2]),
    ("clip_by_global_norm", "float16", [3, 4], -1.0, [3, 4]),
    ("clip_by_global_norm", "float16", [300, 400], 0.5, [NAN, NAN]),
    ("clip_by_global_norm", "bfloat16", [300, 400], 0.5, [0.30078125, 0.400390625]),
    ("clip_by_global_norm", "float64", [1e20, 1e19], 0.5, [0.4975185951, 0.04975185951]),
    ("clip_by_average_norm", "float32", [3, 4], 1.0, [1.2, 1.6]),
    ("clip_by_average_norm", "float32", [3, 4], 1000.0, [3, 4]),
    ("clip_by_average_norm", "float32", [3, 4], -1.0, [3, 4]),
    ("clip_by_average_norm", "float32", [0, 0], 1.0, [0, 0]),
    ("clip_by_average_norm", "float32", [0, 0], 0.0, [NAN, NAN]),
    ("clip_by_average_norm", "float32", [1, INF], 1.0, [0, NAN]),
    ("clip_by_average_norm", "float32", [1, 2, NAN], 0.5, [NAN, NAN, NAN]),
    ("clip_by_average_norm", "float32", [1e20, 1e19], 1.0, [0, 0]),
]


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(("name", "dtype", "values", "limit", "expected"), CLIPS)
def test_clipping_equals_tensorflow(
    name: str, dtype: str, values: list[float], limit: float, expected: list[float], eager: bool
) -> None:
    def clipped(x: Any) -> Any:
        clipped = getattr(tf.compat.v1, name)([x] if "global" in name else x, limit)
        return clipped[0][0] if "global" in name else clipped

    if eager:
        clipped_values = clipped(torch.tensor(values, dtype=getattr(torch, dtype)))
    else:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tensor = clipped(tf.constant(values, getattr(tf, dtype)))
            clipped_values = torch.as_tensor(session.run(tf.cast(tensor, tf.float64)))
            assert tensor.dtype in (None, getattr(torch, dtype))
    tolerance = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-9}[dtype]
    np.testing.assert_allclose(clipped_values.double(), expected, rtol=tolerance, atol=0)


def test_limits_of_other_dtypes_leave_the_dtype() -> None:
    for limit in (np.float64(0.5), np.float32(0.5), torch.tensor(0.5, dtype=torch.float64)):
        assert tf.clip_by_norm(torch.ones(2, dtype=torch.float16), limit).dtype == torch.float16


def test_norms_are_of_floats() -> None:
    with pytest.raises(TypeError, match="of floats, not of int32"):
        tf.clip_by_norm(torch.ones(2, dtype=torch.int32), 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="takes float32, not float64"):
        tf.compat.v1.clip_by_average_norm(torch.ones(2, dtype=torch.float64), 1.0)


def test_global_norm_of_missing_gradients_is_none() -> None:
    assert tf.linalg.global_norm([None]) is None
    assert tf.clip_by_global_norm([None], 1.0) == ([None], None)


def test_variable_takes_tensorflow_arguments() -> None:
    variable = tf.Variable([1, 2], False, name="w", dtype=tf.float32)
    assert isinstance(variable, tf.Variable)
    assert isinstance(variable, thalweg.Variable)
    assert (variable.name, variable.trainable, variable.dtype) == ("w:0", False, tf.float32)
    assert not isinstance(tf.constant(1.0), tf.Variable)


def test_variable_takes_tensorflow_arguments_in_a_graph() -> None:
    with tf.Graph().as_default():
        variable = tf.Variable(tf.zeros([2]), name="w", constraint=tf.abs)
        assert isinstance(variable, tf.Variable)
        assert (variable.name, variable.constraint) == ("w:0", tf.abs)
        assert tf.compat.v1.trainable_variables() == [variable]


def test_tf_function_returns_the_function() -> None:
    def step(x: int) -> int:
        return x + 1

    assert tf.function(step) is step
    assert tf.function(jit_compile=True)(step) is step


def test_eager_mode_runs_in_program_order() -> None:
    with tf.control_dependencies([]), tf.name_scope("outer"), tf.init_scope():
        assert tf.group(tf.constant(1)) is None
        assert tf.no_op() is None


@pytest.mark.parametrize("draw", ["normal", "uniform", "truncated_normal"])
def test_seed_repeats_random_numbers(draw: str) -> None:
    draws = []
    for _ in range(2):
        tf.random.set_seed(3)
        draws.append(getattr(tf.random, draw)([4], dtype=tf.float64).numpy())
    np.testing.assert_array_equal(*draws)
    assert draws[0].dtype == np.float64


def test_shuffle_keeps_the_rows() -> None:
    shuffled = tf.random.shuffle(tf.range(10), seed=1).numpy()
    assert sorted(shuffled) == list(range(10))
    assert list(shuffled) != list(range(10))


MISSING = {
    "data.TFRecordDataset": "use Dataset.from_generator",
    "data.nothing": "for the rest call torch",
    "distribute.ParameterServerStrategy": "use tf.distribute.MirroredStrategy, under torchrun",
    "TensorArray": "use a Python list",
    "io.read_file": "use Python's open",
    "nothing": "for the rest call torch",
    "nn.dynamic_rnn": r"call torch\.nn\.LSTM",
    "math.nothing": "for the rest call torch",
    "random.stateless_normal": "for the rest call torch",
    "linalg.qr": "for the rest call torch",
    "compat.v3": "for the rest call torch",
    "compat.v1.losses.mean_pairwise_squared_error": r"write it with tf\.square",
    "compat.v1.contrib.slim": r"use tf\.contrib\.layers",
    "compat.v1.nn.nothing": "for the rest call torch",
    "keras.optimizers.AdamW": "use thalweg.v1.contrib.opt.AdamWOptimizer",
    "reduce_meen": "Did you mean 'reduce_mean'",
    "GradiantTape": "Did you mean 'GradientTape'",
    "globl_variables": "Did you mean 'global_variables'",
    "nn.sofmax": "Did you mean 'softmax'",
    "train.AdamOptimiser": "Did you mean 'AdamOptimizer'",
    "train.Supervisor": "use MonitoredTrainingSession",
    "train.MonitoredTrainingSesion": "Did you mean 'MonitoredTrainingSession'",
    "keras.optimizers.RMSProp": "Did you mean 'RMSprop'",
    "compat.v1.losses.mean_square_error": "Did you mean 'mean_squared_error'",
    "test.create_local_cluster": "use torch.distributed",
    "estimator": "use tf.keras.Model",
    "compat.v1.summary.audio": "SummaryWriter",
}


@pytest.mark.parametrize("path", MISSING)
def test_missing_name_error_names_a_replacement(path: str) -> None:
    *modules, name = path.split(".")
    owner: Any = tf
    for module in modules:
        owner = getattr(owner, module)
    with pytest.raises(AttributeError, match=f"thalweg.tf has no '{path}'; .*{MISSING[path]}"):
        getattr(owner, name)


def test_sparse_tensor_is_not_supported() -> None:
    assert not isinstance(tf.constant(1.0), tf.SparseTensor)
    with pytest.raises(NotImplementedError, match=r"use tf\.IndexedSlices"):
        tf.compat.v1.SparseTensor([[0]], [1.0], [1])


def test_special_names_are_missing_as_in_any_module() -> None:
    assert not hasattr(tf, "__wrapped__")
    assert not hasattr(tf.keras, "__wrapped__")


@pytest.mark.parametrize("name", ["placeholder", "Session", "global_variables_initializer"])
def test_top_level_has_tensorflow_1_names(name: str) -> None:
    assert getattr(tf, name) is getattr(tf.compat.v1, name)


def test_importing_the_facade_imports_no_keras() -> None:
    code = (
        "import sys, thalweg.tf as tf; tf.keras.optimizers.Adam; hasattr(tf.keras, '_private');"
        " sys.exit('keras' in sys.modules)"
    )
    process = fresh_process.run(code)
    assert process.returncode == 0, process.stderr


def test_tensorflow_1_training_script_runs() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(64, 6)).astype("f4")
    labels = np.eye(3, dtype="f4")[images[:, :3].argmax(1)]
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        x = tf.placeholder(tf.float32, [None, 6])
        y_ = tf.placeholder(tf.float32, [None, 3])
        W = tf.Variable(tf.random_normal([6, 3], stddev=0.1), name="W")
        b = tf.Variable(tf.zeros([3]), name="b")
        logits = tf.matmul(x, W) + b
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(labels=y_, logits=logits))
        correct = tf.equal(tf.argmax(logits, 1), tf.argmax(y_, 1))
        accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))
        step = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(0.5, step, 10, 0.96, staircase=True)
        optimizer = tf.train.MomentumOptimizer(rate, 0.9)
        gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
        gradients, _ = tf.clip_by_global_norm(gradients, 5.0)
        train = optimizer.apply_gradients(zip(gradients, variables, strict=True), step)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(60):
                session.run(train, feed_dict={x: images, y_: labels})
            accuracy_value, steps = session.run([accuracy, step], {x: images, y_: labels})
    assert accuracy_value > 0.9
    assert steps == 60


keras_needed = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def keras_model(kind: str) -> Any:
    pytest.importorskip("keras", reason="Keras 3 is not installed")
    if kind == "Sequential":
        return tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    inputs = tf.keras.Input((3,))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inputs))


@keras_needed
@pytest.mark.parametrize("kind", ["Sequential", "Model"])
@pytest.mark.parametrize("form", ["name", "optimizer"])
def test_models_compile_with_optimizers_of_thalweg(kind: str, form: str, tmp_path: Path) -> None:
    model = keras_model(kind)
    optimizer = "adam" if form == "name" else tf.keras.optimizers.RMSprop(0.01)
    model.compile(optimizer, loss="mse", metrics=["mae"])
    model.fit(np.ones((4, 3)), np.ones(4), verbose=0)
    assert isinstance(model, getattr(tf.keras, kind))
    assert isinstance(model.optimizer, thalweg.keras.optimizers.Optimizer)
    assert model.optimizer is optimizer or form == "name"
    assert int(model.optimizer.iterations) == 1
    model.save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model)
    assert type(loaded.optimizer) is type(model.optimizer)
    for weight, saved_weight in zip(
        model.optimizer.get_weights(), loaded.optimizer.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(weight, saved_weight)


@keras_needed
def test_derived_model_compiles_with_an_optimizer_of_thalweg() -> None:
    pytest.importorskip("keras", reason="Keras 3 is not installed")

    class Net(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = tf.keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model, optimizer = Net(), tf.keras.optimizers.Adagrad(0.1)
    model.compile(optimizer=optimizer, loss=tf.keras.losses.MeanSquaredError())
    model.fit(np.ones((4, 3)), np.ones(4), verbose=0)
    assert model.optimizer is optimizer


@keras_needed
def test_keras_optimizer_is_not_replaced() -> None:
    model = keras_model("Sequential")
    import keras

    model.compile(keras.optimizers.Lion(), loss="mse")
    assert isinstance(model.optimizer, keras.optimizers.Lion)


@keras_needed
def test_tape_and_optimizer_take_variables_of_keras() -> None:
    model = keras_model("Sequential")
    optimizer = tf.keras.optimizers.SGD(0.5, momentum=0.9)
    x = tf.ones([2, 3])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x))
    gradients = tape.gradient(loss, model.trainable_variables)
    initial = [var.numpy().copy() for var in model.trainable_variables]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    for var, old in zip(model.trainable_variables, initial, strict=True):
        np.testing.assert_allclose(var.numpy(), old - 0.5, rtol=1e-6)
    names = [weight.name for weight in optimizer.weights[1:]]
    assert names[0].startswith("SGD/")
    assert names[0].endswith("kernel/momentum:0")


def gradient(function: Any, *values: Any) -> list[list[float]]:
    tensors = [torch.tensor(value, requires_grad=True) for value in values]
    function(*tensors).sum().backward()
    return [tensor.grad.tolist() for tensor in tensors]  # type: ignore[union-attr]


def test_gradients_at_non_differentiable_points() -> None:
    entropy = facade.nn.sigmoid_cross_entropy_with_logits
    (grad,) = gradient(lambda x: entropy(torch.tensor([0.0, 1.0]), x), [0.0, 0.0])
    assert grad == [0.5, -0.5]
    assert gradient(facade.maximum, [0.0, 1.0], [0.0, 2.0]) == [[1.0, 0.0], [0.0, 1.0]]
    assert gradient(facade.minimum, [0.0, 1.0], [0.0, 2.0]) == [[1.0, 1.0], [0.0, 0.0]]


def test_ranges_have_the_dtype_of_their_ends() -> None:
    assert facade.range(torch.tensor(3.0)).dtype == torch.float32
    assert facade.range(np.float32(3)).tolist() == [0.0, 1.0, 2.0]
    assert facade.range(3).dtype == torch.int32


def test_parts_are_equal_and_limits_may_be_zero() -> None:
    with pytest.raises(ValueError, match="cannot be split into 2 equal parts"):
        facade.split(torch.arange(5.0), 2)
    (clipped,), _ = facade.clip_by_global_norm([torch.ones(2)], 0.0)
    assert clipped.tolist() == [0.0, 0.0]
    assert facade.clip_by_norm(torch.zeros(2), 0.0).tolist() == [0.0, 0.0]


def test_modules_of_keras_are_imported_by_name() -> None:
    from thalweg.tf.keras.layers import Dense
    from thalweg.tf.keras.losses import mse

    from thalweg.tf.keras import layers
    from thalweg.tf.keras.models import Sequential

    assert layers.Dense is Dense is tf.keras.layers.Dense
    assert mse is tf.keras.losses.mse
    assert Sequential is tf.keras.Sequential
    with pytest.raises(ImportError, match="'nothing'"):
        from thalweg.tf.keras.layers import nothing  # noqa: F401
