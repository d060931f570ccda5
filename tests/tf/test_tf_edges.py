"""Edge cases of `thalweg.tf`: what TensorFlow makes of empty tensors, defaults and odd axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf

v1 = tf.compat.v1
A = np.arange(12.0, dtype="f4").reshape(3, 4) - 5
EMPTY = np.zeros((0, 3), "f4")
IDS = np.array([2, 0], "i4")

# name: (what is called on a, nothing and ids, what TensorFlow gives)
CALLS: dict[str, tuple[Callable[..., Any], Any]] = {
    "exclusive cumsum keeps what is small": (
        lambda a, e, i: tf.cumsum(tf.constant([1.0, 1e9, 1.0]), exclusive=True) + a[2, 0] - 3,
        np.array([0, 1, 1e9], "f4"),
    ),
    "exclusive cumsum of infinity": (
        lambda a, e, i: tf.cumsum(a[0] * 0 + math.inf, exclusive=True)[:1],
        np.array([0], "f4"),
    ),
    "exclusive cumprod": (
        lambda a, e, i: tf.math.cumprod(tf.add(i, 1), exclusive=True, reverse=True),
        np.array([1, 1], "i4"),
    ),
    "v1 zeros_like": (lambda a, e, i: v1.zeros_like(tensor=a, optimize=False), A * 0),
    "multinomial": (
        lambda a, e, i: v1.multinomial([[0.0, -math.inf], [0.0, 99.0]], i[0], None, "m", tf.int32),
        np.array([[0, 0], [1, 1]], "i4"),
    ),
    "cumsum of int32": (lambda a, e, i: tf.cumsum(i), np.array([2, 2], "i4")),
    "cumsum of nothing": (lambda a, e, i: tf.cumsum(e, exclusive=True, reverse=True), EMPTY),
    "softplus of float64": (
        lambda a, e, i: tf.nn.softplus(tf.cast(a[2, 3] + 19, tf.float64)) - 25.0,
        np.float64(math.log1p(math.exp(-25))),
    ),
    "reduce_max of nothing": (lambda a, e, i: tf.reduce_max(e, 0), np.full(3, -np.inf, "f4")),
    "reduce_min of no integers": (
        lambda a, e, i: tf.reduce_min(tf.cast(e, tf.int32)),
        np.int32(2**31 - 1),
    ),
    "reduce_max of nothing, kept": (
        lambda a, e, i: tf.reduce_max(e, [0], keepdims=True).shape[0] + a[0],
        A[0] + 1,
    ),
    "reduce_sum of nothing": (lambda a, e, i: tf.reduce_sum(e, 0), np.zeros(3, "f4")),
    "an axis in an array": (lambda a, e, i: tf.reduce_sum(a, np.array([0, -1])), A.sum()),
    "v1 count_nonzero along the first axis": (
        lambda a, e, i: v1.count_nonzero(a, reduction_indices=0),
        np.array([3, 2, 3, 3]),
    ),
    "count_nonzero of no axis": (
        lambda a, e, i: tf.math.count_nonzero(i, axis=[]),
        np.array([1, 0]),
    ),
    "norm of matrices": (lambda a, e, i: tf.norm(a, 1, axis=[0, 1]), np.linalg.norm(A, 1)),
    "infinite norm of matrices": (
        lambda a, e, i: tf.norm(a, np.inf, axis=(-2, -1)),
        np.linalg.norm(A, np.inf),
    ),
    "spectral norm": (lambda a, e, i: tf.norm(a, 2, axis=[0, 1]), np.linalg.norm(A, 2)),
    "Frobenius' norm": (lambda a, e, i: tf.norm(a, "fro", axis=[0, 1]), np.linalg.norm(A)),
    "v1 norm": (
        lambda a, e, i: v1.norm(a, axis=1, keep_dims=True),
        np.linalg.norm(A, axis=1, keepdims=True),
    ),
    "one_hot of a number": (
        lambda a, e, i: tf.one_hot(i, 3, on_value=5, off_value=-1),
        np.array([[-1, -1, 5], [5, -1, -1]], "i4"),
    ),
    "one_hot of bools": (
        lambda a, e, i: tf.one_hot(i, 2, on_value=True, off_value=False, axis=0),
        np.array([[False, True], [False, False]]),
    ),
    "one_hot of a tensor": (
        lambda a, e, i: tf.one_hot(i, 2, on_value=a[0, 0]),
        np.array([[0, 0], [A[0, 0], 0]], "f4"),
    ),
    "range of float32": (lambda a, e, i: tf.range(0.0, 0.3, 0.1), np.array([0, 0.1, 0.2], "f4")),
    "range of nothing": (lambda a, e, i: tf.range(i[1]), np.array([], "i4")),
    "linspace of float64": (
        lambda a, e, i: tf.linspace(tf.constant(0.0, tf.float64), 1.0, 3),
        np.array([0, 0.5, 1]),
    ),
    "linspace up to a tensor": (
        lambda a, e, i: tf.linspace(0.0, a[2, 3], 2),
        np.array([0, 6], "f4"),
    ),
    "eye of a batch": (
        lambda a, e, i: tf.eye(2, 3, [2]),
        np.stack([np.eye(2, 3, dtype="f4")] * 2),
    ),
    "squeeze by an old name": (
        lambda a, e, i: v1.squeeze(tf.expand_dims(a, 1), squeeze_dims=[1]),
        A,
    ),
    "split by -1": (lambda a, e, i: tf.split(a, [1, -1], axis=1)[1], A[:, 1:]),
    "split along the last axis": (lambda a, e, i: tf.split(a, 2, -1)[0], A[:, :2]),
    "split with a number": (lambda a, e, i: tf.split(a, [1, 2], 0, 2, "parts")[1], A[1:]),
    "split by a tensor": (lambda a, e, i: tf.split(a, tf.add(i, [0, 1]), 0, 2)[1], A[2:]),
    "unstack with a number": (lambda a, e, i: tf.unstack(a, 3)[2], A[2]),
    "unstack along the last axis": (lambda a, e, i: tf.unstack(a, 4, axis=-1)[1], A[:, 1]),
    "gather of one along an axis": (lambda a, e, i: tf.gather(a, 3, axis=1), A[:, 3]),
    "gather of a matrix along an axis": (
        lambda a, e, i: tf.gather(a, tf.stack([i, i]), axis=-1),
        A[:, [[2, 0], [2, 0]]],
    ),
    "gather in batches": (
        lambda a, e, i: tf.gather(a[:2], tf.stack([i, i + 1]), batch_dims=1),
        np.stack([A[0, [2, 0]], A[1, [3, 1]]]),
    ),
    "gather in batches that end at the last dimension": (
        lambda a, e, i: tf.gather(a[:2], tf.stack([i, i + 1]), batch_dims=-1),
        np.stack([A[0, [2, 0]], A[1, [3, 1]]]),
    ),
    "gather of rows in batches": (
        lambda a, e, i: tf.gather(tf.stack([a, -a]), tf.stack([i, i]), axis=1, batch_dims=1),
        np.stack([A[[2, 0]], -A[[2, 0]]]),
    ),
    "gather in no batches": (
        lambda a, e, i: tf.gather(
            tf.reshape(e, [2, 0, 4]), tf.zeros([2, 0, 3], tf.int32), axis=2, batch_dims=2
        ),
        np.zeros((2, 0, 3), "f4"),
    ),
    "gather_nd in no batches": (
        lambda a, e, i: tf.gather_nd(
            tf.reshape(e, [0, 2, 4]), tf.zeros([0, 3, 1], tf.int32), batch_dims=1
        ),
        np.zeros((0, 3, 4), "f4"),
    ),
    "gather_nd of whole tensors": (
        lambda a, e, i: tf.gather_nd(a, tf.zeros([2, 0], tf.int32)), np.stack([A, A]),
    ),
    "gather_nd of whole rows": (
        lambda a, e, i: tf.gather_nd(a, tf.zeros([3, 2, 0], tf.int32), batch_dims=1),
        np.stack([A, A], 1),
    ),
    "stack of nothing": (lambda a, e, i: tf.stack([]), np.zeros(0, "f4")),
    "scan of no rows": (
        lambda a, e, i: tf.scan(lambda total, row: total + row, e, a[0, :3]),
        np.zeros((0, 3), "f4"),
    ),
    "matmul of an adjoint": (lambda a, e, i: tf.matmul(a, a, adjoint_b=True), A @ A.T),
    "matmul of nothing": (lambda a, e, i: tf.matmul(e, a), np.zeros((0, 4), "f4")),
    "tensordot along two axes": (lambda a, e, i: tf.tensordot(a, a, [1, 1]), A @ A.T),
    "tensordot along lists": (
        lambda a, e, i: tf.tensordot(a, a, np.array([[0, 1], [0, 1]])),
        (A * A).sum(),
    ),
    "top_k of a tensor": (lambda a, e, i: tf.nn.top_k(a, i[0])[0], A[:, :1:-1]),
    "places of equal ones": (
        lambda a, e, i: tf.nn.top_k(a * 0, 2).indices,
        np.array([[0, 1]] * 3, "i4"),
    ),
    "in_top_k of equal ones": (
        lambda a, e, i: tf.nn.in_top_k([3, 0, 2], a * 0, 1),
        np.array([True, True, True]),
    ),
    "boolean_mask along the last axis": (
        lambda a, e, i: tf.boolean_mask(a, [True, False, False, True], axis=-1),
        A[:, [0, 3]],
    ),
    "sequence_mask of nothing": (
        lambda a, e, i: tf.sequence_mask(tf.cast(e[:, 0], tf.int32)),
        np.zeros((0, 0), bool),
    ),
    "diag of a matrix": (
        lambda a, e, i: v1.diag(a[:2, :2]),
        np.diag(A[:2, :2].reshape(-1)).reshape(2, 2, 2, 2),
    ),
    "diag_part of what diag made": (lambda a, e, i: v1.diag_part(v1.diag(a)), A),
    "div_no_nan": (lambda a, e, i: v1.div_no_nan(a, [0.0, 1.0, 2.0, 0.0]), A * [0, 1, 0.5, 0]),
    "accumulate_n": (lambda a, e, i: v1.accumulate_n([a, a]), 2 * A),
    "segment_sum with a gap": (
        lambda a, e, i: tf.math.segment_sum(a, [1, 1, 3]),
        np.stack([A[0] * 0, A[0] + A[1], A[0] * 0, A[2]]),
    ),
    "clip_by_value with bounds that cross": (
        lambda a, e, i: tf.clip_by_value(a, 2.0, [1.0, 3.0, 1.0, 9.0]),
        np.maximum(np.minimum(A, np.array([1, 3, 1, 9], "f4")), 2),
    ),
    "clip_by_value of integers": (
        lambda a, e, i: tf.clip_by_value(i, 1, 5),
        np.array([2, 1], "i4"),
    ),
    "zero_fraction": (lambda a, e, i: tf.nn.zero_fraction(i), np.float32(0.5)),
    "l2_normalize of zeros": (lambda a, e, i: tf.nn.l2_normalize(a * 0, 1), A * 0),
}  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shapes", ["eager", "known", "partly", "unknown"])
@pytest.mark.parametrize("name", CALLS)
def test_functions_have_tensorflow_values(name: str, shapes: str) -> None:
    function, expected = CALLS[name]
    arrays = (A, EMPTY, IDS)
    expected = np.asarray(expected)
    if expected.dtype == np.float64 and "float64" not in name:
        expected = expected.astype("f4")
    if shapes == "eager":
        values = function(*(tf.constant(array) for array in arrays)).numpy()
    else:
        sizes: Any = {"known": lambda x: x.shape, "partly": lambda x: (None, *x.shape[1:])}
        with tf.Graph().as_default(), v1.Session() as session:
            places = [v1.placeholder(x.dtype, sizes.get(shapes, lambda _: None)(x)) for x in arrays]
            if shapes == "unknown":
                places[1:] = [v1.placeholder(tf.float32, [None, 3]), v1.placeholder(tf.int32, [2])]
            output = function(*places)
            values = session.run(output, dict(zip(places, arrays, strict=True)))
            assert output.dtype in (None, torch.from_numpy(np.array(expected)).dtype)
            assert output.shape.accepts(expected.shape)
    assert values.dtype == expected.dtype
    np.testing.assert_allclose(values, expected, rtol=2e-6, atol=1e-12)


# name: (what is made of x, of shape (None, 4), and a constant of shape (3, 4); its shape and dtype)
KNOWN_SHAPES: dict[str, tuple[Callable[..., Any], Any, Any]] = {
    "equal": (lambda x, c: tf.equal(x, c), (3, 4), tf.bool),
    "add": (lambda x, c: x + c, (3, 4), tf.float32),
    "argmax": (lambda x, c: tf.argmax(x * c, 1), (3,), tf.int64),
    "concat": (lambda x, c: tf.concat([x, c], 1), (None, 8), tf.float32),
    "squeeze": (lambda x, c: tf.squeeze(x, 0), (4,), tf.float32),
    "unstack": (lambda x, c: tf.unstack(x, 3)[0], (4,), tf.float32),
    "split": (lambda x, c: tf.split(x, 7)[6], (None, 4), tf.float32),
    "split of what is known": (lambda x, c: tf.split(x, [1, -1], 1)[1], (None, 3), tf.float32),
    "split by a tensor": (
        lambda x, c: tf.split(x, tf.shape(x)[:1] - [0], num=1)[0], (None, 4), tf.float32,
    ),
    "in_top_k": (lambda x, c: tf.nn.in_top_k([0, 1, 2], x, 1), None, tf.bool),
    "one_hot": (lambda x, c: tf.one_hot(tf.argmax(x, 1), 2, 1, 0), (None, 2), tf.int32),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN_SHAPES)
def test_static_shapes_are_inferred_from_other_tensors(name: str) -> None:
    function, shape, dtype = KNOWN_SHAPES[name]
    with tf.Graph().as_default():
        output = function(v1.placeholder(tf.float32, [None, 4]), tf.constant(A))
        assert output.dtype == dtype
        assert shape is None or output.shape == shape


@pytest.mark.parametrize("call", [tf.unstack, lambda x: tf.split(x, tf.shape(x))])
def test_unknown_number_of_splits_raises(call: Any) -> None:
    with tf.Graph().as_default(), pytest.raises(ValueError, match="needs num"):
        call(v1.placeholder(tf.float32))


# name: (what is refused of a and ids, what its error says)
INVALID: dict[str, tuple[Callable[..., Any], str]] = {
    "squeeze of more": (lambda a, i: tf.squeeze(a, [1]), r"axis \[1\] must name .* size 1"),
    "reduce_prod of no dimension": (lambda a, i: tf.reduce_prod(a, 2), "axis 2 must name"),
    "reduce_sum twice": (lambda a, i: tf.reduce_sum(a, [0, -2]), "must name dimensions of"),
    "reduce_sum of bools": (lambda a, i: tf.reduce_sum(a > 0), "takes numbers, not bool"),
    "reduce_max of bools": (lambda a, i: tf.reduce_max(a > 0), "takes numbers, not bool"),
    "add_n of shapes": (lambda a, i: tf.add_n([a, a[:1]]), "tensors of one shape"),
    "add_n of nothing": (lambda a, i: tf.add_n([]), "at least one"),
    "where of one": (lambda a, i: tf.where(a > 0, a), "both x and y, or neither"),
    "where of one in v1": (lambda a, i: v1.where(a > 0, None, a), "both x and y, or neither"),
    "squeeze of two axes": (lambda a, i: v1.squeeze(a, 0, squeeze_dims=0), "Cannot specify both"),
    "concat of nothing": (lambda a, i: tf.concat([], 0), "at least one tensor"),
    "stack of nothing": (lambda a, i: tf.stack([], 1), "at least one tensor"),
    "gather of other batches": (
        lambda a, i: tf.gather(a, tf.stack([i, i]), batch_dims=1), "share 1 leading dimensions",
    ),
    "gather of too few dimensions": (
        lambda a, i: tf.gather(a[:2], tf.stack([i, i]), batch_dims=-3), "share -1 leading",
    ),
    "gather along a batch": (
        lambda a, i: tf.gather(a[:2], tf.stack([i, i]), axis=0, batch_dims=1), "axis must be at",
    ),
    "gather along no axis": (
        lambda a, i: tf.gather(a, i, axis=5), r"axis must be in \[-2, 2\) .* rank 2, not 5",
    ),
    "gather before the first axis": (lambda a, i: tf.gather(a, i, axis=-3), "rank 2, not -3"),
    "gather of a scalar": (lambda a, i: tf.gather(a[0, 0], 0), "not rank 0"),
    "gather along an axis of a scalar": (lambda a, i: tf.gather(a[0, 0], 0, axis=1), "rank 0, not"),
    "gather_nd of long tuples": (lambda a, i: tf.gather_nd(a, [[0, 0, 0]]), "of 3 .* too long"),
    "gather_nd of long tuples in batches": (
        lambda a, i: tf.gather_nd(a[:2], [[0, 0]] * 2, batch_dims=1), "of 2 .* too long",
    ),
    "gather_nd of a vector in batches": (
        lambda a, i: tf.gather_nd(a[:2], i, batch_dims=1), "more than 1 dimensions, not shape",
    ),
    "concat of ranks": (lambda a, i: tf.concat([a[0, :0], a], 0), r"one rank, .* \(0,\), \(3, 4\)"),
    "concat of dtypes": (lambda a, i: tf.concat([i, [i], a], 0), "of int32 and float32"),
    "stack of dtypes": (lambda a, i: tf.stack([1, a[0, 0], i[0]]), "of float32 and int32"),
    "where of dtypes": (lambda a, i: tf.where(i > 0, a[0, :2], i), "of float32 and int32"),
    "v1 where of dtypes": (lambda a, i: v1.where(i > 0, i, a[0, :2]), "of int32 and float32"),
    "gather_nd of other batches": (
        lambda a, i: tf.gather_nd(a, [[0]], batch_dims=1), "share 1 leading dimensions",
    ),
    "norm of a name": (lambda a, i: tf.norm(a, "nuc"), "ord must be"),
    "norm of matrices of order 3": (lambda a, i: tf.norm(a, 3, axis=[0, 1]), "'fro', 1, 2 or inf"),
    "split into unequal parts": (lambda a, i: tf.split(a, 3, 1), "cannot be split into 3 equal"),
    "split into too little": (lambda a, i: tf.split(a, [1, 1], 0), "are not the 3 elements"),
    "unstack of another number": (lambda a, i: tf.unstack(a, 2), "num is 2, but there are 3"),
    "gather out of range": (lambda a, i: tf.gather(a, i + 2, axis=1), r"indices\[0\] = 4 is"),
    "gather_nd of a negative place": (
        lambda a, i: tf.gather_nd(a, [[0, -1]]), r"indices\[0\] = \[0, -1\] is not inside of",
    ),
    "scatter_nd out of range": (
        lambda a, i: tf.scatter_nd([[4]], [1.0], [4]), r"indices\[0\] = \[4\] is not inside of",
    ),
    "range to nowhere": (lambda a, i: tf.range(3, 0), "delta=1 does not lead from 3 to 0"),
    "range in no steps": (lambda a, i: tf.range(0, 3, 0), "delta=0 does not lead"),
    "tile of too much": (lambda a, i: tf.tile(a, [2]), "a number for each dimension"),
    "matmul of a vector": (lambda a, i: tf.matmul(a, a[0]), "matmul takes matrices"),
    "another dtype": (lambda a, i: tf.convert_to_tensor(a, tf.int32), "is float32, not int32"),
    "a bias that is too short": (lambda a, i: tf.nn.bias_add(a, [1.0]), "does not fit the"),
    "top_k of too many": (lambda a, i: tf.nn.top_k(a, 5), "no 5 largest of 4"),
    "a mask that does not fit": (lambda a, i: tf.boolean_mask(a, [True]), "does not fit a tensor"),
    "a bound of another shape": (
        lambda a, i: tf.clip_by_value(a[:1], -1.0, [[1.0], [2.0]]), r"would have shape \(2, 4\)",
    ),
    "a norm of another shape": (
        lambda a, i: tf.clip_by_norm(a[:1], [[1.0], [2.0]]), r"Cannot clip .* of shape \(1, 4\)",
    ),
    "segments in disorder": (lambda a, i: tf.math.segment_sum(a[:2], i), "not decrease"),
    "diag_part of no square": (lambda a, i: v1.diag_part(a), "whose shape repeats itself"),
    "paddings of one dimension": (lambda a, i: tf.pad(a, [[1, 1]]), "two numbers for each"),
    "dropout of integers": (lambda a, i: tf.nn.dropout(i, rate=0.5), "floating-point .* int32"),
    "keep_prob of 0": (lambda a, i: v1.nn.dropout(a, 0.0), r"keep_prob must be in \(0, 1\]"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("name", INVALID)
def test_invalid_arguments_raise(name: str, mode: str) -> None:
    function, message = INVALID[name]
    if mode == "eager":
        with pytest.raises((ValueError, TypeError), match=message):
            function(tf.constant(A), tf.constant(IDS))
        return
    with tf.Graph().as_default(), v1.Session() as session:
        a, i = v1.placeholder(tf.float32, [None, 4]), v1.placeholder(tf.int32, [2])
        with pytest.raises((ValueError, TypeError), match=message):
            session.run(function(a, i), {a: A, i: IDS})


def test_v1_has_the_names_of_both_versions() -> None:
    for name in ("distribute", "dtypes", "raw_ops", "UnconnectedGradients"):
        assert getattr(v1, name) is getattr(tf, name)
    assert v1.newaxis is None


@pytest.mark.parametrize("source", ["categorical", "shuffle", "normal", "dropout", "uniform"])
def test_seeded_random_numbers_continue_between_calls(source: str) -> None:
    def draw() -> Any:
        return {
            "categorical": lambda: tf.random.categorical([[0.0, 1.0, 0.5]], 50, seed=3),
            "shuffle": lambda: tf.random.shuffle(tf.range(50), seed=3),
            "normal": lambda: tf.random.normal([50], seed=3),
            "dropout": lambda: tf.nn.dropout(tf.ones([50]), rate=0.5, seed=3),
            "uniform": lambda: tf.random.uniform([50], seed=3),
        }[source]()

    def several() -> list[Any]:
        tf.random.set_seed(1)
        return [draw().tolist() for _ in range(3)]

    first = several()
    assert first[0] != first[1] != first[2]
    assert several() == first
    with tf.Graph().as_default():
        numbers = draw()
        runs = []
        for _ in range(2):
            with v1.Session() as session:
                runs.append([session.run(numbers).tolist() for _ in range(2)])
    assert runs[0][0] != runs[0][1]
    assert runs[0] == runs[1]


# What a lookup reads: (made of a variable of shape (4, 2), whether its gradient stays sparse)
TABLES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "the variable": (lambda w: w, True),
    "its identity": (tf.identity, True),
    "reshaped": (lambda w: tf.reshape(w, [4, 2]), False),
    "a vector": (lambda w: tf.reshape(w, [-1]), False),
    "transposed": (lambda w: tf.transpose(tf.transpose(w)), False),
    "cast": (lambda w: tf.cast(w, tf.float64), False),
    "rectified": (tf.nn.relu, False),
    "sliced": (lambda w: w[1:], False),
    "joined": (lambda w: tf.concat([w, w], 0), False),
    "scaled": (lambda w: w * 2.0, False),
}


@pytest.mark.parametrize("name", TABLES)
def test_gather_of_computed_tensors_has_gradients(name: str) -> None:
    make, is_sparse = TABLES[name]
    start = np.arange(1.0, 9.0, dtype="f4").reshape(4, 2)
    w = tf.Variable(start)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(make(w), [1, 1, 2]))
    gradient = tape.gradient(loss, w)
    assert isinstance(gradient, tf.IndexedSlices) == is_sparse
    expected = gradient.to_dense().numpy() if is_sparse else gradient.numpy()
    with tf.GradientTape() as tape:  # the same by products with ones and zeros
        table = make(w)
        ones = tf.one_hot([1, 1, 2], len(table), dtype=table.dtype)
        loss = tf.reduce_sum(tf.tensordot(ones, table, 1))
    np.testing.assert_allclose(expected, tape.gradient(loss, w).numpy())
    with tf.Graph().as_default(), v1.Session() as session:
        w = tf.Variable(start)
        loss = tf.reduce_sum(tf.gather(make(w), [1, 1, 2]))
        train = v1.train.GradientDescentOptimizer(1.0).minimize(loss)
        session.run(v1.global_variables_initializer())
        session.run(train)
        np.testing.assert_allclose(session.run(w), start - expected)


LABELS = np.array([[1.0], [0.0], [1.0], [1.0]], "f4")
GUESSES = np.array([[0.9], [0.6], [0.4], [0.8]], "f4")
WEIGHTS = np.array([1.0, 2.0, 0.0, 1.0], "f4")


def test_metric_weights_may_omit_the_last_dimension() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        _, update = v1.metrics.mean(tf.constant(np.hstack([GUESSES, LABELS])), weights=WEIGHTS)
        session.run(v1.local_variables_initializer())
        expected = (WEIGHTS[:, None] * np.hstack([GUESSES, LABELS])).sum() / (2 * WEIGHTS.sum())
        np.testing.assert_allclose(session.run(update), expected, rtol=1e-6)


def test_mean_absolute_error_of_unsigned_integers_does_not_wrap() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        label, prediction = (tf.constant([x], tf.uint8) for x in (3, 5))
        _, update = v1.metrics.mean_absolute_error(label, prediction)
        session.run(v1.local_variables_initializer())
        assert session.run(update) == 2.0


def test_the_area_below_precision_is_interpolated() -> None:
    """The example of Davis and Goadrich: between (5, 5) and (10, 30) right and wrong positives."""
    labels = np.array([1] * 5 + [0] * 5 + [1] * 5 + [0] * 25 + [1] * 10, "f4")
    guesses = np.array([0.9] * 10 + [0.5] * 30 + [0.0] * 10, "f4")
    with tf.Graph().as_default(), v1.Session() as session:
        _, update = v1.metrics.auc(
            labels, guesses, curve="PR", summation_method="careful_interpolation",
            thresholds=[0.25, 0.75],
        )  # fmt: skip
        session.run(v1.local_variables_initializer())
        area = session.run(update)
    # From 0 to 5 right ones precision is 1/2; then there are 5 wrong ones with each right one; of
    # the 10 that are left, no wrong one comes along.
    t = np.linspace(5, 10, 200_001)
    inner = np.trapezoid(t / (t + 5 + 5 * (t - 5)), t) / 20
    recalls = np.linspace(10, 20, 200_001)
    outer = np.trapezoid(recalls / (recalls + 30), recalls) / 20
    np.testing.assert_allclose(area, 0.25 * 0.5 + inner + outer, rtol=1e-5)


def test_batch_size_can_be_fed() -> None:
    with tf.Graph().as_default(), v1.Session() as session:
        rows, size = v1.placeholder(tf.float32, [None]), v1.placeholder(tf.int64, [])
        dataset = tf.data.Dataset.from_tensor_slices(rows).shuffle(size).batch(size)
        iterator = v1.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        assert batch.shape == (None,)
        for count in (2, 3):
            session.run(iterator.initializer, {rows: [1, 2, 3, 4], size: count})
            assert len(session.run(batch)) == count
        with pytest.raises(ValueError, match="_size must be greater than zero, not 0"):
            session.run(iterator.initializer, {rows: [1], size: 0})


def test_datasets_of_odd_sizes_are_batched() -> None:
    data = tf.data.Dataset
    assert data.range(3).repeat().repeat(0).cardinality() == 0
    assert list(data.range(3).repeat().repeat(0)) == []
    with pytest.raises(ValueError, match=r"index must be in \[0, 2\), not 2"):
        data.range(3).shard(2, 2)
    uneven = data.range(3).map(lambda n: tf.ones([int(n)])).batch(3)
    with pytest.raises(ValueError, match=r"one shape, not of shapes \[\(0,\), \(1,\), \(2,\)\]"):
        next(iter(uneven))


def test_existing_target_file_raises(tmp_path: Path) -> None:
    source, target = tmp_path / "one", tmp_path / "other"
    source.write_text("1")
    target.write_text("2")
    for call in (
        lambda: v1.gfile.Copy(source, target),
        lambda: v1.gfile.Rename(source, target),
        lambda: v1.gfile.MkDir(source),
        lambda: v1.gfile.MakeDirs(source),
    ):
        with pytest.raises(tf.errors.AlreadyExistsError, match=r"one|other"):
            call()
        with pytest.raises(FileExistsError):
            call()
    v1.gfile.Copy(source, target, overwrite=True)
    assert target.read_text() == "1"


def test_gather_rejects_rows_of_other_batches_on_every_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tf.arrays, "_check_range", lambda rows, row_count: False)  # as on a GPU
    for row in (-1, 4):
        with pytest.raises(IndexError, match="out of range"):
            tf.gather(A[:2], [[0], [row]], batch_dims=1)
    assert tf.gather(A[:2], [[0], [3]], batch_dims=1).tolist() == [[A[0, 0]], [A[1, 3]]]
