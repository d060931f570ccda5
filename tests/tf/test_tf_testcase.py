"""`tf.test.TestCase`: what its assertions pass and what they refuse, and its sessions."""

from __future__ import annotations

import unittest
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import thalweg.tf as tf
import thalweg.tf.compat.v1 as v1
from thalweg._base.execution_context import process
from thalweg.errors import InvalidArgumentError

NAN = float("nan")
ONES = np.ones(3, "f4")
HALF = torch.ones(3, dtype=torch.float16)
BF16 = torch.ones(3, dtype=torch.bfloat16)


class Case(tf.test.TestCase):
    """One to ask."""

    def runTest(self) -> None:
        """Nothing."""


def raising(kind: type[Exception], text: str) -> Callable[[Any], None]:
    def block(manager: Any) -> None:
        with manager:
            raise kind(text)

    return block


# assertion: calls that pass, calls that fail
ASSERTIONS: dict[str, tuple[list[Callable[[Any], Any]], list[Callable[[Any], Any]]]] = {
    "assertAllClose": (
        [
            lambda t: t.assertAllClose([1.0, NAN], torch.tensor([1.0 + 5e-7, NAN])),
            lambda t: t.assertAllClose({"a": ONES, "b": [1.0]}, {"a": ONES, "b": [1.0]}),
            lambda t: t.assertAllClose([ONES, np.ones((2, 2))], [torch.ones(3), np.ones((2, 2))]),
            lambda t: t.assertAllClose(1.0, 1.1, rtol=0.1, atol=0),
            lambda t: t.assertAllClose(tf.Variable([1.0]), [1.0]),
            lambda t: t.assertAllClose((1.0, {"a": [2.0]}), (1.0, {"a": [2.0]})),
        ],
        [
            lambda t: t.assertAllClose([1.0], [1.00001]),
            lambda t: t.assertAllClose([1.0], [[1.0]]),
            lambda t: t.assertAllClose([1.0], [NAN]),
            lambda t: t.assertAllClose({"a": 1.0}, {"b": 1.0}),
            lambda t: t.assertAllClose([ONES, np.ones(2)], [ONES]),
        ],
    ),
    "assertAllCloseAccordingToType": (
        [
            lambda t: t.assertAllCloseAccordingToType(HALF, HALF + 0.001),
            lambda t: t.assertAllCloseAccordingToType(BF16, BF16 + 0.008),
            lambda t: t.assertAllCloseAccordingToType(ONES, ONES + 1e-3, float_rtol=1e-2),
            lambda t: t.assertAllCloseAccordingToType(ONES, np.float16(ONES + 1e-3)),
        ],
        [
            lambda t: t.assertAllCloseAccordingToType(ONES, ONES + 1e-3),
            lambda t: t.assertAllCloseAccordingToType(HALF, HALF + 0.01),
            lambda t: t.assertAllCloseAccordingToType(np.ones(3), np.ones(3) + 1e-3, half_rtol=1),
        ],
    ),
    "assertNotAllClose": (
        [lambda t: t.assertNotAllClose([1.0], [1.1])],
        [lambda t: t.assertNotAllClose([1.0], [1.0 + 1e-7])],
    ),
    "assertAllEqual": (
        [
            lambda t: t.assertAllEqual(torch.tensor([1, 2]), [1, 2]),
            lambda t: t.assertAllEqual([NAN, 1.0], [NAN, 1.0]),
            lambda t: t.assertAllEqual(["a", "b"], ["a", "b"]),
        ],
        [
            lambda t: t.assertAllEqual([1, 2], [1, 3]),
            lambda t: t.assertAllEqual([1, 1], 1),
        ],
    ),
    "assertNotAllEqual": (
        [lambda t: t.assertNotAllEqual([1], [2])], [lambda t: t.assertNotAllEqual([1], [1])],
    ),
    "comparisons": (
        [
            lambda t: t.assertAllGreater(ONES, 0), lambda t: t.assertAllGreaterEqual(ONES, 1),
            lambda t: t.assertAllLess(ONES, 2), lambda t: t.assertAllLessEqual(ONES, 1),
            lambda t: t.assertAllInRange(ONES, 0, 1), lambda t: t.assertAllInSet([1, 2], {1, 2, 3}),
        ],
        [
            lambda t: t.assertAllGreater(ONES, 1), lambda t: t.assertAllGreaterEqual(ONES, 2),
            lambda t: t.assertAllLess([0, 1], 1), lambda t: t.assertAllLessEqual(ONES, 0),
            lambda t: t.assertAllInRange(ONES, 0, 1, open_upper_bound=True),
            lambda t: t.assertAllInRange(ONES, 1, 2, open_lower_bound=True),
            lambda t: t.assertAllInSet([1, 4], {1, 2, 3}),
        ],
    ),
    "assertNear": (
        [
            lambda t: t.assertNear(1.0, 1.1, 0.2), lambda t: t.assertNear([1.0], 1.0, 0.1),
            lambda t: t.assertNear(NAN < 1, 0, 0),
            lambda t: t.assertArrayNear([1.0, 2.0], np.array([1.0, 2.05]), 0.1),
            lambda t: t.assertNDArrayNear(ONES, ONES + 0.1, 0.2),
        ],
        [
            lambda t: t.assertNear(1.0, 1.3, 0.2),
            lambda t: t.assertArrayNear([1.0], [1.0, 2.0], 1),
            lambda t: t.assertNear(1.0, NAN, 1), lambda t: t.assertArrayNear([1.0], [1.2], 0.1),
            lambda t: t.assertNDArrayNear(ONES, ONES + 0.1, 0.17),
        ],
    ),
    "assertShapeEqual": (
        [lambda t: t.assertShapeEqual(np.ones((2, 3)), torch.ones(2, 3))],
        [lambda t: t.assertShapeEqual(np.ones((2, 3)), torch.ones(3, 2))],
    ),
    "assertDTypeEqual": (
        [
            lambda t: t.assertDTypeEqual(torch.ones(1), np.float32),
            lambda t: t.assertDTypeEqual([np.ones(1), torch.ones(1).double()], tf.float64),
        ],
        [lambda t: t.assertDTypeEqual(torch.ones(1), tf.float16)],
    ),
    "errors": (
        [
            lambda t: raising(InvalidArgumentError, "bad shape")(t.assertRaisesOpError("bad s")),
            lambda t: raising(RuntimeError, "sizes")(t.assertRaisesOpError(lambda e: True)),
            lambda t: raising(ValueError, "x")(t.assertRaisesWithPredicateMatch(ValueError, "x")),
        ],
        [
            lambda t: raising(RuntimeError, "other")(t.assertRaisesOpError("bad shape")),
            lambda t: raising(ValueError, "x")(
                t.assertRaisesWithPredicateMatch(ValueError, lambda error: False)
            ),
        ],
    ),
    "containers": (
        [
            lambda t: t.assertLen([1], 1), lambda t: t.assertEmpty(()),
            lambda t: t.assertNotEmpty([0]), lambda t: t.assertItemsEqual([1, 2], [2, 1]),
            lambda t: t.assertStartsWith("abc", "ab"),
        ],
        [
            lambda t: t.assertLen([1], 2), lambda t: t.assertEmpty([0]),
            lambda t: t.assertNotEmpty([]), lambda t: t.assertItemsEqual([1], [1, 1]),
            lambda t: t.assertStartsWith("abc", "b"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ASSERTIONS)
def test_assertions_pass_and_fail(name: str) -> None:
    case = Case()
    passing, failing = ASSERTIONS[name]
    for call in passing:
        call(case)
    for call in failing:
        with pytest.raises(AssertionError):
            call(case)


def test_a_block_that_raises_nothing_fails() -> None:
    with pytest.raises(AssertionError, match="was not raised"), Case().assertRaisesOpError(""):
        pass


def ran(kind: type[unittest.TestCase]) -> unittest.TestResult:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(kind).run(result)
    return result


def test_sessions_of_a_test_in_a_graph() -> None:
    class InGraph(tf.test.TestCase):
        def test_cached(self) -> None:
            with self.cached_session() as session:
                w = tf.Variable([1.0])
                session.run(w.initializer)
            with self.test_session() as same_session:
                self.assertIs(same_session, session)
                self.assertAllEqual(self.evaluate({"w": w * 2})["w"], [2.0])
            self.assertAllClose(w, [1.0])
            with self.assertRaisesRegex(ValueError, "cached session"):
                self.cached_session(graph=tf.Graph()).__enter__()

        def test_new(self) -> None:
            self.assertEqual(v1.global_variables(), [])  # those of the other test are gone
            with self.session() as session, self.session(graph=tf.Graph()) as second:
                self.assertIsNot(session.graph, second.graph)
            with self.session() as session:
                session.run(tf.constant(1.0))
            self.assertTrue(session.closed)

        def test_numbers(self) -> None:
            self.assertAllEqual(np.random.rand(2), np.random.RandomState(87654321).rand(2))

    tf.compat.v1.disable_eager_execution()
    try:
        result = ran(InGraph)
    finally:
        tf.compat.v1.enable_eager_execution()
    assert not (result.errors or result.failures), [*result.errors, *result.failures]
    assert (result.testsRun, len(result.skipped)) == (4, 1)  # test_session is no test


def test_sessions_of_a_test_in_eager_mode() -> None:
    class Eager(tf.test.TestCase):
        def test_it(self) -> None:
            with self.cached_session() as session, self.session() as second:
                w = tf.Variable([1.0])
                self.assertAllEqual(session.run([w, w + 1])[1], second.run(w + 1))
                self.assertIsInstance(session.run(w), np.ndarray)
                with self.assertRaisesRegex(ValueError, "fed"):
                    session.run(w, {w: 1})
            self.assertAllEqual(self.evaluate(lambda: w * 2), [2.0])
            folder = self.get_temp_dir()
            self.assertTrue(tf.io.gfile.isdir(folder))
            self.assertNotEqual(folder, self.get_temp_dir())

    result = ran(Eager)
    assert not (result.errors or result.failures), [*result.errors, *result.failures]


@pytest.fixture
def unsettled() -> Iterator[None]:
    process.is_mode_fixed = False
    yield
    v1.enable_v2_behavior()


def test_tests_of_version_1_are_in_graph_mode(unsettled: None) -> None:
    class OfVersion1(v1.test.TestCase):
        def test_it(self) -> None:
            with self.test_session():
                self.assertIsInstance(v1.placeholder(tf.float32), tf.Tensor)

    result = ran(OfVersion1)
    assert not (result.errors or result.failures), [*result.errors, *result.failures]


def test_gpu_queries_describe_the_machine() -> None:
    assert tf.test.is_gpu_available() == torch.cuda.is_available()
    assert bool(tf.test.gpu_device_name()) == torch.cuda.is_available()
    assert tf.test.is_built_with_cuda() == (torch.version.cuda is not None)
    assert v1.test.mock is unittest.mock
