"""Operators between eager tensors and NumPy arrays behave as in TensorFlow."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
from thalweg import take_back_names
from thalweg.errors import InvalidTypeError

OPERATORS = (
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.matmul, operator.lt, operator.le, operator.gt, operator.ge, operator.eq,
    operator.ne,
)  # fmt: skip
LOGICAL = (operator.and_, operator.or_, operator.xor)
SQUARE = np.array([[0.1, 0.75], [2.5, 3.0]], np.float32)
ARRAYS = {
    "float64": np.array([[0.1, 1.5], [2.0, 0.3]]),
    "float32": np.array([[0.1, 1.5], [2.0, 0.3]], np.float32),
    "float16": np.array([[0.1, 1.5], [2.0, 0.3]], np.float16),
    "int64": np.array([[1, 2], [3, 4]]),
    "number": np.float64(0.75),
    "shapeless": np.array(0.75),
    "row": np.array([1.5, 2.5]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (function, kind)
        for function in OPERATORS
        for kind, array in ARRAYS.items()
        if function is not operator.matmul or np.ndim(array) == 2
    ],
)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_an_array_takes_the_dtype_of_the_tensor(
    function: Callable[..., Any], kind: str, requires_grad: bool
) -> None:
    tensor = torch.from_numpy(SQUARE.copy()).requires_grad_(requires_grad)
    array = ARRAYS[kind]
    float_array = np.asarray(array, np.float32)
    for lhs, right, expected in (
        (tensor, array, function(SQUARE, float_array)),
        (array, tensor, function(float_array, SQUARE)),
    ):
        result = function(lhs, right)
        assert isinstance(result, torch.Tensor)
        assert result.dtype == torch.from_numpy(expected).dtype
        np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-6)


# What TensorFlow 2.21 gives for tf.constant([3, 2]) and an array.
INTEGERS = [
    (operator.add, [0.5, 2.5], [3, 4], [3, 4]),
    (operator.sub, [0.5, 2.5], [3, 0], [-3, 0]),
    (operator.mul, [0.5, 2.5], [0, 4], [0, 4]),
    (operator.truediv, [1, 2], [3.0, 1.0], [1 / 3, 1.0]),
    (operator.floordiv, [-1, 1], [-3, 2], [-1, 0]),
    (operator.eq, [0.5, 2.5], [False, True], [False, True]),
    (operator.and_, [1, 2], [1, 2], [1, 2]),
    (operator.xor, [1, 2], [2, 0], [2, 0]),
]


@pytest.mark.parametrize(("function", "values", "forward", "reflected"), INTEGERS)
def test_floats_beside_integers_lose_their_fractions(
    function: Callable[..., Any], values: Any, forward: Any, reflected: Any
) -> None:
    for tensor in (tf.constant([3, 2]), tf.Variable([3, 2])):
        array = np.array(values)
        for result, expected in (
            (function(tensor, array), forward),
            (function(array, tensor), reflected),
        ):
            kind = {float: tf.float64, int: tf.int32, bool: tf.bool}[type(expected[0])]
            assert result.dtype == kind
            assert result.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("function", LOGICAL)
def test_an_array_beside_booleans_becomes_boolean(function: Callable[..., Any]) -> None:
    tensor, array = tf.constant([True, True, False]), np.array([2.0, 0.0, 1.0])
    expected = function(np.array([True, True, False]), array != 0).tolist()
    assert function(tensor, array).tolist() == function(array, tensor).tolist() == expected


@pytest.mark.parametrize("array", [np.array([1.0, 2.0, 3.0]), np.ones((3, 2))])
def test_arrays_of_other_shapes_are_unequal(array: Any) -> None:
    tensor = tf.ones((2, 2))
    for lhs, right in ((tensor, array), (array, tensor)):
        assert (lhs == right).tolist() is False
        assert (lhs != right).tolist() is True
    with pytest.raises(RuntimeError, match="must match"):
        tensor + array


def test_gradients_flow_through_operators_with_arrays() -> None:
    inputs, targets = np.array([3.3, 4.4, 5.5]), np.array([1.7, 2.76, 2.09])
    weight, bias = tf.Variable(0.5), tf.Variable(0.1)
    with tf.GradientTape() as tape:
        error = targets - (inputs * weight + bias)
        loss = tf.reduce_sum(tf.square(error)) / 6
    gradients = tape.gradient(loss, [weight, bias])
    residual = (0.5 * inputs + 0.1) - targets
    expected = [(residual * inputs).sum() / 3, residual.sum() / 3]
    assert [gradient.item() for gradient in gradients] == pytest.approx(expected, rel=1e-5)
    assert error.dtype == tf.float32


def test_an_augmented_assignment_to_an_array_makes_a_tensor() -> None:
    array = original = np.array([1.0, 2.0])
    array -= tf.constant([0.5, 0.5])
    assert isinstance(array, torch.Tensor)
    assert (array.dtype, array.tolist()) == (tf.float32, [0.5, 1.5])
    assert original.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("array", [np.array(["a", "b"]), np.array([1j, 2.0])])
def test_an_array_that_does_not_fit_the_dtype_raises(array: Any) -> None:
    for function in (operator.add, operator.sub, operator.eq):
        with pytest.raises(InvalidTypeError, match="Cannot convert"):
            function(tf.ones(2), array)
        with pytest.raises(InvalidTypeError, match="Cannot convert"):
            function(array, tf.ones(2))


def test_numpy_functions_work_as_with_plain_torch() -> None:
    tensor, target = torch.tensor([1.0, 4.0]), np.zeros(2, np.float32)
    assert np.sqrt(tensor).tolist() == [1.0, 2.0]
    assert isinstance(np.sqrt(tensor), torch.Tensor)
    assert np.add.reduce(tensor).item() == 5.0
    assert [part.tolist() for part in np.modf(tensor)] == [[0.0, 0.0], [1.0, 4.0]]
    assert np.sqrt(tensor, out=target) is target
    assert target.tolist() == [1.0, 2.0]
    np.add.at(target, [0, 0], tensor)
    assert target.tolist() == [6.0, 2.0]
    with pytest.raises(InvalidTypeError, match="out= of a NumPy function"):
        np.sqrt(target, out=tensor)  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_torch_operators_are_restored() -> None:
    tensor, array = torch.tensor([0.1, 0.2]), np.array([0.1, 0.2])
    with take_back_names():
        assert "__array_ufunc__" not in vars(torch.Tensor)
        unequal: Any = tensor == array
        assert unequal.tolist() == [False, False]
    equal: Any = tensor == array
    assert equal.tolist() == [True, True]
    assert (tensor * array).dtype == torch.float32


def test_operators_between_tensors_are_unchanged() -> None:
    for function in OPERATORS:
        name = f"__{function.__name__.rstrip('_')}__"
        if name != "__eq__":
            with take_back_names():
                original = getattr(torch.Tensor, name)
            assert getattr(torch.Tensor, name) is original


FIRST = tf.constant([1.5, -2.0])
LISTS: dict[str, Any] = {
    "concat": lambda array: tf.concat([FIRST, array], 0),
    "concat, array first": lambda array: tf.concat([array, FIRST], 0),
    "stack": lambda array: tf.stack([array, FIRST]),
    "stack of numbers": lambda array: tf.stack([FIRST[0], array[0], 2.5]),
    "convert_to_tensor": lambda array: tf.convert_to_tensor([FIRST, array]),
    "nested": lambda array: tf.concat([[FIRST[0]], array], 0),
    "reduce_sum": lambda array: tf.reduce_sum([FIRST, array]),
}


@pytest.mark.parametrize("join", LISTS.values(), ids=LISTS.keys())
def test_arrays_in_a_list_take_the_dtype_of_its_tensors(join: Any) -> None:
    array = np.array([0.5, 1.0])
    eager = join(array)
    assert eager.dtype == tf.float32
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        value = session.run(join(array))
    assert (value.dtype, value.tolist()) == (np.float32, eager.tolist())


def test_an_array_of_fractions_in_a_list_with_integers_loses_them() -> None:
    tensor = tf.concat([tf.constant([1, 2]), np.array([2.5, -1.5])], 0)
    assert (tensor.dtype, tensor.tolist()) == (tf.int32, [1, 2, 2, -1])
    assert tf.stack([tf.constant(1), np.int64(2)]).dtype == tf.int32


INTEGERS: dict[str, Any] = {
    "*": (lambda x, y: x * y, np.int32, [14, 4]),
    "reflected -": (lambda x, y: y - x, np.int32, [-5, 0]),
    "/": (lambda x, y: x / y, np.float64, [3.5, 1.0]),
    "reflected /": (lambda x, y: y / x, np.float64, [2 / 7, 1.0]),
    "<": (lambda x, y: x < y, np.bool_, [False, False]),
}


@pytest.mark.parametrize("case", INTEGERS.values(), ids=INTEGERS.keys())
@pytest.mark.parametrize("array", [np.float64(2.5), np.array([2.5, 2.5])])
def test_integer_variables_cut_fractions_off_numpys_numbers(case: Any, array: Any) -> None:
    function, dtype, expected = case
    eager = function(tf.Variable([7, 2]), array)
    assert eager.dtype == tf.as_dtype(dtype)
    assert eager.tolist() == expected
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.Variable([7, 2])
        results = function(variable, array), function(tf.constant([7, 2]), array)
        session.run(tf.compat.v1.global_variables_initializer())
        for value in session.run(results):
            assert (value.dtype, value.tolist()) == (dtype, expected)


def test_booleans_of_a_graph_take_arrays_of_numbers() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        values = session.run(tf.constant([True, False]) | np.array([0, 2]))
    assert values.tolist() == [True, True]
