"""Branches and loops: `cond`, `case`, `while_loop`, `map_fn`, `scan` and `foldl`, in both modes."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from parallel_workers import run_together
from sessions import initialized
from thalweg import FailedPreconditionError, InvalidArgumentError
from thalweg import _graph as graph
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.nest import leaves_of

v1 = tf.compat.v1
ROWS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "f4")


def both(build: Callable[..., Any], *arrays: Any) -> list[Any]:
    """Return the leaves of `build` for these arrays, computed eagerly and in a graph."""
    eager = build(*(tf.constant(array) for array in arrays))
    values = [[np.asarray(leaf.detach()) for leaf in leaves_of(eager)]]
    with tf.Graph().as_default():
        places = [v1.placeholder(np.asarray(array).dtype, np.shape(array)) for array in arrays]
        nest = build(*places)
        feeds = dict(zip(places, arrays, strict=True))
        with initialized() as session:
            values.append(list(leaves_of(session.run(nest, feeds))))
    return values


# name: (what is called on ROWS, what it gives)
VALUES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "cond": (lambda x: tf.cond(x[0, 0] > 0, lambda: x * 2, lambda: x * 3), [ROWS * 2]),
    "cond of the other": (lambda x: tf.cond(x[0, 0] < 0, lambda: x * 2, lambda: x * 3), [ROWS * 3]),
    "cond of a number": (lambda x: tf.cond(tf.reduce_sum(x), lambda: x + 1, lambda: x), [ROWS + 1]),
    "cond of a nest": (
        lambda x: tf.cond(x[0, 0] > 0, lambda: (x, {"a": x + 1}), lambda: (x, {"a": x})),
        [ROWS, ROWS + 1],
    ),
    "cond in a cond": (
        lambda x: tf.cond(
            x[0, 0] > 0,
            lambda: tf.cond(x[0, 1] > 5, lambda: x, lambda: x - 1),
            lambda: x,
        ),
        [ROWS - 1],
    ),
    "cond by its old names": (lambda x: tf.cond(x[0, 0] > 0, fn1=lambda: x, fn2=lambda: x), [ROWS]),
    "case": (
        lambda x: tf.case(
            [(x[0, 0] > 1, lambda: x * 0), (x[0, 1] > 1, lambda: x * 2)], default=lambda: x
        ),
        [ROWS * 2],
    ),
    "case by default": (lambda x: tf.case([(x[0, 0] > 1, lambda: x * 0)], lambda: x), [ROWS]),
    "exclusive case": (
        lambda x: tf.case(
            [(x[0, 0] > 1, lambda: x * 0), (x[0, 0] < 2, lambda: x * 2)], exclusive=True
        ),
        [ROWS * 2],
    ),
    "while_loop": (
        lambda x: tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x), (0, x)),
        [3, ROWS**4],
    ),
    "while_loop that never runs": (
        lambda x: tf.while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, y * x), (0, x)),
        [0, ROWS],
    ),
    "while_loop over nests": (
        lambda x: tf.while_loop(
            lambda i, state: i < 2,
            lambda i, state: [i + 1, {"a": state["a"] + x, "b": state["a"]}],
            [0, {"a": x, "b": x}],
        ),
        [2, ROWS * 3, ROWS * 2],
    ),
    "while_loop with a limit": (
        lambda x: tf.while_loop(
            lambda i: i < 9, lambda i: i + 1, [tf.constant(0)], maximum_iterations=4
        ),
        [4],
    ),
    "while_loop of growing shape": (
        lambda x: tf.while_loop(
            lambda i, y: i < 2,
            lambda i, y: [i + 1, tf.concat([y, x], 0)],
            [0, x],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None, 2])],
        ),
        [2, np.concatenate([ROWS] * 3)],
    ),
    "while_loop in a while_loop": (
        lambda x: tf.while_loop(
            lambda i, y: i < 2,
            lambda i, y: (
                i + 1,
                tf.while_loop(lambda j, z: j < 3, lambda j, z: (j + 1, z + x), (0, y))[1],
            ),
            (0, x),
        ),
        [2, ROWS * 7],
    ),
    "cond in a while_loop": (
        lambda x: tf.while_loop(
            lambda i, y: i < 4,
            lambda i, y: (i + 1, tf.cond(i > 1, lambda: y + x, lambda: y * 2)),
            (0, x),
        ),
        [4, ROWS * 6],
    ),
    "map_fn": (lambda x: tf.map_fn(lambda row: row * row[0], x), [ROWS * ROWS[:, :1]]),
    "map_fn of a nest": (
        lambda x: tf.map_fn(lambda pair: (pair[0] + pair[1], pair[0]), (x, x[:, 0:1])),
        [ROWS + ROWS[:, :1], ROWS],
    ),
    "map_fn with another dtype": (
        lambda x: tf.map_fn(lambda row: tf.cast(row, tf.int64), x, dtype=tf.int64),
        [ROWS.astype("i8")],
    ),
    "scan": (lambda x: tf.scan(lambda a, row: a + row, x), [np.cumsum(ROWS, 0)]),
    "scan backwards": (
        lambda x: tf.scan(lambda a, row: a + row, x, reverse=True),
        [np.cumsum(ROWS[::-1], 0)[::-1]],
    ),
    "scan from a start": (
        lambda x: tf.scan(lambda a, row: a * row[0], x, initializer=2.0),
        [np.array([2.0, 6.0, 30.0], "f4")],
    ),
    "foldl": (
        lambda x: tf.foldl(lambda a, row: a * 2 + row, x),
        [ROWS[0] * 4 + ROWS[1] * 2 + ROWS[2]],
    ),
    "foldr": (
        lambda x: tf.foldr(lambda a, row: a * 2 + row, x),
        [ROWS[2] * 4 + ROWS[1] * 2 + ROWS[0]],
    ),
    "foldl of a nest": (
        lambda x: tf.foldl(lambda a, row: (a[0] + row, a[1] + 1), x, initializer=(x[0] * 0, 0)),
        [ROWS.sum(0), 3],
    ),
}


@pytest.mark.parametrize(("build", "expected"), VALUES.values(), ids=VALUES.keys())
def test_cond_and_while_loop_values(build: Callable[[Any], Any], expected: list[Any]) -> None:
    for leaves in both(build, ROWS):
        assert len(leaves) == len(expected)
        for leaf, target in zip(leaves, expected, strict=True):
            np.testing.assert_array_equal(leaf, target)


# name: (a loss of w = [2, 3] and p, which is 1 or -1; its gradient by w for both)
GRADIENTS: dict[str, tuple[Callable[[Any, Any], Any], Any, Any]] = {
    "cond": (
        lambda w, p: tf.cond(p > 0, lambda: tf.reduce_sum(w * w), lambda: tf.reduce_sum(w)),
        [4, 6],
        [1, 1],
    ),
    "branch without w": (
        lambda w, p: tf.cond(p > 0, lambda: tf.reduce_sum(w), lambda: p * 1.0),
        [1, 1],
        [0, 0],
    ),
    "what is made before": (
        lambda w, p: (lambda y: tf.cond(p > 0, lambda: tf.reduce_sum(y), lambda: y[0] * 5.0))(
            w * w
        ),
        [4, 6],
        [20, 0],
    ),
    "cond in a cond": (
        lambda w, p: tf.cond(
            p > -2,
            lambda: tf.cond(p > 0, lambda: w[0] * w[1], lambda: w[0]),
            lambda: w[1],
        ),
        [3, 2],
        [1, 0],
    ),
    "loop": (
        lambda w, p: tf.while_loop(
            lambda i, y: i < tf.cast(p + 2, tf.int32), lambda i, y: (i + 1, y * w), (0, w)
        )[1][0],
        [32, 0],
        [4, 0],
    ),
    "loop over values": (
        lambda w, p: tf.while_loop(lambda y: y < 100, lambda y: y * w[0], [w[1]]),
        [6 * 3 * 2**5, 2**6],
        [6 * 3 * 2**5, 2**6],
    ),
    "map_fn": (lambda w, p: tf.reduce_sum(tf.map_fn(lambda x: x * x * p, w)), [4, 6], [-4, -6]),
    "scan": (lambda w, p: tf.reduce_sum(tf.scan(lambda a, x: a * x, w)), [4, 2], [4, 2]),
    "foldl": (lambda w, p: tf.foldl(lambda a, x: a * x, w, initializer=p), [3, 2], [-3, -2]),
    "loop without gradients": (
        lambda w, p: (
            w[0] + tf.while_loop(lambda y: y < 9, lambda y: y * w[0], [w[1]], back_prop=False)
        ),
        [1, 0],
        [1, 0],
    ),
}


@pytest.mark.parametrize(("loss", "growth", "down"), GRADIENTS.values(), ids=GRADIENTS.keys())
def test_cond_and_while_loop_gradients(
    graph: Any, loss: Callable[..., Any], growth: Any, down: Any
) -> None:
    w, p = tf.Variable([2.0, 3.0]), v1.placeholder(tf.float32, [])
    (gradient,) = v1.gradients(loss(w, p), [w])
    with initialized() as session:
        np.testing.assert_array_equal(session.run(gradient, {p: 1.0}), growth)
        np.testing.assert_array_equal(session.run(gradient, {p: -1.0}), down)


def test_only_the_chosen_branch_updates(graph: Any) -> None:
    p, k = v1.placeholder(tf.bool, []), tf.Variable(0.0)
    update = tf.cond(p, lambda: v1.assign_add(k, 1.0), lambda: v1.assign_sub(k, 5.0))
    with initialized() as session:
        for choice, value in ((True, 1.0), (True, 2.0), (False, -3.0)):
            assert session.run(update, {p: choice}) == value
            assert session.run(k) == value


def test_outer_operations_of_a_branch_always_run(graph: Any) -> None:
    p, k = v1.placeholder(tf.bool, []), tf.Variable(0.0)
    update = v1.assign_add(k, 1.0)
    x = tf.cond(p, lambda: tf.identity(update), lambda: tf.constant(9.0))
    with initialized() as session:
        assert session.run(x, {p: False}) == 9.0
        assert session.run(k) == 1.0


def test_optimizer_steps_only_in_the_chosen_branch(graph: Any) -> None:
    p, w = v1.placeholder(tf.bool, []), tf.Variable([2.0])
    step = v1.train.get_or_create_global_step()
    optimizer = v1.train.MomentumOptimizer(0.1, 0.9)
    loss = tf.reduce_sum(w * w)
    pairs = optimizer.compute_gradients(loss)
    train = tf.cond(p, lambda: optimizer.apply_gradients(pairs, global_step=step), tf.no_op)
    assert train.dtype == tf.bool
    with tf.control_dependencies([train]):
        w_after = tf.identity(w)
    with initialized() as session:
        for choice, value, count in (
            (False, 2.0, 0),
            (True, 1.6, 1),
            (False, 1.6, 1),
            (True, 0.92, 2),
        ):
            assert session.run(w_after, {p: choice}) == pytest.approx([value])
            assert session.run(step) == count
        assert [x.op.name for x in v1.global_variables()] == [
            "Variable",
            "global_step",
            "Variable/Momentum",
        ]


def test_optimizer_can_differentiate_in_a_branch(graph: Any) -> None:
    p, w = v1.placeholder(tf.bool, []), tf.Variable([2.0])
    loss = tf.reduce_sum(w * w)
    train = tf.cond(p, lambda: v1.train.GradientDescentOptimizer(0.1).minimize(loss), tf.no_op)
    with initialized() as session:
        session.run(train, {p: False})
        session.run(train, {p: True})
        assert session.run(w) == pytest.approx([1.6])


def test_an_optimizer_steps_in_a_loop(graph: Any) -> None:
    w, n = tf.Variable(2.0), v1.placeholder(tf.int32, [])
    optimizer = v1.train.GradientDescentOptimizer(0.25)

    def once(i: Any) -> Any:
        with tf.control_dependencies([optimizer.minimize(w * w)]):
            return i + 1

    loop = tf.while_loop(lambda i: i < n, once, [tf.constant(0)])
    with initialized() as session:
        assert session.run(loop, {n: 3}) == 3
        assert session.run(w) == 0.25


def test_lookahead_in_cond_follows_every_third_step(graph: Any) -> None:
    """Slow weights follow fast ones in every third step, which then begin there."""
    fast, slow = tf.Variable(4.0, name="fast"), tf.Variable(4.0, trainable=False, name="slow")
    step = v1.train.get_or_create_global_step()
    train = v1.train.GradientDescentOptimizer(0.125).minimize(fast * fast, global_step=step)

    def follow() -> Any:
        update = slow.assign_add(0.5 * (fast.read_value() - slow))
        return tf.group(fast.assign(update))

    with tf.control_dependencies([train]):
        takes_slow_step = tf.equal(tf.math.mod(step.read_value(), 3), 0)
        train_op = tf.cond(takes_slow_step, follow, tf.no_op)
    own_fast = own_slow = np.float32(4.0)
    with initialized() as session:
        for count in range(1, 8):
            session.run(train_op)
            own_fast = own_fast - np.float32(0.125) * 2 * own_fast
            if count % 3 == 0:
                own_slow = own_fast = own_slow + np.float32(0.5) * (own_fast - own_slow)
            assert session.run([fast, slow, step]) == [own_fast, own_slow, count]


def test_gradients_flow_past_an_update_in_a_branch(graph: Any) -> None:
    """As batch normalization of old scripts keeps averages in the branch that trains."""
    p, w, mean = (
        v1.placeholder(tf.bool, []),
        tf.Variable([1.0, 3.0]),
        tf.Variable(0.0, trainable=False),
    )

    def train() -> Any:
        loss = tf.reduce_mean(w * w)
        with tf.control_dependencies([v1.assign(mean, loss)]):
            return tf.identity(loss)

    y = tf.cond(p, train, lambda: mean.read_value()) * 2.0
    (gradient,) = v1.gradients(y, [w])
    with initialized() as session:
        np.testing.assert_array_equal(session.run(gradient, {p: False}), [0.0, 0.0])
        assert session.run(mean) == 0.0
        np.testing.assert_array_equal(session.run([y, gradient], {p: True})[1], [2.0, 6.0])
        assert session.run(mean) == 5.0
        assert session.run(y, {p: False}) == 10.0


def test_embedding_rows_in_a_branch_have_sparse_gradients(graph: Any) -> None:
    p, table = v1.placeholder(tf.bool, []), tf.Variable(np.ones((4, 2), "f4"))
    rows = tf.cond(p, lambda: tf.nn.embedding_lookup(table, [1, 1]), lambda: tf.zeros([2, 2]))
    train = v1.train.AdagradOptimizer(1.0, 1.0).minimize(tf.reduce_sum(rows))
    with initialized() as session:
        session.run(train, {p: False})
        np.testing.assert_array_equal(session.run(table), np.ones((4, 2)))
        session.run(train, {p: True})
        np.testing.assert_array_equal(session.run(table)[[0, 2, 3]], np.ones((3, 2)))
        assert session.run(table)[1, 0] == pytest.approx(1 - 2 / np.sqrt(5))


def test_branch_can_return_slices(graph: Any) -> None:
    p = v1.placeholder(tf.bool, [])
    first, second = (
        tf.IndexedSlices(tf.constant([[x]]), tf.constant([int(x)]), (3, 1)) for x in (1.0, 2.0)
    )
    choice = tf.cond(p, lambda: first, lambda: second)
    with initialized() as session:
        assert session.run(choice, {p: True}).indices.tolist() == [1]
        assert session.run(choice, {p: False}).indices.tolist() == [2]


def test_module_buffers_update_only_in_chosen_branches(graph: Any) -> None:
    p, x = v1.placeholder(tf.bool, []), v1.placeholder(tf.float32, [4, 1])
    norm = torch.nn.BatchNorm1d(1, momentum=1.0)
    y = tf.cond(p, lambda: norm(x), lambda: x)
    mean = next(var for var in v1.global_variables() if "mean" in var.op.name)
    with initialized() as session:
        session.run(y, {p: False, x: np.ones((4, 1), "f4")})
        assert session.run(mean) == [0.0]
        session.run(y, {p: True, x: np.ones((4, 1), "f4")})
        assert session.run(mean) == [1.0]


def test_variables_created_in_a_branch_are_global(graph: Any) -> None:
    p = v1.placeholder(tf.bool, [])
    x = tf.cond(
        p, lambda: tf.Variable(1.0, name="a"), lambda: v1.get_variable("b", initializer=2.0)
    )
    assert [var.op.name for var in v1.global_variables()] == ["cond/a", "b"]
    with initialized() as session:
        assert session.run(x, {p: True}) == 1.0
        assert session.run(x, {p: False}) == 2.0


def test_uninitialized_variable_raises_only_if_read(graph: Any) -> None:
    p, w = v1.placeholder(tf.bool, []), tf.Variable(1.0)
    x = tf.cond(p, lambda: w + 1.0, lambda: tf.constant(0.0))
    with v1.Session() as session:
        assert session.run(x, {p: False}) == 0.0
        with pytest.raises(FailedPreconditionError, match="uninitialized value Variable"):
            session.run(x, {p: True})


def test_branch_reads_values_before_a_later_update(graph: Any) -> None:
    p, w = v1.placeholder(tf.bool, []), tf.Variable([1.0])
    w_before = tf.cond(p, lambda: w, lambda: w)
    with initialized() as session:
        assert session.run([w_before, w.assign([5.0])], {p: True})[0] == [1.0]


def test_random_numbers_are_drawn_anew_each_time(graph: Any) -> None:
    numbers = tf.map_fn(lambda _: tf.random.uniform([], seed=1), tf.zeros([3]))
    with v1.Session() as session:
        first, second = session.run(numbers), session.run(numbers)
    assert len({*first, *second}) == 6


def test_cond_has_names_and_static_shapes(graph: Any) -> None:
    p, x = v1.placeholder(tf.bool, []), v1.placeholder(tf.float32, [None, 3])
    choice = tf.cond(p, lambda: x, lambda: tf.zeros([2, 3]))
    assert (choice.name, choice.shape, choice.dtype) == ("cond/Merge:0", (None, 3), tf.float32)
    assert tf.cond(p, lambda: x[0], lambda: tf.zeros([2, 3]), name="own").shape is UNKNOWN
    assert "own/Merge" in graph.operations
    assert tf.map_fn(lambda row: row[:2], x).shape == (None, 2)
    assert tf.scan(lambda a, row: a + row, x).shape == (None, 3)
    assert tf.foldl(lambda a, row: a + row, x).shape == (3,)
    assert tf.while_loop(lambda y: True, lambda y: y * 2, [x]).shape == (None, 3)
    assert tf.cond(p, lambda: [x], lambda: [x]).shape == (None, 3)  # as in TensorFlow 1
    assert isinstance(tf.cond(p, lambda: [x], lambda: [x], strict=True), list)


INVALID: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "Python's bool": (lambda p, x: tf.cond(True, lambda: x, lambda: x), TypeError, "Python bool"),
    "no function": (lambda p, x: tf.cond(p, x, lambda: x), TypeError, "true_fn must be callable"),
    "None": (lambda p, x: tf.cond(p, lambda: x, lambda: None), ValueError, "must have a return"),
    "structures": (
        lambda p, x: tf.cond(p, lambda: x, lambda: (x, x)),
        TypeError,
        r"same structure, not \* and \(\*, \*\)",
    ),
    "dtypes": (
        lambda p, x: tf.cond(p, lambda: x, lambda: tf.constant(1)),
        TypeError,
        "same type",
    ),
    "the loop's structure": (
        lambda p, x: tf.while_loop(lambda y: True, lambda y: (y, y), [x]),
        ValueError,
        "same structure",
    ),
    "the loop's dtype": (
        lambda p, x: tf.while_loop(lambda y: True, lambda y: tf.cast(y, tf.int32), [x]),
        TypeError,
        "same type",
    ),
    "the loop's shape": (
        lambda p, x: tf.while_loop(lambda y: True, lambda y: tf.concat([y, y], 0), [tf.zeros([2])]),
        ValueError,
        r"\(2,\) has shape \(4,\) after one time; shape_invariants",
    ),
    "no loop variables": (
        lambda p, x: tf.while_loop(lambda: True, lambda: (), []),
        ValueError,
        "no",
    ),
    "no pairs": (lambda p, x: tf.case([]), ValueError, "at least one pair"),
}


@pytest.mark.parametrize(("build", "error", "match"), INVALID.values(), ids=INVALID.keys())
def test_invalid_branches_raise(
    graph: Any, build: Callable[..., Any], error: type[Exception], match: str
) -> None:
    p, x = v1.placeholder(tf.bool, []), v1.placeholder(tf.float32, [3])
    with pytest.raises(error, match=match):
        build(p, x)


def test_using_a_branch_tensor_outside_raises(graph: Any) -> None:
    p, outs = v1.placeholder(tf.bool, []), []
    tf.cond(p, lambda: outs.append(tf.constant(1.0) + 1.0) or outs[0], lambda: tf.constant(0.0))
    for use in (
        lambda: outs[0] + 1.0,
        lambda: tf.group(outs[0]),
        lambda: v1.Session().run(outs[0]),
    ):
        with pytest.raises(InvalidArgumentError, match=r"'cond/add.*return it from the function"):
            use()
    with pytest.raises(InvalidArgumentError, match="return it from the function"):
        tf.cond(p, lambda: outs[0], lambda: tf.constant(0.0))


FAILING: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no case": (lambda x: tf.case([(x > 1, lambda: x), (x > 2, lambda: x)]), "none of these"),
    "two cases": (
        lambda x: tf.case([(x > -1, lambda: x), (x > -2, lambda: x)], exclusive=True),
        "more than one",
    ),
    "no rows": (lambda x: tf.map_fn(lambda row: row, tf.zeros([0, 2])), "no rows"),
    "no first row": (lambda x: tf.foldl(lambda a, row: a, tf.zeros([0, 2])), "no rows"),
    "a check in a branch": (
        lambda x: tf.cond(x > -1, lambda: tf.debugging.check_numerics(x / 0, "here"), lambda: x),
        "here : Tensor had NaN values",
    ),
}


@pytest.mark.parametrize(("build", "match"), FAILING.values(), ids=FAILING.keys())
def test_branch_errors_are_raised_by_the_run(build: Callable[[Any], Any], match: str) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        build(tf.constant(0.0))
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [])
        tensor = build(x)
        with pytest.raises(InvalidArgumentError, match=match):
            session.run(tensor, {x: 0.0})


def test_concurrent_branches_see_complete_updates(graph: Any) -> None:
    p, a, b = v1.placeholder(tf.bool, []), tf.Variable(0), tf.Variable(0)

    def update() -> Any:
        with tf.control_dependencies([a.assign_add(1)]):
            return tf.group(b.assign_add(1))

    train_op = tf.cond(p, update, tf.no_op)
    with initialized() as session:

        def work() -> None:
            for turn in range(20):
                session.run(train_op, {p: turn % 2 == 0})
                a_value, b_value = session.run([a, b])
                assert a_value == b_value

        run_together(*[work] * 4)
        assert session.run(a) == 40


def test_waiting_branch_lets_other_runs_proceed(graph: Any) -> None:
    p, arrived, w = v1.placeholder(tf.bool, []), threading.Event(), tf.Variable(0)
    increment = w.assign_add(1)

    def wait() -> Any:
        return tf.group(_waiting(arrived))

    train_op = tf.cond(p, wait, tf.no_op)
    with initialized() as session:

        def arrive() -> None:
            session.run(increment)
            arrived.set()

        run_together(lambda: session.run(train_op, {p: True}), arrive)
        assert session.run(w) == 1


def _waiting(event: threading.Event) -> Any:
    def wait() -> torch.Tensor:
        assert event.wait(120)
        return torch.tensor(True)

    return graph.operation(wait, [], "wait", kind="blocking", outputs=graph.Output(torch.bool, ()))


def test_loop_starting_at_an_updated_variable(graph: Any) -> None:
    w = tf.Variable(1.0)

    def once(i: Any, total: Any) -> Any:
        with tf.control_dependencies([w.assign_add(1.0)]):
            return i + 1, total + w.read_value()

    loop = tf.while_loop(lambda i, total: i < 3, once, (0, w))
    with initialized() as session:
        assert session.run(loop) == (3, 1.0 + 2 + 3 + 4)


@pytest.mark.parametrize("name", ["scan", "scan backwards", "foldl", "map_fn"])
def test_loop_over_rows_of_unknown_rank(name: str, graph: Any) -> None:
    x = v1.placeholder(tf.float32)
    loops = {
        "scan": (lambda: tf.scan(operator.add, x), np.cumsum(ROWS, 0)),
        "scan backwards": (
            lambda: tf.scan(operator.add, x, reverse=True),
            np.cumsum(ROWS[::-1], 0)[::-1],
        ),
        "foldl": (lambda: tf.foldl(operator.add, x), np.sum(ROWS, 0)),
        "map_fn": (lambda: tf.map_fn(operator.neg, x), -np.asarray(ROWS)),
    }
    make, expected = loops[name]
    result = make()
    assert result.shape.ndims is None
    np.testing.assert_allclose(v1.Session().run(result, {x: ROWS}), expected)
