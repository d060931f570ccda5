"""Graph mode: variables, their scopes, initial values and assignments."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg
import thalweg._graph as tf
from sessions import initialized
from thalweg import (
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    OutOfRangeError,
    v1,
)
from thalweg._base.execution_context import eagerly
from thalweg._base.static_shape import UNKNOWN
from thalweg.variable import VariableAggregation, VariableSynchronization

pytestmark = pytest.mark.usefixtures("graph")


INITIAL: dict[str, tuple[Callable[[], Any], Any, torch.dtype]] = {
    "number": (lambda: tf.Variable(1.5), 1.5, torch.float32),
    "list": (lambda: tf.Variable([1, 2]), [1, 2], torch.int32),
    "array": (lambda: tf.Variable(np.ones(2)), [1, 1], torch.float64),
    "tensor": (lambda: tf.Variable(torch.ones(2, dtype=torch.int64)), [1, 1], torch.int64),
    "symbol": (lambda: tf.Variable(tf.constant(2.0) * 3), 6, torch.float32),
    "callable": (lambda: tf.Variable(lambda: [1.0, 2.0]), [1, 2], torch.float32),
    "callable with symbols": (lambda: tf.Variable(lambda: tf.ones([2])), [1, 1], torch.float32),
    "initializer": (
        lambda: tf.Variable(tf.ones_initializer(), shape=[2]),
        [1, 1],
        torch.float32,
    ),
    "dtype": (lambda: tf.Variable(1, dtype="float64"), 1, torch.float64),
    "dtype of a symbol": (lambda: tf.Variable(tf.constant(1.0), dtype="int64"), 1, torch.int64),
}


@pytest.mark.parametrize(("make", "value", "dtype"), INITIAL.values(), ids=INITIAL.keys())
def test_initial_value_sets_shape_and_dtype(
    make: Callable[..., Any], value: Any, dtype: torch.dtype
) -> None:
    w = make()
    got = initialized().run(w)
    np.testing.assert_array_equal(got, value)
    assert (w.dtype, w.shape, str(got.dtype)) == (dtype, np.shape(value), str(dtype)[6:])


def test_graph_variable_has_tensorflow_attributes() -> None:
    w = tf.Variable([1.0, 2.0], name="w", constraint=torch.abs)
    assert (w.name, w.op.name, w.op.type) == ("w:0", "w", "VariableV2")
    assert (w.trainable, w.constraint, w.device) == (True, torch.abs, torch.device("cpu"))
    assert w.initializer.name == "w/Assign"
    assert w.initial_value.name == "w/initial_value:0"
    assert repr(w) == "<tf.Variable 'w:0' shape=(2,) dtype=float32>"
    assert tf.is_symbolic(w)
    assert isinstance(w, tf.SymbolicTensor)
    assert copy.deepcopy(w) is w


def test_collections_of_variables() -> None:
    a = tf.Variable(1.0, name="a")
    b = tf.Variable(1.0, name="b", trainable=False)
    c = tf.Variable(1.0, name="c", collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    d = tf.Variable(1.0, name="d", collections=["mine"])
    assert tf.global_variables() == [a, b]
    assert tf.trainable_variables() == [a, d]
    assert tf.local_variables() == [c]
    assert tf.trainable_variables(scope="a") == [a]


def test_initial_value_is_required() -> None:
    with pytest.raises(ValueError, match="initial_value must be specified"):
        tf.Variable()


def test_failed_initial_value_does_not_change_the_graph(graph: tf.Graph) -> None:
    with pytest.raises(InvalidTypeError):
        tf.Variable("text", name="w")
    assert graph.get_operations() == []
    assert graph.get_all_collection_keys() == []


@pytest.mark.parametrize("use", ["fetch", "read", "gradient", "assign_add"])
def test_uninitialized_variable_raises(use: str) -> None:
    w = tf.Variable(1.0, name="w")
    fetch = {
        "fetch": w,
        "read": w * 2,
        "gradient": tf.gradients(w * w, w),
        "assign_add": w.assign_add(1.0),
    }[use]
    with pytest.raises(FailedPreconditionError, match=r"Attempting to use uninitialized value w\n"):
        tf.Session().run(fetch)


def test_report_uninitialized_variables_lists_names() -> None:
    a, b = tf.Variable(1.0, name="a"), tf.Variable(1.0, name="b")
    session = tf.Session()
    report, is_a_ready = tf.report_uninitialized_variables(), tf.is_variable_initialized(a)
    assert session.run(report).tolist() == [b"a", b"b"]
    session.run(a.initializer)
    assert session.run(report).tolist() == [b"b"]
    assert session.run(is_a_ready)
    session.run(tf.variables_initializer([b]))
    assert session.run(report).tolist() == []


def test_an_assertion_names_variables_that_are_not_initialized() -> None:
    assert tf.assert_variables_initialized() is None
    a, b = tf.Variable(1.0, name="a"), tf.Variable(1.0, name="b")
    check_all, check_a = tf.assert_variables_initialized(), tf.assert_variables_initialized([a])
    session = tf.Session()
    with pytest.raises(FailedPreconditionError, match="uninitialized value a, b"):
        session.run(check_all)
    session.run(a.initializer)
    session.run(check_a)
    with pytest.raises(FailedPreconditionError, match="uninitialized value b"):
        session.run(check_all)
    session.run(b.initializer)
    assert session.run(check_all) is None


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"shape": [2], "initializer": tf.ones_initializer()}, [1.0, 1.0]),
        (
            {"shape": 2, "initializer": lambda shape, dtype: torch.full(shape, 3, dtype=dtype)},
            [3, 3],
        ),
        ({"initializer": [4.0, 5.0]}, [4.0, 5.0]),
        ({"initializer": lambda: [6.0, 7.0]}, [6.0, 7.0]),
        ({"shape": [2], "dtype": torch.int64}, [0, 0]),
    ],
)
def test_get_variable_makes_eager_variables_in_eager_mode(kwargs: Any, expected: Any) -> None:
    variables = tf.global_variables()
    with eagerly(), tf.variable_scope("layer"):
        w, twin = tf.get_variable("w", **kwargs), tf.get_variable("w", **kwargs)
        fixed = tf.get_variable("fixed", **kwargs, trainable=False)
        assert (w.numpy().tolist(), w.name, w is twin) == (expected, "layer/w:0", False)
        assert w.assign_add(w).numpy().tolist() == [2 * x for x in expected]
        assert (w.trainable, fixed.trainable) == (True, False)
        with pytest.raises(ValueError, match="must be fully defined"):
            tf.get_variable("w", [None])
    assert tf.global_variables() == variables


def test_reinitialization_reuses_memory() -> None:
    w = tf.Variable([1.0])
    session = initialized()
    leaf = session.leaf(w)
    session.run(w.assign_add([1.0]))
    session.run(w.initializer)
    assert session.run(w) == [1.0]
    assert session.leaf(w) is leaf


def test_initialized_value_orders_initial_values() -> None:
    a = tf.Variable(tf.random_normal([3]), name="a")
    b = tf.Variable(a.initialized_value() * 2, name="b")
    session = initialized()
    a_value, two = session.run([a, b])
    np.testing.assert_array_equal(a_value * 2, two)
    session.run(a.assign([1.0, 2.0, 3.0]))
    session.run(b.initializer)
    np.testing.assert_array_equal(session.run(b), [2, 4, 6])


def test_dependent_initial_value_needs_initialization() -> None:
    a = tf.Variable(1.0, name="a")
    b = tf.Variable(a * 2, name="b")
    session = tf.Session()
    with pytest.raises(FailedPreconditionError, match="uninitialized value a"):
        session.run(tf.global_variables_initializer())
    session.run(a.initializer)
    session.run(b.initializer)
    assert session.run(b) == 2.0


ASSIGNMENTS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "assign": (lambda w: w.assign([5.0, 6.0]), [5, 6]),
    "assign_add": (lambda w: w.assign_add(np.ones(2)), [2, 3]),
    "assign_sub": (lambda w: w.assign_sub(tf.ones([2])), [0, 1]),
    "function assign": (lambda w: tf.assign(w, w * 2), [2, 4]),
    "function assign_add": (lambda w: tf.assign_add(w, w), [2, 4]),
    "function assign_sub": (lambda w: tf.assign_sub(w, [1, 1], use_locking=True), [0, 1]),
}


@pytest.mark.parametrize(("assign", "expected"), ASSIGNMENTS.values(), ids=ASSIGNMENTS.keys())
def test_assignments_update_the_variable(assign: Callable[[Any], Any], expected: Any) -> None:
    w = tf.Variable([1.0, 2.0])
    new = assign(w)
    session = initialized()
    assert session.run(new.op) is None
    np.testing.assert_array_equal(session.run(w), expected)
    session.run(w.initializer)
    np.testing.assert_array_equal(session.run(new), expected)
    assert (new.shape, new.dtype) == (w.shape, w.dtype)
    assert new.op.name in ("Assign", "AssignAdd", "AssignSub")


BAD_VALUES: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "shape": (
        lambda w: w.assign([1.0]),
        InvalidArgumentError,
        r"Cannot assign to 'w:0': it has shape \(2,\) but the value has \(1,\)",
    ),
    "shape of a symbol": (lambda w: w.assign(tf.ones([3])), ValueError, r"the value has \(3,\)"),
    "dtype": (
        lambda w: w.assign_add(tf.ones([2], torch.float64)),
        TypeError,
        "it is float32 but the value is float64. Cast the value.",
    ),
    "text": (lambda w: w.assign("no"), TypeError, "Cannot convert"),
}


@pytest.mark.parametrize(("assign", "error", "message"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_unassignable_value_raises(
    assign: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        assign(tf.Variable([1.0, 2.0], name="w"))


def test_shape_is_checked_again_in_the_run() -> None:
    x = tf.placeholder("float32")
    w = tf.Variable([1.0, 2.0], name="w")
    session = initialized()
    with pytest.raises(InvalidArgumentError, match=r"has shape \(2,\) but the value has \(3,\)"):
        session.run(w.assign(x), {x: [1.0, 2.0, 3.0]})
    np.testing.assert_array_equal(session.run(w), [1, 2])


def test_unvalidated_shape_may_change() -> None:
    x = tf.placeholder_with_default([1.0, 2.0], [None])
    w = tf.Variable(x, validate_shape=False)
    session = tf.Session()
    session.run(w.initializer, {x: [1.0]})
    assert session.run(w).shape == (1,)
    session.run(w.initializer)
    assert session.run(w).shape == (2,)
    assert w.shape is UNKNOWN
    assert not w.shape.is_fully_defined()


def test_a_variable_is_evaluated_in_the_session_given_first() -> None:
    x = tf.placeholder_with_default([1.0], [1])
    w = tf.Variable(x)
    session = initialized()
    second_session = tf.Session()
    second_session.run(w.initializer, {x: [5.0]})
    assert (w.eval(session).tolist(), w.eval(session=second_session).tolist()) == ([1.0], [5.0])
    assert (w.eval({x: [2.0]}, second_session).tolist(), w.eval(feed_dict={}, session=session)) == (
        [5.0],
        [1],
    )
    with second_session.as_default():
        assert (w.eval().tolist(), w.eval({}).tolist(), w.eval(None, {}).tolist()) == ([5],) * 3


def test_load_sets_the_value_in_a_session() -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    session = tf.Session()
    w.load([3, 4], session)
    np.testing.assert_array_equal(session.run(w), [3, 4])
    with session.as_default():
        w.load([5, 6])
        np.testing.assert_array_equal(w.eval(), [5, 6])
    with pytest.raises(ValueError, match=r"Cannot give 'w:0' of shape \(2,\) a value of shape"):
        w.load([1.0], session)
    with pytest.raises(ValueError, match="Cannot load 'w:0'"):
        w.load([1.0, 2.0])


def test_load_all_is_atomic() -> None:
    with tf.Graph().as_default():
        a, b = tf.Variable([1.0, 2.0], name="a"), tf.Variable([3.0], name="b")
        session = tf.Session()
        session.run(a.initializer)
        with pytest.raises(ValueError, match=r"Cannot give 'b:0' of shape \(1,\) a value of shape"):
            session.load_all({a: torch.tensor([5.0, 6.0]), b: torch.tensor([7.0, 8.0])})
        assert session.run(a).tolist() == [1, 2]
        assert not session.is_initialized(b)
        session.load_all({a: torch.tensor([5.0, 6.0]), b: torch.tensor([7.0])})
        assert [x.tolist() for x in session.run([a, b])] == [[5, 6], [7]]
    with tf.Graph().as_default(), pytest.raises(ValueError, match="'c:0' is not an element of"):
        session.load_all({tf.Variable(1.0, name="c"): torch.tensor(2.0)})
    session.close()
    with pytest.raises(RuntimeError, match="closed Session"):
        session.load_all({a: torch.tensor([5.0, 6.0])})


def test_values_of_inference_mode_are_replaced() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = tf.Variable([1.0]), tf.Variable([2.0])
        session.run(a.initializer)
        with torch.inference_mode():
            session.run(b.initializer)
            session.load_all({a: torch.tensor([5.0]), b: torch.tensor([6.0])})
        assert [x.tolist() for x in session.run([a, b])] == [[5], [6]]
        assert not session.leaf(b).is_inference()


def test_a_snapshot_shares_no_memory() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        a, b = tf.Variable([1.0]), tf.Variable(torch.ones(2, 3).t(), trainable=False)
        session.run(tf.global_variables_initializer())
        tensors = session.snapshot([a, b, a])
        session.run(a.assign_add([1.0]).op)
        assert [x.tolist() for x in tensors] == [[1], [[1, 1]] * 3, [1]]
        assert {type(x) for x in tensors} == {torch.Tensor}
        assert not any(x.requires_grad for x in tensors)


def test_an_operation_may_load_variables() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        a = tf.Variable(1.0)
        load = tf.operation(lambda: a.load(4.0, session), [], "load")
        pure = tf.operation(
            lambda: a.load(5.0, session), [], "pure", kind="pure", outputs=tf.Output()
        )
        session.run(load)
        assert session.run(a) == 4
        with pytest.raises(RuntimeError, match="declared as pure gives a variable a value"):
            session.run(pure)
        assert session.run(a) == 4


def test_eager_mode_makes_eager_variables() -> None:
    node = tf.operation(lambda: variables.append(tf.Variable([1.0], name="w")), [], "make")
    variables: list[Any] = []
    tf.Session().run(node)
    assert isinstance(variables[0], thalweg.Variable)
    assert variables[0].name == "w:0"


def test_variables_get_both_scopes_and_get_variable_one() -> None:
    with tf.name_scope("n"), tf.variable_scope("v"), tf.name_scope("inner"):
        a, b, c = tf.Variable(1.0, name="a"), tf.get_variable("b", [2]), tf.constant(1.0)
    with tf.variable_scope("v"):
        d, e = tf.Variable(1.0, name="a"), tf.get_variable("d", [2])
    names = [x.op.name for x in (a, b, c, d, e)]
    assert names == ["n/v/inner/a", "v/b", "n/v/inner/Const", "v/a", "v/d"]


def test_variable_scope_opened_again_has_a_new_name_scope() -> None:
    with tf.variable_scope("v") as scope:
        assert (scope.name, scope.original_name_scope) == ("v", "v/")
        with tf.variable_scope("w") as inner:
            assert inner.name == tf.get_variable_scope().name == "v/w"
    with tf.variable_scope("v") as twin:
        assert (twin.name, twin.original_name_scope) == ("v", "v_1/")
    with tf.variable_scope("other"), tf.variable_scope(scope) as twin:
        assert tf.get_variable("x", []).op.name == "v/x"
        assert (twin.original_name_scope, tf.constant(1.0).op.name) == ("v/", "other/v/Const")
    assert tf.get_variable_scope().name == ""


def test_the_scope_around_all_others_opens_no_name_scope() -> None:
    with tf.name_scope("tower"), tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
        names = [tf.constant(1.0).op.name, tf.Variable(1.0, name="a").op.name]
        assert [*names, tf.get_variable("b", []).op.name] == ["tower/Const", "tower/a", "b"]
    with tf.name_scope("n"), tf.variable_scope("v", auxiliary_name_scope=False) as scope:
        assert (scope.original_name_scope, tf.constant(1.0).op.name) == ("n/", "n/Const")


def test_invalid_scope_raises() -> None:
    with pytest.raises(TypeError, match="name_or_scope must be a string or a VariableScope, not 3"):
        tf.variable_scope(3).__enter__()  # pyright: ignore


def test_custom_getter_applies_in_a_scope() -> None:
    """As mixed precision stores variables of float16 in float32."""

    def stored(
        getter: Any, name: str, shape: Any = None, dtype: Any = None, *args: Any,
        trainable: bool = True, **kwargs: Any,
    ) -> Any:  # fmt: skip
        kind = torch.float32 if trainable else dtype
        variable = getter(name, shape, kind, *args, trainable=trainable, **kwargs)
        return tf.cast(variable, dtype) if kind != dtype else variable

    with tf.variable_scope("v", dtype=torch.float16, custom_getter=stored):
        w, n = tf.get_variable("w", [2]), tf.get_variable("n", [2], trainable=False)
        p = tf.get_variable("plain", [1], custom_getter=lambda getter, **kwargs: getter(**kwargs))
    assert [(x.op.name, x.dtype) for x in tf.global_variables()] == [
        ("v/w", torch.float32),
        ("v/n", torch.float16),
        ("v/plain", torch.float16),
    ]
    assert (w.dtype, n.dtype, p.op.name) == (torch.float16, torch.float16, "v/plain")


def test_a_custom_getter_is_in_no_name_scope() -> None:
    def twice(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        assert kwargs["synchronization"] is VariableSynchronization.AUTO
        assert kwargs["aggregation"] is VariableAggregation.NONE
        with tf.name_scope("twice"):
            return getter(name, *args, **kwargs) * 2.0

    with tf.variable_scope("scope", custom_getter=twice):
        doubled = v1.get_variable("v", [1])
        assert (doubled.name, tf.get_default_graph().get_name_scope()) == ("twice/mul:0", "scope")
    assert [var.name for var in tf.trainable_variables()] == ["scope/v:0"]


def test_a_custom_getter_is_a_function() -> None:
    with (
        pytest.raises(ValueError, match="not callable: 3"),
        tf.variable_scope("s", custom_getter=3),
    ):  # pyright: ignore
        pass
    with pytest.raises(ValueError, match="not callable: 3"):
        tf.get_variable("w", [1], custom_getter=3)  # pyright: ignore


def test_scope_defaults_can_be_set_inside() -> None:
    with tf.variable_scope("bar"):
        scope = tf.get_variable_scope()
        scope.set_initializer(tf.constant_initializer(0.25))
        scope.set_regularizer(lambda w: w * 2.0)
        scope.set_dtype(torch.float64)
        scope.set_use_resource(True)
        v = tf.get_variable("v", [])
        scope.set_custom_getter(lambda getter, name, **kwargs: getter(f"{name}_own", **kwargs))
        w = tf.get_variable("w", [])
    assert (v.dtype, v.is_resource, w.name) == (torch.float64, True, "bar/w_own:0")
    assert initialized().run(tf.get_collection("regularization_losses")) == [0.5, 0.5]
    assert tf.get_variable("v", []).dtype == torch.float32


def test_custom_getters_are_nested() -> None:
    calls: list[str] = []

    def noting(title: str) -> Any:
        def get(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            calls.append(f"{title} {name}")
            return getter(f"{name}{title}", *args, **kwargs)

        return get

    with tf.variable_scope("v", custom_getter=noting("1")) as scope:
        with tf.variable_scope("w", custom_getter=noting("2")):
            assert tf.get_variable("x", []).op.name == "v/w/x21"
        with tf.variable_scope(scope, reuse=True), pytest.raises(ValueError, match="v/y1 does not"):
            tf.get_variable("y", [])
    assert calls == ["2 v/w/x", "1 v/w/x2", "1 v/y"]


def test_default_names_of_variable_scopes() -> None:
    names = []
    for _ in range(3):
        with tf.variable_scope(None, "layer"):
            names.append(tf.get_variable("w", []).op.name)
    assert names == ["layer/w", "layer_1/w", "layer_2/w"]
    with pytest.raises(ValueError, match="name_or_scope is required"), tf.variable_scope(None):
        pass


def test_variable_scope_reuse_returns_existing_variables() -> None:
    with tf.variable_scope("v"):
        w = tf.get_variable("w", [2])
        with pytest.raises(ValueError, match="Variable v/w already exists, disallowed"):
            tf.get_variable("w", [2])
        tf.get_variable_scope().reuse_variables()
        assert tf.get_variable("w") is w
    with tf.variable_scope("v", reuse=True):
        assert tf.get_variable("w", [2]) is w
        with (
            tf.variable_scope("inner"),
            pytest.raises(ValueError, match="v/inner/w does not exist"),
        ):
            tf.get_variable("w", [2])
        with pytest.raises(ValueError, match=r"specified shape \(3,\) and found shape \(2,\)"):
            tf.get_variable("w", [3])
        with pytest.raises(TypeError, match="specified dtype float64 and found dtype float32"):
            tf.get_variable("w", [2], torch.float64)
    for _ in range(2):
        with tf.variable_scope("auto", reuse=tf.AUTO_REUSE):
            tf.get_variable("w", [2])
    assert len(tf.global_variables()) == 2


def test_defaults_of_a_variable_scope() -> None:
    with tf.variable_scope(
        "v",
        initializer=tf.constant_initializer(3.0),
        regularizer=lambda w: (w * w).sum(),
        constraint=torch.abs,
        dtype=torch.float64,
    ):
        a = tf.get_variable("a", [2])
        with tf.variable_scope("inner"):
            b = tf.get_variable("b", 2, initializer=tf.zeros_initializer)
    assert (a.dtype, b.dtype, b.constraint) == (torch.float64, torch.float64, torch.abs)
    session = initialized()
    np.testing.assert_array_equal(session.run([a, b]), [[3, 3], [0, 0]])
    losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    assert session.run(losses) == [18.0, 0.0]


GET_VARIABLE: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "value": ({"initializer": [1.0, 2.0]}, torch.float32, [1, 2]),
    "array": ({"initializer": np.array([1, 2])}, torch.int64, [1, 2]),
    "number": ({"shape": (), "initializer": tf.ones_initializer()}, torch.float32, 1),
    "integers": ({"shape": [2], "dtype": "int32"}, torch.int32, [0, 0]),
    "function": (
        {"shape": [2], "initializer": lambda s, d: torch.full(s, 7, dtype=d)},
        None,
        [7, 7],
    ),
}


@pytest.mark.parametrize(
    ("arguments", "dtype", "value"), GET_VARIABLE.values(), ids=GET_VARIABLE.keys()
)
def test_get_variable_sets_dtype_and_value(
    arguments: dict[str, Any], dtype: Any, value: Any
) -> None:
    w = tf.get_variable("w", **arguments)
    assert w.dtype == (dtype or torch.float32)
    np.testing.assert_array_equal(initialized().run(w), value)


def test_get_variable_without_shape_raises() -> None:
    with pytest.raises(ValueError, match=r"Shape of a new variable \(w\) must be fully defined"):
        tf.get_variable("w")
    with pytest.raises(ValueError, match="do not specify shape"):
        tf.get_variable("w", [2], initializer=[1.0, 2.0])


def test_initializer_without_arguments_gives_the_shape() -> None:
    v = tf.get_variable("v", initializer=lambda: [2, 3])
    w = tf.get_variable("w", initializer=lambda x=1.0: torch.full((2, 1), x))
    assert [(x.shape, x.dtype) for x in (v, w)] == [((2,), torch.int32), ((2, 1), torch.float32)]
    with pytest.raises(ValueError, match="'x' is not valid: it should be a callable without"):
        tf.get_variable("x", initializer=lambda shape: [2])
    with pytest.raises(
        ValueError, match=r"\(y\) must be fully defined, but instead was \[None, 2\]"
    ):
        tf.get_variable("y", [None, 2])  # pyright: ignore


def test_trainable_may_be_left_open() -> None:
    variables = [tf.Variable(1.0, None), tf.get_variable("v", [], trainable=None)]
    assert tf.trainable_variables() == variables
    with thalweg._base.execution_context.eagerly():
        assert tf.Variable(1.0, None).requires_grad


def test_a_penalty_is_outside_of_the_branch_that_makes_its_variable() -> None:
    def scaled() -> Any:
        ones = tf.ones_initializer()
        return tf.get_variable("w", [2], None, ones, lambda w: (w * w).sum()) * 1.0

    tf.cond(tf.constant(True), scaled, lambda: tf.zeros([2]))
    (penalty,) = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    assert penalty.op.name.startswith("w/Regularizer/")
    assert initialized().run(penalty) == 2


def test_default_initializer_is_glorot_uniform() -> None:
    w = tf.get_variable("w", [3, 3, 100, 200])
    value = initialized().run(w)
    limit = np.sqrt(6 / (9 * 300))
    assert 0.99 * limit < value.max() <= limit
    assert abs(value.mean()) < limit / 100


RANDOM: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "normal": (lambda s: tf.random_normal([20000], 1.0, 2.0, seed=s), lambda v: v.std() / 2),
    "uniform": (lambda s: tf.random_uniform([20000], 0, 2, seed=s), lambda v: v.mean()),
    "truncated": (
        lambda s: tf.truncated_normal([20000], stddev=3.0, seed=s),
        lambda v: np.abs(v).max() / 6,
    ),
    "integers": (
        lambda s: tf.random_uniform([20000], 0, 3, torch.int64, seed=s),
        lambda v: v.mean(),
    ),
    "normal initializer": (
        lambda s: tf.random_normal_initializer(stddev=5, seed=s)([20000]),
        lambda v: v.std() / 5,
    ),
    "uniform initializer": (
        lambda s: tf.random_uniform_initializer(0.5, 1.5, seed=s)([20000]),
        lambda v: v.mean(),
    ),
    "truncated initializer": (
        lambda s: tf.truncated_normal_initializer(stddev=0.5, seed=s)([20000]),
        lambda v: np.abs(v).max(),
    ),
}


@pytest.mark.parametrize(("make", "measure"), RANDOM.values(), ids=RANDOM.keys())
def test_random_initializers_depend_on_the_seed(
    make: Callable[..., Any], measure: Callable[[Any], Any]
) -> None:
    free, seeded = make(None), make(3)
    session, two = tf.Session(), tf.Session()
    first, second, third = session.run(seeded), session.run(seeded), two.run(seeded)
    assert measure(first) == pytest.approx(1, abs=0.03)
    assert (first != second).any()
    np.testing.assert_array_equal(first, third)
    assert (session.run(free) != session.run(free)).any()


def test_graph_seed_determines_random_numbers() -> None:
    tf.set_random_seed(5)
    a, b = tf.random_normal([4]), tf.random_normal([4])
    values, two = tf.Session().run([a, b]), tf.Session().run([a, b])
    np.testing.assert_array_equal(values, two)
    assert (values[0] != values[1]).any()
    with pytest.raises(ValueError, match="Must specify maxval"):
        tf.random_uniform([2], dtype=torch.int32)


# What optimizers build on


def test_leaf_is_a_variable_of_the_session() -> None:
    w = tf.Variable([1.0, 2.0], name="w", constraint=torch.abs)
    frozen = tf.Variable([1.0], name="frozen", trainable=False)
    values_seen: list[Any] = []
    inputs = [tf.by_reference(w), {"frozen": (tf.by_reference(frozen),)}, "plain", w * 3]
    session = initialized()
    session.run(tf.operation(lambda *values: values_seen.extend(values), inputs, "look"))
    leaf, nested, text, value = values_seen
    assert isinstance(leaf, thalweg.Variable)
    assert (leaf.name, leaf.trainable, leaf.constraint) == ("w:0", True, torch.abs)
    assert leaf.requires_grad
    assert not nested["frozen"][0].requires_grad
    assert text == "plain"
    assert value.tolist() == [3, 6]
    assert session.leaf(w) is leaf
    assert tf.handle_of(leaf) is w
    assert tf.handle_of(value) is value
    assert tf.handle_of(copy.deepcopy(leaf)) is not w
    assert pickle.loads(pickle.dumps(leaf)).tolist() == [1, 2]


def test_an_operation_writes_in_place() -> None:
    w = tf.Variable([1.0, 2.0])
    double = tf.operation(lambda leaf: leaf.mul_(2), [tf.by_reference(w)], "train/double")
    assert isinstance(double, tf.Operation)
    assert double.name == "train/double"
    session = initialized()
    session.run(double)
    np.testing.assert_array_equal(session.run(w), [2, 4])


def test_operations_return_values() -> None:
    x = tf.constant([1.0, 2.0])
    increment = tf.operation(lambda v: v + 1, [x], "one", kind="pure", outputs=x)
    two = tf.operation(
        lambda v: [v, v.sum()], [x], "two", outputs=[x, tf.Output(torch.float32, ())]
    )
    assert (increment.shape, increment.dtype) == ((2,), torch.float32)
    got = tf.Session().run([increment, *two])
    assert [np.sum(v) for v in got] == [5, 3, 3]


def test_operation_runs_after_its_control_inputs() -> None:
    calls: list[int] = []
    first = tf.operation(lambda: calls.append(1), [], "first")
    second = tf.operation(lambda: calls.append(2), [], "last", kind="pure", control_inputs=[first])
    tf.Session().run(second)
    assert calls == [1, 2]


def test_resolve_returns_values_within_a_run() -> None:
    w, x = tf.Variable(2.0, name="w"), tf.placeholder_with_default(5.0, [])
    y = x * w
    values_seen: list[Any] = []

    def look(value: Any) -> None:
        values_seen.append([tf.resolve(w), tf.resolve(y), tf.resolve(x), tf.resolve(3), value])
        values_seen.append([tf.current_session(), tf.executing_eagerly()])

    node = tf.operation(look, [x], "look")
    session = initialized()
    session.run(node, {x: 4.0})
    plan_count = session.plans_made
    session.run(node, {x: 6.0})
    assert session.plans_made == plan_count
    assert values_seen[0] == [2, 8, 4, 3, 4]
    assert values_seen[2] == [2, 12, 6, 3, 6]
    assert values_seen[1] == [session, True]
    assert tf.resolve(w) is w
    with pytest.raises(FailedPreconditionError, match="uninitialized value w"):
        tf.Session().run(node)


def test_slots_are_named_literally() -> None:
    w = tf.Variable(np.ones((2, 3), np.float32), name="scope/w")
    with tf.name_scope("train"), tf.control_dependencies([tf.no_op()]):
        slots = [tf.make_variable(tf.zeros([2, 3]), "scope/w/Adam", like=w) for _ in range(2)]
        power = tf.make_variable(0.9, "beta1_power", like=w)
    names = [x.name for x in (*slots, power)]
    assert names == ["scope/w/Adam:0", "scope/w/Adam_1:0", "beta1_power:0"]
    assert all(not x.trainable for x in (*slots, power))
    assert tf.global_variables() == [w, *slots, power]
    assert initialized().run([power, slots[1]])[0] == np.float32(0.9)


def test_slot_value_is_computed_at_initialization() -> None:
    calls: list[int] = []
    x = tf.placeholder("float32", [None, 2])
    w = tf.Variable(x, name="w")

    def make() -> Any:
        calls.append(1)
        return torch.zeros_like(tf.resolve(w)) + 0.5

    slot = tf.make_variable(make, "w/Momentum", like=w)
    assert not calls
    assert (slot.dtype, slot.shape) == (torch.float32, (None, 2))
    session = tf.Session()
    session.run(tf.global_variables_initializer(), {x: [[1.0, 2.0]]})
    np.testing.assert_array_equal(session.run(slot), [[0.5, 0.5]])
    assert len(calls) == 1


def test_slot_can_have_collection_and_dtype() -> None:
    slot = tf.make_variable(lambda: 1, "slot", collections=["local_variables"], dtype="int64")
    assert tf.local_variables() == [slot]
    assert initialized().run(slot).dtype == np.int64


@pytest.mark.parametrize(
    "ignored", [{"use_resource": True}, {"use_resource": False}, {"caching_device": "/cpu:0"}]
)
def test_options_of_placement_change_nothing(ignored: dict[str, Any]) -> None:
    with tf.Graph().as_default(), tf.variable_scope("scope", **ignored), tf.Session() as session:
        variables = [tf.Variable([1.0], name="a", **ignored), tf.get_variable("b", [1], **ignored)]
        session.run(tf.global_variables_initializer())
        assert [var.name for var in variables] == ["scope/a:0", "scope/b:0"]


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_a_variable_counts_to_a_limit(dtype: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable(1, name="w", dtype=dtype)
        count = w.count_up_to(3)
        session.run(w.initializer)
        assert [session.run(count) for _ in range(2)] == [1, 2]
        for _ in range(2):
            with pytest.raises(OutOfRangeError, match=r"'w:0' reached limit of 3"):
                session.run(count)
        assert session.run(w) == 3
