"""Assertions of `tf.test.TestCase` about arrays and tensors."""

from __future__ import annotations

import contextlib
import re
import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from thalweg import _graph
from thalweg._core.nest import leaves_of, mapped
from thalweg._graph.feeds_and_fetches import exported
from thalweg.errors import ThalwegError
from thalweg.variable import as_dtype, tensor_of

# Prefixes of the tolerances of `assertAllCloseAccordingToType`, by dtype.
_KINDS = {"float64": "", "float32": "float_", "float16": "half_", "bfloat16": "bfloat16_"}


class Comparing(unittest.TestCase):
    """Mixin of the assertions; a derived class defines `evaluate`."""

    def evaluate(self, tensors: object) -> Any:
        """Return the values of tensors."""
        raise NotImplementedError

    def _array_of(self, value: object) -> np.ndarray[Any, Any]:
        return _array(self.evaluate(value) if is_symbolic(value) else value)

    def assertAllClose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Fail unless |a - b| <= atol + rtol |b| for all elements; two NaNs are equal.

        `a` and `b` may be nested, and must have equal structures and shapes.
        """
        if isinstance(a, Mapping) or isinstance(b, Mapping):
            self.assertEqual(set(a), set(b), msg)
            for key in a:
                self.assertAllClose(a[key], b[key], rtol, atol, msg)
            return
        try:
            actual, expected = self._array_of(a), self._array_of(b)
        except ValueError:
            # NumPy makes no array of a list of arrays with different shapes: compare the items.
            actual = expected = np.array(None)
        if object in (actual.dtype, expected.dtype):
            self.assertEqual(len(a), len(b), msg)
            for actual, expected in zip(a, b, strict=True):
                self.assertAllClose(actual, expected, rtol, atol, msg)
            return
        self._same_shape(actual, expected, msg)
        np.testing.assert_allclose(actual, expected, rtol, atol, equal_nan=True, err_msg=msg or "")

    def assertAllCloseAccordingToType(
        self,
        a: object,
        b: object,
        rtol: float = 1e-6,
        atol: float = 1e-6,
        float_rtol: float = 1e-6,
        float_atol: float = 1e-6,
        half_rtol: float = 1e-3,
        half_atol: float = 1e-3,
        bfloat16_rtol: float = 1e-2,
        bfloat16_atol: float = 1e-2,
        msg: str | None = None,
    ) -> None:
        """Call `assertAllClose` with tolerances for the dtypes of `a` and `b`.

        The relative tolerance is the largest of `rtol` and, for each of the two dtypes, an argument
        such as `half_rtol`; the absolute tolerance likewise.
        """
        tolerances = locals()
        for value in (a, b):
            prefix = _KINDS.get(_dtype_name(value), "")
            rtol, atol = (
                max(rtol, tolerances[f"{prefix}rtol"]),
                max(atol, tolerances[f"{prefix}atol"]),
            )
        self.assertAllClose(a, b, rtol, atol, msg)

    def assertNotAllClose(
        self, a: object, b: object, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Fail if all numbers are close."""
        try:
            self.assertAllClose(a, b, rtol, atol)
        except AssertionError:
            return
        self.fail(msg or "The two values are close at all elements.")

    def assertAllEqual(self, a: object, b: object, msg: str | None = None) -> None:
        """Fail unless two arrays have the same shape and elements; NaN is equal to NaN."""
        actual, expected = self._array_of(a), self._array_of(b)
        self._same_shape(actual, expected, msg)
        np.testing.assert_array_equal(actual, expected, err_msg=msg or "")

    def assertNotAllEqual(self, a: object, b: object, msg: str | None = None) -> None:
        """Fail if shapes and all elements are equal."""
        try:
            self.assertAllEqual(a, b)
        except AssertionError:
            return
        self.fail(msg or "The two values are equal at all elements.")

    def assertAllGreater(self, a: object, comparison_target: object) -> None:
        """Fail unless all elements are greater."""
        self._assert_all(
            a, lambda each: each > comparison_target, f"greater than {comparison_target}"
        )

    def assertAllGreaterEqual(self, a: object, comparison_target: object) -> None:
        """Fail if an element is less."""
        self._assert_all(a, lambda each: each >= comparison_target, f"at least {comparison_target}")

    def assertAllLess(self, a: object, comparison_target: object) -> None:
        """Fail unless all elements are less."""
        self._assert_all(a, lambda each: each < comparison_target, f"less than {comparison_target}")

    def assertAllLessEqual(self, a: object, comparison_target: object) -> None:
        """Fail if an element is greater."""
        self._assert_all(a, lambda each: each <= comparison_target, f"at most {comparison_target}")

    def assertAllInRange(
        self,
        target: object,
        lower_bound: object,
        upper_bound: object,
        open_lower_bound: bool = False,
        open_upper_bound: bool = False,
    ) -> None:
        """Fail unless all elements are between the bounds, or equal to a bound that is not open."""
        (self.assertAllGreater if open_lower_bound else self.assertAllGreaterEqual)(
            target, lower_bound
        )
        (self.assertAllLess if open_upper_bound else self.assertAllLessEqual)(target, upper_bound)

    def assertAllInSet(self, target: object, expected_set: Any) -> None:
        """Fail unless all elements are among those expected."""
        expected_elements = list(expected_set)
        self._assert_all(
            target, lambda each: np.isin(each, expected_elements), f"in {expected_elements}"
        )

    def assertNear(self, f1: object, f2: object, err: object, msg: str | None = None) -> None:
        """Fail if two numbers differ by more than `err`."""
        actual, expected = self._array_of(f1).item(), self._array_of(f2).item()
        is_close = actual == expected or abs(actual - expected) <= err
        self.assertTrue(is_close, f"{actual} != {expected} +/- {err}{f' ({msg})' if msg else ''}")

    def assertArrayNear(
        self, farray1: Any, farray2: Any, err: object, msg: str | None = None
    ) -> None:
        """Fail unless two lists have equal lengths and differ by at most `err` in each number."""
        self.assertEqual(len(farray1), len(farray2), msg)
        for actual, expected in zip(farray1, farray2, strict=True):
            self.assertNear(actual, expected, err, msg)

    def assertNDArrayNear(
        self, ndarray1: Any, ndarray2: Any, err: Any, msg: str | None = None
    ) -> None:
        """Fail unless the norm of the difference is less than `err`."""
        norm = np.linalg.norm(self._array_of(ndarray1) - self._array_of(ndarray2))
        self.assertTrue(norm < err, msg or f"The norm of the difference, {norm}, is not < {err}.")

    def assertShapeEqual(self, input_a: object, input_b: object, msg: str | None = None) -> None:
        """Fail unless two arrays or tensors have the same shape."""
        self.assertEqual(_shape_of(input_a), _shape_of(input_b), msg)

    def assertDTypeEqual(self, target: object, expected_dtype: object) -> None:
        """Fail unless an array or tensor, or each of a list of them, has the dtype."""
        targets = target if isinstance(target, list | tuple) else [target]
        for value in targets:
            self.assertEqual(_dtype_name(value), str(as_dtype(expected_dtype)).split(".")[-1])

    def assertStartsWith(self, actual: str, expected_start: str, msg: str | None = None) -> None:
        """Fail unless a string has the prefix."""
        self.assertTrue(
            actual.startswith(expected_start), msg or f"{actual!r} begins otherwise than expected."
        )

    def assertEmpty(self, container: Any, msg: str | None = None) -> None:
        """Fail if a container has elements."""
        self.assertEqual(len(container), 0, msg)

    def assertNotEmpty(self, container: Any, msg: str | None = None) -> None:
        """Fail if a container has no elements."""
        self.assertNotEqual(len(container), 0, msg)

    def assertLen(self, container: Any, expected_len: int, msg: str | None = None) -> None:
        """Fail unless a container has this number of elements."""
        self.assertEqual(len(container), expected_len, msg)

    def assertItemsEqual(self, first: Any, second: Any, msg: str | None = None) -> None:
        """Compare as `assertCountEqual` does."""
        self.assertCountEqual(first, second, msg)

    @contextlib.contextmanager
    def assertRaisesWithPredicateMatch(
        self, exception_type: Any, expected_err_re_or_predicate: str | Callable[[Any], bool]
    ) -> Iterator[None]:
        """Fail unless the `with` block raises an error that matches a regex or a predicate."""
        matcher = expected_err_re_or_predicate
        try:
            yield
        except exception_type as error:
            is_match = matcher(error) if callable(matcher) else re.search(matcher, str(error))
            if not is_match:
                raise AssertionError(f"It is another {type(error).__name__}: {error}") from error
        else:
            self.fail(f"{exception_type} was not raised.")

    def assertRaisesOpError(
        self, expected_err_re_or_predicate: str | Callable[[Any], bool]
    ) -> contextlib.AbstractContextManager[None]:
        """Fail unless the block raises an error of thalweg or torch that matches."""
        kinds = (ThalwegError, RuntimeError, IndexError, TypeError)
        return self.assertRaisesWithPredicateMatch(kinds, expected_err_re_or_predicate)

    def _same_shape(self, actual: Any, expected: Any, msg: str | None) -> None:
        self.assertEqual(
            actual.shape,
            expected.shape,
            msg or f"Shape mismatch: {actual.shape}, not {expected.shape}.",
        )

    def _assert_all(
        self, target: object, predicate: Callable[[Any], object], description: str
    ) -> None:
        array = self._array_of(target)
        bad = array[~np.asarray(predicate(array))]
        self.assertEqual(
            bad.size, 0, f"{bad.size} elements are not {description}, such as {bad[:5]}."
        )


def _dtype_name(value: object) -> str:
    dtype = getattr(value, "dtype", None)
    if dtype is None and isinstance(value, Sequence) and len(value):
        return _dtype_name(value[0])
    if dtype is None:
        dtype = np.asarray(value).dtype
    return str(dtype).split(".")[-1] if isinstance(dtype, torch.dtype) else np.dtype(dtype).name


def _shape_of(value: Any) -> tuple[int | None, ...]:
    shape = getattr(value, "shape", None)
    return tuple(np.shape(value) if shape is None else shape)


def is_symbolic(value: object) -> bool:
    """Return True if a session must compute a part of the value."""
    kinds = _graph.SymbolicTensor | _graph.SymbolicSlices | _graph.Operation
    return any(isinstance(leaf, kinds) for leaf in leaves_of(value))


def computed(value: object) -> Any:
    """Return a nest, or a function's result, with arrays for eager tensors."""
    if callable(value) and not isinstance(value, torch.Tensor):
        value = value()
    return mapped(lambda leaf: exported(tensor_of(leaf)), value)


def _array(value: object) -> np.ndarray[Any, Any]:
    """Return numbers as an array, bfloat16 as float32."""
    if isinstance(value, list | tuple):
        return np.array([_array(element) for element in value])
    value = tensor_of(value)
    if isinstance(value, torch.Tensor):
        value = exported(value.float() if value.dtype == torch.bfloat16 else value)
    return np.asarray(value)
