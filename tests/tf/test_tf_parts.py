"""Parts of tensors, segments, assertions and Python functions of `thalweg.tf`, in both modes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from sessions import initialized
from thalweg import InvalidArgumentError
from thalweg import _graph as graph

v1 = tf.compat.v1
A = np.arange(12.0, dtype="f4").reshape(3, 4)
PLACES = np.array([[2, 0], [1, 3]], "i4")
IDS = np.array([0, 2, 0], "i4")
DIAGONAL = np.diag(A[0])
SQUARE = np.array([[2.0, 1.0], [1.0, 3.0]], "f4")

# name: (what is called on a, i and ids, what it gives)
CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "slice": (lambda a, i, ids: tf.slice(a, [1, 0], [2, 3]), A[1:3, :3]),
    "slice to the end": (lambda a, i, ids: tf.slice(a, [1, 2], [-1, -1]), A[1:, 2:]),
    "slice by tensors": (lambda a, i, ids: tf.slice(a, i[0], i[1]), A[2:3, :3]),
    "strided_slice": (lambda a, i, ids: tf.strided_slice(a, [0, 1], [3, 4], [2, 2]), A[::2, 1::2]),
    "strided_slice backwards": (lambda a, i, ids: tf.strided_slice(a, [2], [0], [-1]), A[2:0:-1]),
    "strided_slice with masks": (
        lambda a, i, ids: tf.strided_slice(
            a, [1, 1], [2, 2], begin_mask=2, end_mask=2, shrink_axis_mask=1
        ),
        A[1],
    ),
    "pad": (lambda a, i, ids: tf.pad(a, [[1, 0], [0, 2]]), np.pad(A, ((1, 0), (0, 2)))),
    "pad with a value": (
        lambda a, i, ids: tf.pad(a, [[0, 1], [0, 0]], constant_values=7.0),
        np.pad(A, ((0, 1), (0, 0)), constant_values=7),
    ),
    "pad by reflection": (
        lambda a, i, ids: tf.pad(a, [[1, 2], [0, 0]], "REFLECT"),
        np.pad(A, ((1, 2), (0, 0)), mode="reflect"),
    ),
    "pad by symmetry": (
        lambda a, i, ids: tf.pad(a, tf.constant([[1, 2], [1, 1]]), "SYMMETRIC"),
        np.pad(A, ((1, 2), (1, 1)), mode="symmetric"),
    ),
    "reverse": (lambda a, i, ids: tf.reverse(a, [1]), A[:, ::-1]),
    "repeat": (lambda a, i, ids: tf.repeat(a, 2, axis=0), np.repeat(A, 2, 0)),
    "repeat by counts": (lambda a, i, ids: tf.repeat(ids, [2, 0, 1]), np.array([0, 0, 0], "i4")),
    "meshgrid": (lambda a, i, ids: tf.meshgrid(a[0], a[:, 0])[1], np.meshgrid(A[0], A[:, 0])[1]),
    "boolean_mask": (lambda a, i, ids: tf.boolean_mask(a, a > 4), A[A > 4]),
    "boolean_mask of rows": (
        lambda a, i, ids: tf.boolean_mask(a, tf.equal(ids, 0)),
        A[IDS == 0],
    ),
    "boolean_mask along an axis": (
        lambda a, i, ids: tf.boolean_mask(a, [True, False, True, False], axis=1),
        A[:, [0, 2]],
    ),
    "gather_nd": (lambda a, i, ids: tf.gather_nd(a, i), A[[2, 1], [0, 3]]),
    "gather_nd of rows": (lambda a, i, ids: tf.gather_nd(a, [[2], [0]]), A[[2, 0]]),
    "gather_nd in batches": (
        lambda a, i, ids: tf.gather_nd(a, [[1], [2], [3]], batch_dims=1),
        A[[0, 1, 2], [1, 2, 3]],
    ),
    "scatter_nd": (
        lambda a, i, ids: tf.scatter_nd([[1], [1]], tf.constant([2.0, 3.0]), [4]),
        np.array([0, 5, 0, 0], "f4"),
    ),
    "scatter_nd of rows": (
        lambda a, i, ids: tf.scatter_nd([[2]], a[:1], tf.shape(a)),
        np.stack([A[0] * 0, A[0] * 0, A[0]]),
    ),
    "sequence_mask": (
        lambda a, i, ids: tf.sequence_mask([1, 3], 4, dtype=tf.float32),
        np.array([[1, 0, 0, 0], [1, 1, 1, 0]], "f4"),
    ),
    "sequence_mask of the largest": (
        lambda a, i, ids: tf.sequence_mask(ids),
        np.array([[False, False], [True, True], [False, False]]),
    ),
    "unique": (
        lambda a, i, ids: tf.unique(tf.constant([7, 1, 7, 3, 1])).y,
        np.array([7, 1, 3], "i4"),
    ),
    "places of unique": (
        lambda a, i, ids: tf.unique(tf.constant([7, 1, 7, 3, 1])).idx,
        np.array([0, 1, 0, 2, 1], "i4"),
    ),
    "unique_with_counts": (lambda a, i, ids: tf.unique_with_counts(ids)[2], np.array([2, 1], "i4")),
    "dynamic_partition": (lambda a, i, ids: tf.dynamic_partition(a, ids, 3)[0], A[[0, 2]]),
    "an empty partition": (lambda a, i, ids: tf.dynamic_partition(a, ids, 3)[1], A[:0]),
    "invert_permutation": (
        lambda a, i, ids: tf.math.invert_permutation([2, 0, 1]),
        np.array([1, 2, 0], "i4"),
    ),
    "diag": (lambda a, i, ids: v1.diag(a[0]), DIAGONAL),
    "diag_part": (lambda a, i, ids: v1.diag_part(v1.diag(a[0])), A[0]),
    "matrix_band_part": (lambda a, i, ids: v1.matrix_band_part(a, 0, -1), np.triu(A)),
    "matrix_inverse": (
        lambda a, i, ids: v1.matrix_inverse(tf.constant(SQUARE)) * 5.0,
        np.array([[3, -1], [-1, 2]], "f4"),
    ),
    "matrix_solve": (
        lambda a, i, ids: v1.matrix_solve(tf.constant(SQUARE), [[5.0], [5.0]]),
        np.array([[2], [1]], "f4"),
    ),
    "linalg.det": (lambda a, i, ids: tf.linalg.det(SQUARE), np.float32(5)),
    "cholesky": (
        lambda a, i, ids: tf.matmul(v1.cholesky(SQUARE), v1.cholesky(SQUARE), transpose_b=True),
        SQUARE,
    ),
    "self_adjoint_eig": (
        lambda a, i, ids: v1.self_adjoint_eig(SQUARE)[0],
        np.linalg.eigvalsh(SQUARE),
    ),
    "svd": (lambda a, i, ids: tf.linalg.svd(a[:2], compute_uv=False), np.linalg.svd(A[:2])[1]),
    "svd put together": (
        lambda a, i, ids: (lambda s, u, v: (u * s) @ v.mT)(*tf.linalg.svd(a[:2, 1:3])),
        A[:2, 1:3],  # no zeros: the tolerance is relative
    ),
    "trace": (lambda a, i, ids: tf.linalg.trace(SQUARE), np.float32(5)),
    "math.count_nonzero": (
        lambda a, i, ids: tf.math.count_nonzero(ids, keepdims=True),
        np.array([1]),
    ),
    "segment_sum": (
        lambda a, i, ids: tf.segment_sum(a, [0, 0, 2]),
        np.stack([A[0] + A[1], A[0] * 0, A[2]]),
    ),
    "segment_mean": (
        lambda a, i, ids: tf.segment_mean(a, [0, 0, 1]),
        np.stack([A[:2].mean(0), A[2]]),
    ),
    "segment_max": (lambda a, i, ids: tf.segment_max(a, [0, 0, 1]), A[1:]),
    "unsorted_segment_sum": (
        lambda a, i, ids: tf.unsorted_segment_sum(a, ids, 4),
        np.stack([A[0] + A[2], A[0] * 0, A[1], A[0] * 0]),
    ),
    "unsorted_segment_sum of none": (
        lambda a, i, ids: tf.unsorted_segment_sum(a, [-1, 0, -1], 1),
        A[1:2],
    ),
    "unsorted_segment_prod": (
        lambda a, i, ids: tf.unsorted_segment_prod(a, ids, 2 + 1),
        np.stack([A[0] * A[2], A[0] * 0 + 1, A[1]]),
    ),
    "unsorted_segment_max": (
        lambda a, i, ids: tf.unsorted_segment_max(a[:, 0], ids, 3)[0],
        np.float32(8),
    ),
    "to_float": (lambda a, i, ids: v1.to_float(ids), IDS.astype("f4")),
    "to_int64": (lambda a, i, ids: v1.to_int64(a), A.astype("i8")),
    "div of integers": (lambda a, i, ids: v1.div(ids - 1, 2), (IDS - 1) // 2),
    "div of floats": (lambda a, i, ids: v1.div(a, 2.0), A / 2),
    "accumulate_n": (lambda a, i, ids: v1.accumulate_n([a, a, a]), A * 3),
    "count_nonzero": (lambda a, i, ids: v1.count_nonzero(ids), np.int64(1)),
    "count_nonzero along an axis": (
        lambda a, i, ids: v1.count_nonzero(a > 4, axis=1, dtype=tf.int32),
        np.array([0, 3, 4], "i4"),
    ),
    "arg_max": (lambda a, i, ids: v1.arg_max(a, 1), np.array([3, 3, 3])),
    "concat_v2": (lambda a, i, ids: v1.concat_v2([a, a], 0), np.concatenate([A, A])),
    "sparse_to_dense": (
        lambda a, i, ids: v1.sparse_to_dense([1, 3], [4], 1.0),
        np.array([0, 1, 0, 1], "f4"),
    ),
    "pad of TensorFlow 1": (
        lambda a, i, ids: v1.pad(a, [[0, 0], [0, 1]], "CONSTANT", "n"),
        np.pad(A, ((0, 0), (0, 1))),
    ),
    "check_numerics": (lambda a, i, ids: tf.debugging.check_numerics(a, "a"), A),
    "ensure_shape": (lambda a, i, ids: tf.ensure_shape(a, [None, 4]), A),
    "numpy_function": (
        lambda a, i, ids: tf.numpy_function(lambda x, y: x * 2 + len(y), [a, ids], tf.float32),
        A * 2 + 3,
    ),
    "py_func of several": (
        lambda a, i, ids: v1.py_func(lambda x: (x + 1, np.int64(3)), [a], [tf.float32, tf.int64])[
            1
        ],
        np.int64(3),
    ),
    "py_function": (
        lambda a, i, ids: tf.py_function(lambda x: x.cos(), [a], tf.float32),
        np.cos(A),
    ),
    "Print": (lambda a, i, ids: v1.Print(a, [a]), A),
    "random_crop of all": (lambda a, i, ids: v1.random_crop(a, [3, 4]), A),
    "zeros of a computed shape": (
        lambda a, i, ids: tf.zeros([tf.shape(a)[0], 2]),
        np.zeros((3, 2), "f4"),
    ),
    "ones of a computed shape": (lambda a, i, ids: tf.ones(tf.shape(a)), np.ones((3, 4), "f4")),
    "fill of a computed shape": (
        lambda a, i, ids: tf.fill(tf.shape(a)[1:], 2),
        np.full(4, 2, "i4"),
    ),
    "reshape to a computed shape": (
        lambda a, i, ids: tf.reshape(a, [tf.shape(a)[1], -1]),
        A.reshape(4, -1),
    ),
    "reshape to a stack": (
        lambda a, i, ids: tf.reshape(a, tf.stack([tf.shape(a)[0], 2, 2])),
        A.reshape(3, 2, 2),
    ),
    "tile by computed numbers": (lambda a, i, ids: tf.tile(a, i[1] * 1), np.tile(A, (1, 3))),
    "broadcast_to a computed shape": (
        lambda a, i, ids: tf.broadcast_to(a[0], tf.shape(a)),
        np.stack([A[0]] * 3),
    ),
    "range of a computed number": (
        lambda a, i, ids: tf.range(tf.shape(a)[1]),
        np.arange(4, dtype="i4"),
    ),
    "range between computed numbers": (
        lambda a, i, ids: tf.range(i[1, 0], 10, i[1, 1]),
        np.array([1, 4, 7], "i4"),
    ),
    "one_hot of a computed depth": (
        lambda a, i, ids: tf.one_hot(ids, tf.shape(a)[0]),
        np.eye(3, dtype="f4")[IDS],
    ),
    "eye of a computed number": (lambda a, i, ids: tf.eye(tf.shape(a)[0]), np.eye(3, dtype="f4")),
    "slices of computed sizes": (lambda a, i, ids: a[: i[0, 0], i[1, 0] :], A[:2, 1:]),
    "a place that is computed": (lambda a, i, ids: a[i[1, 0]], A[1]),
    "rank": (lambda a, i, ids: tf.rank(a), np.int32(2)),
    "random_normal about a tensor": (
        lambda a, i, ids: v1.random_normal(tf.shape(a), mean=a, stddev=a * 0),
        A,
    ),
    "random_uniform up to a tensor": (
        lambda a, i, ids: v1.random_uniform([tf.shape(a)[0]], 0, i[1, 0], dtype=tf.int32),
        np.zeros(3, "i4"),
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shapes", ["eager", "known", "partly", "unknown"])
@pytest.mark.parametrize(("function", "expected"), CALLS.values(), ids=CALLS.keys())
def test_functions_have_tensorflow_values(
    function: Callable[..., Any], expected: Any, shapes: str
) -> None:
    arrays = (A, PLACES, IDS)
    if shapes == "eager":
        output: Any = function(*(tf.constant(array) for array in arrays))
        assert output.dtype == torch.from_numpy(np.array(expected)).dtype
        np.testing.assert_allclose(output.numpy(), expected, rtol=1e-6)
        return
    sizes = {"known": lambda x: x.shape, "partly": lambda x: (None, *x.shape[1:])}
    with tf.Graph().as_default(), v1.Session() as session:
        places = [v1.placeholder(x.dtype, sizes.get(shapes, lambda _: None)(x)) for x in arrays]
        if shapes == "unknown":
            places[1:] = [tf.constant(PLACES), tf.constant(IDS)]
        tensor = function(*places)
        feeds = dict(zip(places, arrays, strict=True))
        value = session.run(tensor, feeds)
        assert value.dtype == np.asarray(expected).dtype
        np.testing.assert_allclose(value, expected, rtol=1e-6)
        assert tensor.dtype in (None, torch.from_numpy(np.array(expected)).dtype)
        assert tensor.shape.accepts(np.shape(expected))


# name: (what is made of x, of shape (None, 6), and n; its static shape)
STATIC: dict[str, tuple[Callable[..., Any], Any]] = {
    "zeros": (lambda x, n: tf.zeros([tf.shape(x)[0], tf.shape(x)[1]]), (None, 6)),
    "arithmetic": (lambda x, n: tf.zeros([tf.shape(x)[1] * 2 + 1, n]), (13, None)),
    "a stack": (lambda x, n: tf.zeros(tf.stack([n, 3])), (None, 3)),
    "concatenated": (lambda x, n: tf.zeros(tf.concat([tf.shape(x), [2]], 0)), (None, 6, 2)),
    "a part": (lambda x, n: tf.ones(tf.shape(x)[1:]), (6,)),
    "what is not whole": (
        lambda x, n: tf.zeros([n // 2, n % 2, tf.maximum(n, 3)]),
        (None, None, None),
    ),
    "reshape": (lambda x, n: tf.reshape(x, [-1, 2, 3]), (None, 2, 3)),
    "reshape by a number": (lambda x, n: tf.reshape(x, [n, 2, 3]), (None, 2, 3)),
    "reshape by -1": (lambda x, n: tf.reshape(x, [tf.shape(x)[0], -1]), (None, None)),
    "tile": (lambda x, n: tf.tile(x, [1, 2]), (None, 12)),
    "tile by a number": (lambda x, n: tf.tile(x, [n, 1]), (None, 6)),
    "one_hot": (lambda x, n: tf.one_hot(tf.zeros([2], tf.int32), n), (2, None)),
    "one_hot in front": (lambda x, n: tf.one_hot(tf.zeros([2], tf.int32), 5, axis=0), (5, 2)),
    "range": (lambda x, n: tf.range(tf.shape(x)[1]), (6,)),
    "range of a number": (lambda x, n: tf.range(n), (None,)),
    "slices": (lambda x, n: x[:n, 1:], (None, 5)),
    "a place": (lambda x, n: x[n], (6,)),
    "slice": (lambda x, n: tf.slice(x, [0, 2], [-1, -1]), (None, 4)),
    "slice by a number": (lambda x, n: tf.slice(x, [0, 0], [n, 2]), (None, 2)),
    "random": (lambda x, n: v1.random_normal(tf.shape(x)), (None, 6)),
    "boolean_mask": (lambda x, n: tf.boolean_mask(x, x[:, 0] > 0), (None, 6)),
    "unique": (lambda x, n: tf.unique(x[:, 0]).y, (None,)),
    "sequence_mask": (lambda x, n: tf.sequence_mask([1, 2], 5), (2, 5)),
    "check_numerics": (lambda x, n: tf.debugging.check_numerics(x, ""), (None, 6)),
    "ensure_shape": (lambda x, n: tf.ensure_shape(x, [3, None]), (3, 6)),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("function", "expected"), STATIC.values(), ids=STATIC.keys())
def test_functions_infer_static_shapes(
    graph: Any, function: Callable[..., Any], expected: Any
) -> None:
    x, n = v1.placeholder(tf.float32, [None, 6]), v1.placeholder(tf.int32, [])
    assert function(x, n).shape == expected


GRADIENTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "pad": (lambda x: tf.pad(x, [[1, 1], [0, 0]], "SYMMETRIC")[0], [[1, 1], [0, 0]]),
    "slice": (lambda x: tf.slice(x, [1, 0], [1, 1]), [[0, 0], [1, 0]]),
    "boolean_mask": (lambda x: tf.boolean_mask(x, [True, False]), [[1, 1], [0, 0]]),
    "gather_nd": (lambda x: tf.gather_nd(x, [[0, 1], [0, 1]]), [[0, 2], [0, 0]]),
    "scatter_nd": (lambda x: tf.scatter_nd([[2], [2]], x, [3, 2]), [[1, 1], [1, 1]]),
    "segment_sum": (lambda x: tf.unsorted_segment_sum(x, [0, -1], 1), [[1, 1], [0, 0]]),
    "py_function": (lambda x: tf.py_function(lambda y: y * 3, [x], tf.float32), [[3, 3], [3, 3]]),
    "Print": (lambda x: v1.Print(x, [x], first_n=0), [[1, 1], [1, 1]]),
    "check_numerics": (lambda x: tf.debugging.check_numerics(x, ""), [[1, 1], [1, 1]]),
    "random_normal": (lambda x: v1.random_normal([2, 2], mean=x), [[1, 1], [1, 1]]),
    "custom_gradient": (
        lambda x: tf.custom_gradient(lambda y: (y * y, lambda grad: grad * 10))(x),
        [[10, 10], [10, 10]],
    ),
}


@pytest.mark.parametrize(("function", "expected"), GRADIENTS.values(), ids=GRADIENTS.keys())
def test_functions_have_gradients(function: Callable[..., Any], expected: Any) -> None:
    x = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(function(x))
    np.testing.assert_array_equal(tape.gradient(loss, x).numpy(), expected)
    with tf.Graph().as_default():
        x = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
        (gradient,) = v1.gradients(tf.reduce_sum(function(x)), [x])
        with initialized() as session:
            np.testing.assert_array_equal(session.run(gradient), expected)


def test_py_func_has_no_gradient(graph: Any) -> None:
    x = tf.Variable([1.0])
    assert v1.gradients(v1.py_func(lambda y: y * 2, [x], tf.float32), [x]) == [None]


# name: (a check that holds, one that does not, what its error says)
CHECKS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "assert_equal": (
        lambda x: tf.assert_equal(x, x),
        lambda x: tf.assert_equal(x, [1.0, 9.0], message="here"),
        r"here Condition x == y did not hold element-wise: \[1.0 2.0\] \[1.0 9.0\]",
    ),
    "a message in TensorFlow 2's place": (
        lambda x: tf.debugging.assert_less(x, 9.0, "here"),
        lambda x: tf.debugging.assert_less(x, 2.0, "here"),
        "here Condition x < y",
    ),
    "data": (
        lambda x: v1.assert_greater(x, 0.0, data=[x]),
        lambda x: v1.assert_greater(x, 1.0, data=["x is", x]),
        r"x > y .*: \[x is\] \[1.0 2.0\]",
    ),
    "summarize": (
        lambda x: v1.assert_none_equal(x, 0.0),
        lambda x: v1.assert_none_equal(x, 2.0, summarize=1),
        r"\[1.0...\] \[2.0\]",
    ),
    "assert_greater_equal": (
        lambda x: tf.debugging.assert_greater_equal(x, [1.0, 2.0]),
        lambda x: tf.debugging.assert_greater_equal(x, 1.5),
        "x >= y",
    ),
    "assert_less_equal": (
        lambda x: tf.debugging.assert_less_equal(x, [1.0, 2.0]),
        lambda x: tf.debugging.assert_less_equal(x, 1.5),
        "x <= y",
    ),
    "assert_positive": (
        lambda x: tf.debugging.assert_positive(x),
        lambda x: tf.debugging.assert_positive(x - 1),
        "x > 0",
    ),
    "assert_non_negative": (
        lambda x: tf.debugging.assert_non_negative(x - 1),
        lambda x: tf.debugging.assert_non_negative(x - 2),
        "x >= 0",
    ),
    "assert_negative": (
        lambda x: tf.debugging.assert_negative(-x),
        lambda x: tf.debugging.assert_negative(1 - x),
        "x < 0",
    ),
    "assert_near": (
        lambda x: tf.debugging.assert_near(x, x + 1e-7),
        lambda x: tf.debugging.assert_near(x, x + 1e-3),
        "tolerance",
    ),
    "Assert": (
        lambda x: tf.Assert(tf.reduce_all(x > 0), [x]),
        lambda x: tf.Assert(x[0] > 1, [x]),
        r"assertion failed: \[1.0 2.0\]",
    ),
    "assert_rank": (
        lambda x: tf.debugging.assert_rank(x, 1),
        lambda x: tf.debugging.assert_rank(x, 2, message="here"),
        "here The tensor must have rank 2",
    ),
    "assert_rank_at_least": (
        lambda x: tf.debugging.assert_rank_at_least(x, 1),
        lambda x: tf.debugging.assert_rank_at_least(x, 2),
        "rank 2 or more",
    ),
    "check_numerics": (
        lambda x: tf.debugging.check_numerics(x, "here"),
        lambda x: tf.debugging.check_numerics((x - 1) / 0, "here"),
        "here : Tensor had Inf and NaN values",
    ),
    "ensure_shape": (
        lambda x: tf.ensure_shape(x, [2]),
        lambda x: tf.ensure_shape(x, [3]),
        "not compatible with expected shape",
    ),
}


@pytest.mark.parametrize("shape", ["eager", (2,), None])
@pytest.mark.parametrize(("good", "bad", "match"), CHECKS.values(), ids=CHECKS.keys())
def test_assertions_pass_or_raise(good: Any, bad: Any, match: str, shape: Any) -> None:
    if shape == "eager":
        x = tf.constant([1.0, 2.0])
        good(x)
        with pytest.raises(InvalidArgumentError, match=match):
            bad(x)
        return
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, shape)
        with tf.control_dependencies([good(x)]):
            assert session.run(tf.identity(x), {x: [1.0, 2.0]}).tolist() == [1.0, 2.0]
        with pytest.raises(InvalidArgumentError, match=match):
            session.run(bad(x), {x: [1.0, 2.0]})


@pytest.mark.parametrize("in_graph", [False, True])
def test_type_assertions_are_evaluated_immediately(in_graph: bool) -> None:
    with tf.Graph().as_default() if in_graph else tf.init_scope():
        x = tf.constant([1.0])
        tf.debugging.assert_type(x, tf.float32)
        with pytest.raises(TypeError, match="must be of type int32, not float32"):
            tf.debugging.assert_type(x, tf.int32)
        with pytest.raises(TypeError, match="an integer type"):
            tf.debugging.assert_integer(x)
        with pytest.raises(ValueError, match="rank 0"):
            tf.debugging.assert_scalar(x)


def test_add_check_numerics_ops_checks_all_tensors(graph: Any) -> None:
    x = v1.placeholder(tf.float32, [])
    y = tf.math.log(x) * 2
    check = v1.add_check_numerics_ops()
    with v1.Session() as session:
        session.run([y, check], {x: 1.0})
        with pytest.raises(InvalidArgumentError, match="log:0 : Tensor had NaN values"):
            session.run([y, check], {x: -1.0})


def test_python_function_with_wrong_result_raises() -> None:
    with pytest.raises(InvalidArgumentError, match="returned float64, where Tout says float32"):
        tf.numpy_function(lambda: np.float64(1), [], tf.float32)
    with pytest.raises(InvalidArgumentError, match="returned 1 values, not 2"):
        tf.numpy_function(lambda: 1.0, [], [tf.float32, tf.float32])
    assert tf.numpy_function(lambda: 1, [], tf.float32).dtype == tf.float32


def test_a_function_without_a_result_is_an_operation(graph: Any) -> None:
    calls: list[Any] = []
    x = v1.placeholder(tf.float32, [2])
    op = v1.py_func(lambda y: calls.append(y.tolist()), [x], [])
    with v1.Session() as session:
        session.run(op, {x: [1.0, 2.0]})
    assert calls == [[1.0, 2.0]]


@pytest.mark.parametrize("in_graph", [False, True])
def test_print_formats_as_tensorflow(in_graph: bool, capfd: Any) -> None:
    stream, x = io.StringIO(), np.arange(10)
    with tf.Graph().as_default() if in_graph else tf.init_scope():
        session, x_tensor = v1.Session(), tf.constant(x)
        ops = [
            tf.print("x:", x_tensor, {"a": x_tensor[:2]}, output_stream=stream),
            tf.print(x_tensor, summarize=-1, sep=",", end="!", output_stream=stream),
            tf.print("to the screen"),
        ]
        print_op = v1.Print(x_tensor, [x_tensor, x_tensor[0]], "message ", first_n=1, summarize=2)
        for _ in range(2 if in_graph else 0):
            session.run([*ops, print_op])
    times = 2 if in_graph else 1
    text = "x: [0 1 2 ... 7 8 9] {'a': [0 1]}\n[0 1 2 3 4 5 6 7 8 9]!"
    assert stream.getvalue() == text * times
    printed = capfd.readouterr().err
    assert printed.count("to the screen\n") == times
    assert printed.count("message [0 1...][0]\n") == 1


def test_invalid_slices_raise() -> None:
    with pytest.raises(InvalidArgumentError, match="not inside of a tensor of shape"):
        tf.slice(tf.constant(A), [1, 0], [3, 1])
    with pytest.raises(InvalidArgumentError, match="Index the tensor"):
        tf.strided_slice(tf.constant(A), [0], [1], new_axis_mask=1)
    with pytest.raises(InvalidArgumentError, match="CONSTANT, REFLECT or SYMMETRIC"):
        tf.pad(tf.constant(A), [[0, 0], [0, 0]], "MIRROR")
    with pytest.raises(InvalidArgumentError, match="does not say all sizes"):
        tf.zeros(graph.Shape([None, 2]))


def test_scattering_into_variables() -> None:
    def steps(w: Any) -> list[Any]:
        return [
            lambda: v1.scatter_update(w, [0, 2], [[1.0], [2.0]]),
            lambda: v1.scatter_add(w, [2, 2], [[1.0], [2.0]]),
            lambda: v1.scatter_sub(w, 1, [4.0]),
        ]

    expected = [[[1], [0], [2]], [[1], [0], [5]], [[1], [-4], [5]]]
    for step, value in zip(steps(tf.Variable(np.zeros((3, 1), "f4"))), expected, strict=True):
        assert step().tolist() == value
    with tf.Graph().as_default():
        w = tf.Variable(np.zeros((3, 1), "f4"))
        with initialized() as session:
            for step, value in zip(steps(w), expected, strict=True):
                assert session.run(step()).tolist() == value
            with pytest.raises(InvalidArgumentError, match=r"not in \[0, 3\)"):
                session.run(v1.scatter_add(w, [3], [[1.0]]))


def test_a_template_makes_its_variables_once(graph: Any) -> None:
    def scaled(x: Any, factor: float) -> Any:
        return v1.get_variable("w", [2]) * x * factor

    first, second = v1.make_template("scale", scaled, factor=2.0), v1.make_template("scale", scaled)
    first(tf.ones([2]))
    first(tf.zeros([2]))
    second(tf.ones([2]), factor=1.0)
    assert [var.op.name for var in v1.global_variables()] == ["scale/w", "scale_1/w"]


def test_session_settings_are_accepted() -> None:
    config = v1.ConfigProto(allow_soft_placement=True, gpu_options=v1.GPUOptions(allow_growth=True))
    config.gpu_options.per_process_gpu_memory_fraction = 0.5
    config.graph_options.optimizer_options.global_jit_level = v1.OptimizerOptions.ON_1
    config.intra_op_parallelism_threads = 1
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        for name in ("/cpu:0", "/gpu:1", "/device:GPU:0", "cpu", "/job:worker/task:0/cpu:0", None):
            with v1.device(name), v1.get_default_graph().device(name):
                x = tf.constant(1.0)
        assert session.run(x, options=options, run_metadata=v1.RunMetadata()) == 1.0
    with (
        pytest.raises(ValueError, match="'/nothing' is not the name of a device"),
        v1.device("/nothing"),
    ):
        pass


def test_tf_errors_are_library_errors() -> None:
    assert tf.errors.InvalidArgumentError is InvalidArgumentError
    assert issubclass(tf.errors.OutOfRangeError, tf.errors.OpError)
    assert issubclass(tf.errors.AbortedError, tf.errors.OpError)
    assert tf.errors.OutOfRangeError("no more").message == "no more"


def test_assign_can_initialize_a_variable(graph: Any) -> None:
    w = tf.Variable([1.0, 2.0])
    with v1.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError):
            session.run(w.assign_add([1.0, 1.0]))
        assert session.run(w.assign([3.0, 4.0])).tolist() == [3.0, 4.0]
        assert session.run(w.assign_add([1.0, 1.0])).tolist() == [4.0, 5.0]


def test_assign_may_change_a_shape(graph: Any) -> None:
    w, x = tf.Variable([1.0, 2.0]), v1.placeholder(tf.float32)
    with pytest.raises(InvalidArgumentError, match="but the value has"):
        v1.assign(w, [1.0, 2.0, 3.0])
    change = v1.assign(w, x, validate_shape=False)
    with initialized() as session:
        for value in ([1.0], [1.0, 2.0, 3.0], [[4.0]]):
            assert session.run(change, {x: value}).tolist() == value
            assert session.run(w).tolist() == value


def test_old_shape_accessors_are_available(graph: Any) -> None:
    x, u = v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.float32)
    assert [size.value for size in x.get_shape()] == [None, 3]
    assert x.get_shape()[0].value is None
    assert x.get_shape()[1:].as_list() == [3]
    assert (x.get_shape()[0] * 2 + 1).value is None
    assert x.get_shape()[1] * 2 == 6
    assert (x.shape[0], x.shape[1].value) == (None, 3)
    assert [2] + x.get_shape()[1:] == (2, 3)  # noqa: RUF005
    assert u.get_shape().ndims is None
    assert tf.TensorShape(None).ndims is None
    for unknown in (u.shape, u.shape.with_rank_at_least(2), u.shape.with_rank_at_most(2)):
        assert unknown == None == tf.TensorShape(None)  # noqa: E711
        assert unknown != tf.TensorShape([])
    assert tf.TensorShape([v1.Dimension(None), 2]) == (None, 2)
    assert x.shape.is_compatible_with(tf.TensorShape(None))
    assert (v1.Dimension(None).value, v1.Dimension(4).value) == (None, 4)
    assert tf.zeros(x.get_shape()[1:]).shape == (3,)
    for use in (lambda: tf.zeros(x.get_shape()), lambda: int(x.get_shape()[0])):
        with pytest.raises(InvalidArgumentError, match=r"tf\.shape"):
            use()
    with pytest.raises(ValueError, match="unknown"):
        u.get_shape().as_list()
    u.set_shape(x.get_shape())
    u.set_shape(tf.TensorShape([7, None]))
    assert u.shape == (7, 3)
