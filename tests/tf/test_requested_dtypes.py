"""Values with a dtype, a shape or a name that is asked for, as TensorFlow 2.21 makes them."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from thalweg import v1
from thalweg.errors import InvalidArgumentError, InvalidTypeError

old = tf.compat.v1
TABLE = np.zeros((2, 16), np.float32)
VARIABLES = [tf.Variable, old.Variable, v1.Variable]
MAKERS: dict[str, Callable[..., Any]] = {
    "tf.constant": tf.constant,
    "v1.constant": old.constant,
    "tf.convert_to_tensor": tf.convert_to_tensor,
    "v1.convert_to_tensor": old.convert_to_tensor,
    "tf.Variable": tf.Variable,
    "v1.Variable": old.Variable,
}
CUT = [
    (np.array([1.5, -1.7, 2.0]), [1, -1, 2]),
    (np.array([[1.5, 2.5]], np.float32), [[1, 2]]),
    (np.array([-0.9], np.float16), [0]),
    (np.float64(2.5), 2),
    (np.array([True]), [1]),
]


def in_a_session(make: Callable[..., Any]) -> Any:
    with v1.Graph().as_default(), v1.Session() as session:
        outputs = make()
        session.run(v1.global_variables_initializer())
        return session.run(outputs)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(("value", "expected"), CUT, ids=str)
def test_arrays_of_floats_become_integers(maker: str, value: Any, expected: Any) -> None:
    make = MAKERS[maker]
    tensor = make(value, dtype=tf.int32)
    assert (tensor.dtype, np.asarray(tensor).tolist()) == (torch.int32, expected)
    array = in_a_session(lambda: make(value, dtype=tf.int32))
    assert (array.dtype, array.tolist()) == (np.int32, expected)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("value", [1.5, [1.5, 2.0], np.array([1j])], ids=str)
def test_other_fractions_raise(maker: str, value: Any) -> None:
    make = MAKERS[maker]
    with pytest.raises(InvalidTypeError, match="Cannot convert"):
        make(value, dtype=tf.int32)
    with pytest.raises(InvalidTypeError, match="Cannot convert"):
        in_a_session(lambda: make(value, dtype=tf.int32))


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**31, -(2.0**31) - 1, 1e300])
def test_values_beyond_the_integer_range_raise(value: float) -> None:
    for make in MAKERS.values():
        with pytest.raises(InvalidArgumentError, match="does not fit int32"):
            make(np.array([0.0, value]), dtype=tf.int32)
    ends = np.array([2.0**31 - 0.5, -(2.0**31) - 0.5])
    assert tf.constant(ends, tf.int32).tolist() == [2**31 - 1, -(2**31)]
    with pytest.raises(InvalidArgumentError, match="does not fit int64"):
        tf.constant(np.array([2.0**63]), tf.int64)


def test_floats_convert_to_bools_and_in_assignments() -> None:
    assert tf.constant(np.array([1.5, 0.0]), tf.bool).tolist() == [True, False]
    v = tf.Variable([1, 2])
    with pytest.raises(InvalidTypeError, match="Cannot convert float64 values to int32"):
        v.assign(np.array([1.5, 2.5]))


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("value", [TABLE, lambda: TABLE, TABLE.tolist()], ids=["a", "f", "l"])
def test_variable_takes_value_and_shape(variable: Any, value: Any) -> None:
    for shape in ([None, 16], (2, None), [2, 16], tf.TensorShape([None, None])):
        assert tuple(variable(value, shape=shape).shape) == (2, 16)
        with v1.Graph().as_default():
            assert variable(value, shape=shape).shape == tuple(shape)
    assert variable(value, shape=tf.TensorShape(None), name=None).name == "Variable:0"
    text = r"initial value's shape \(\(2, 16\)\) is not compatible .* \(\[3, 16\]\)"
    for shape in ([3, 16], [3, 16]):
        with pytest.raises(ValueError, match=text):
            variable(value, shape=shape)
        with v1.Graph().as_default(), pytest.raises(ValueError, match=text):
            variable(value, shape=shape)


@pytest.mark.parametrize("shape", [[None, 16], tf.TensorShape(None)], ids=str)
def test_variable_of_unknown_shape_accepts_compatible_values(shape: Any) -> None:
    with v1.Graph().as_default(), v1.Session() as session:
        w = old.Variable(TABLE, shape=shape, name="w")
        feed = v1.placeholder("float32", [None, 16])
        grow, opt = w.assign(feed), v1.train.MomentumOptimizer(1.0, 0.9)
        train = opt.minimize((w * w).sum())
        session.run(v1.global_variables_initializer())
        session.run(train)
        assert session.run(grow, {feed: np.ones((5, 16))}).shape == (5, 16)
        assert session.run(w).shape == (5, 16)
        w_after = session.run(w.assign_add(feed), {feed: np.ones((5, 16))})
        assert w_after.tolist() == [[2.0] * 16] * 5
        if isinstance(shape, list):
            with pytest.raises(InvalidArgumentError, match=r"has shape \(None, 16\)"):
                w.assign(np.ones((5, 15), np.float32))
            wide = v1.placeholder("float32", [None, None])
            with pytest.raises(InvalidArgumentError, match=r"a value of shape \(5, 15\)"):
                session.run(w.assign(wide), {wide: np.ones((5, 15))})
            assert session.run(w).shape == (5, 16)


@pytest.mark.parametrize("variable", VARIABLES)
@pytest.mark.parametrize("shape", [[None, 16], tf.TensorShape(None)], ids=str)
def test_variable_of_unknown_shape_grows_in_eager_mode(variable: Any, shape: Any) -> None:
    w = variable(TABLE, shape=shape, name="w")
    opt = tf.keras.optimizers.SGD(1.0)
    opt.apply_gradients([(tf.ones_like(w), w)])
    twin, loaded = copy.deepcopy(w), pickle.loads(pickle.dumps(w))
    larger = np.ones((5, 16), np.float32)
    for var in (w, twin, loaded):
        assert var.assign(larger) is var
        assert var.numpy().tolist() == larger.tolist()
    larger += 1
    assert w.numpy().tolist() == [[1.0] * 16] * 5
    opt.apply_gradients([(tf.ones_like(w), w)])
    assert w.numpy().tolist() == [[0.0] * 16] * 5
    with pytest.raises(InvalidArgumentError, match=r"has shape \(5, 16\) but the value"):
        w.assign_add(TABLE)
    if isinstance(shape, list):
        with pytest.raises(InvalidArgumentError, match=r"has shape \(5, 16\) but the value"):
            w.assign(np.ones((5, 15), np.float32))
    with pytest.raises(InvalidArgumentError, match=r"has shape \(2, 16\) but the value"):
        variable(TABLE, shape=[2, 16]).assign(larger)


MAKES_TRAINED: dict[str, Callable[..., Any]] = {
    "tf.Variable": lambda **kwargs: tf.Variable([1.0], **kwargs),
    "v1.Variable": lambda **kwargs: old.Variable([1.0], **kwargs),
    "thalweg.v1.Variable": lambda **kwargs: v1.Variable([1.0], **kwargs),
    "get_variable": lambda **kwargs: old.get_variable("w", [1], **kwargs),
}


@pytest.mark.parametrize("case", list(MAKES_TRAINED))
def test_variables_of_each_replica_are_not_trained_by_default(case: str) -> None:
    make, sync = MAKES_TRAINED[case], tf.VariableSynchronization
    for trainable, synchronization, trained in (
        (None, sync.ON_READ, False),
        (True, sync.ON_READ, True),
        (None, sync.ON_WRITE, True),
        (False, sync.AUTO, False),
    ):
        with v1.Graph().as_default():
            w = make(trainable=trainable, synchronization=synchronization)
            assert w.trainable is trained
            assert old.trainable_variables() == [w] * trained
        w = make(trainable=trainable, synchronization=synchronization)
        assert (w.trainable, w.requires_grad) == (trained, trained)


@pytest.mark.parametrize("case", list(MAKES_TRAINED))
def test_variables_have_synchronization_and_aggregation(case: str) -> None:
    make, sync, agg = MAKES_TRAINED[case], tf.VariableSynchronization, tf.VariableAggregation
    for block in (lambda: v1.Graph().as_default(), contextlib.nullcontext):
        for pair in ((sync.AUTO, agg.NONE), (sync.ON_READ, agg.SUM), (sync.ON_WRITE, agg.MEAN)):
            with block():
                var = make(synchronization=pair[0], aggregation=pair[1])
            twin = copy.deepcopy(var)
            assert (var.synchronization, var.aggregation) == pair
            assert (twin.synchronization, twin.aggregation) == pair


@pytest.mark.parametrize("case", list(MAKES_TRAINED))
def test_a_constraint_is_a_function(case: str) -> None:
    with v1.Graph().as_default(), pytest.raises(ValueError, match="constraint must be None or a"):
        MAKES_TRAINED[case](constraint=0)
    with pytest.raises(ValueError, match="constraint must be None or a function, not 0"):
        MAKES_TRAINED[case](constraint=0)


def test_replicated_variable_grows_on_all_replicas() -> None:
    aggregation = tf.VariableAggregation.MEAN
    w = tf.Variable(TABLE, shape=tf.TensorShape(None), aggregation=aggregation)
    assert w.assign(np.ones(3, np.float32)).numpy().tolist() == [1.0] * 3
    assert w.assign_sub(np.ones(3, np.float32)).numpy().tolist() == [0.0] * 3


def test_slots_do_not_grow_with_their_variable() -> None:
    w = tf.Variable(TABLE, shape=[None, 16], name="w")
    opt = tf.keras.optimizers.Adam(1.0)
    opt.apply_gradients([(tf.ones_like(w), w)])
    w.assign(np.ones((5, 16), np.float32))
    with pytest.raises(ValueError, match="shape"):
        opt.apply_gradients([(tf.ones_like(w), w)])
    assert (w.numpy().tolist(), opt.iterations.numpy()) == ([[1.0] * 16] * 5, 1)


def test_an_initializer_still_gets_the_shape() -> None:
    with v1.Graph().as_default():
        assert old.Variable(old.ones_initializer(), shape=[2, 3]).shape == (2, 3)
    assert old.Variable(old.ones_initializer(), shape=[2, 3]).tolist() == [[1.0] * 3] * 2


FILLED_CONSTANTS: list[tuple[Any, list[int], Any]] = [
    ([1, 2, 3], [6], [1, 2, 3, 3, 3, 3]),
    ([[1, 2], [3, 4]], [2, 3], [[1, 2, 3], [4, 4, 4]]),
    ([], [2], [0.0, 0.0]),
    ([1], [3], [1, 1, 1]),
    ([1, 2, 3, 4], [2, 2], [[1, 2], [3, 4]]),
]


@pytest.mark.parametrize(("value", "shape", "expected"), FILLED_CONSTANTS, ids=str)
@pytest.mark.parametrize("constant", [old.constant, v1.constant])
def test_graph_constants_are_filled_to_their_shape(
    constant: Any, value: Any, shape: Any, expected: Any
) -> None:
    assert in_a_session(lambda: constant(value, shape=shape)).tolist() == expected
    is_fitting = np.size(value) in (1, np.prod(shape))
    for make in (lambda: constant(value, shape=shape), lambda: tf.constant(value, shape=shape)):
        if is_fitting:
            assert make().tolist() == expected
        else:
            with pytest.raises(TypeError, match=r"values do not fit shape"):
                make()
    if not is_fitting:
        with pytest.raises(TypeError, match=r"values do not fit shape"):
            in_a_session(lambda: tf.constant(value, shape=shape))


def test_mismatched_constant_values_raise() -> None:
    with v1.Graph().as_default():
        with pytest.raises(ValueError, match="Too many elements provided: 3 values"):
            old.constant([1, 2, 3], shape=[2])
        with pytest.raises(TypeError, match=r"with shape \(6,\), but got shape \(3,\)"):
            old.constant([1, 2, 3], shape=[6], verify_shape=True)
    with pytest.raises(TypeError, match="3 values do not fit shape"):
        tf.constant([1, 2, 3], shape=[2])


NAMELESS: dict[str, Callable[[Any], Any]] = {
    "Const:0": lambda w: old.constant(1.0, name=None),
    "zeros:0": lambda w: old.zeros([2], name=None),
    "ones:0": lambda w: old.ones([2], name=None),
    "eye:0": lambda w: tf.eye(2, name=None),
    "range:0": lambda w: tf.range(3, name=None),
    "stack:0": lambda w: tf.stack([w, w], name=None),
    "unstack:0": lambda w: tf.unstack(tf.zeros([2]), name=None)[0],
    "split:0": lambda w: tf.split(tf.zeros([2]), 2, name=None)[0],
    "random_normal:0": lambda w: old.random_normal([2], name=None),
    "random_uniform:0": lambda w: old.random_uniform([2], name=None),
    "truncated_normal:0": lambda w: old.truncated_normal([2], name=None),
    "gradients:0": lambda w: old.gradients(w * w, [w], name=None)[0],
    "Variable:0": lambda w: old.Variable(1.0, name=None),
    "init": lambda w: old.variables_initializer([w], name=None),
    "report_uninitialized_variables:0": lambda w: old.report_uninitialized_variables(name=None),
}


@pytest.mark.parametrize("name", NAMELESS)
def test_missing_name_gives_the_default_name(name: str) -> None:
    with v1.Graph().as_default():
        w = old.Variable(1.0, name="w")
        assert NAMELESS[name](w).name == name


def test_a_variable_scope_needs_a_name() -> None:
    with v1.Graph().as_default(), pytest.raises(TypeError, match="name_or_scope is required"):
        old.variable_scope(None).__enter__()
