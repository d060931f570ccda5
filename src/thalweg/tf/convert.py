"""Conversion of values of TensorFlow code to torch tensors, or to symbolic tensors in graph mode.

Annotations of `thalweg.tf` say Tensor where graph mode has a symbolic tensor in its place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg._core.nest import leaves_of
from thalweg._graph.default_graph import has_symbol
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import as_asked, check_held, dtype_name, tensor_of, to_tensor

F = TypeVar("F", bound=Callable[..., Any])
Result = TypeVar("Result")


def is_tensor(value: object) -> bool:
    """Return True if a value is a tensor or variable of torch, of a graph or of Keras."""
    return isinstance(tensor_of(value), Tensor | _graph.SymbolicTensor) or has_symbol(value)


def tensor(value: object, dtype: object = None, name: str | None = None) -> Tensor:
    """Return a tensor unchanged; convert other values, in graph mode to constants.

    Args:
        value: A tensor, variable, slices (made dense), array, number, or nested lists of these.
        dtype: Dtype of a new tensor.
        name: Name of a new node.

    Raises:
        LayoutError: The storage of a tensor is too small.
    """
    value = _graph.resolve(tensor_of(value))
    if has_symbol(value) and not _graph.executing_eagerly():
        return _graph.graph_variable_of(value)
    if isinstance(value, Tensor):
        check_held(value)
    if isinstance(value, Tensor | _graph.SymbolicTensor):
        return value  # pyright: ignore[reportReturnType]
    if isinstance(value, _graph.SymbolicSlices):
        return _graph.convert_to_tensor(value)
    if isinstance(value, IndexedSlices):
        return value.to_dense()
    if isinstance(value, list | tuple) and any(map(_holds_tensor, value)):
        return stacked(tensors_alike(value, dtype), name=name)
    if _graph.executing_eagerly():
        return to_tensor(value, dtype)
    return _graph.constant(value, dtype, name=name)


def _holds_tensor(item: object) -> bool:
    if isinstance(item, list | tuple):
        return any(map(_holds_tensor, item))
    return is_tensor(item)


def tensors_alike(values: Sequence[object], dtype: object = None) -> list[Tensor]:
    """Return values as tensors; arrays and numbers get the dtype of the first tensor in `values`.

    Args:
        values: Tensors, arrays, numbers or nested lists of these.
        dtype: Optional dtype of arrays and numbers, instead of the first tensor's.
    """
    first = next((leaf for leaf in leaves_of(list(values)) if is_tensor(leaf)), None)
    if dtype is None and first is not None:
        dtype = tensor(first).dtype
    is_eager = _graph.executing_eagerly()
    return [
        as_asked(value, dtype) if is_eager and _is_array(value) else tensor(value, dtype)
        for value in values
    ]


def check_same_dtype(function: str, operands: object) -> None:
    """Raise InvalidTypeError if tensors in a nest have different dtypes, as TensorFlow does.

    Other values, and symbolic tensors of unknown dtype, are ignored. `function` begins the message.
    """
    dtypes = [tensor(leaf).dtype for leaf in leaves_of(operands) if is_tensor(leaf)]
    names = dict.fromkeys(dtype_name(dtype) for dtype in dtypes if dtype is not None)
    if len(names) > 1:
        raise InvalidTypeError(
            f"{function} takes tensors of one dtype, not of {' and '.join(names)}. Cast them."
        )


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic)


def stacked(tensors: Sequence[object], axis: int = 0, name: str | None = None) -> Tensor:
    """Stack tensors along a new dimension."""
    return call(lambda *parts: torch.stack(parts, axis), *tensors, name=name or "stack")


def newer_axis(axis: Any, older_axis: Any, older_name: str) -> Any:
    """Return `axis`; if `axis` is None, return `older_axis`, its value under an older name.

    Raise InvalidArgumentError if neither is None.
    """
    if axis is not None and older_axis is not None:
        raise InvalidArgumentError(f"Cannot specify both '{older_name}' and 'axis'.")
    return older_axis if axis is None else axis


def pair(x: object, y: object) -> tuple[Tensor, Tensor]:
    """Return two operands as tensors. A value that is not a tensor gets the dtype of the tensor."""
    if is_tensor(y) and not is_tensor(x):
        y = tensor(y)
        return tensor(x, y.dtype), y
    x = tensor(x)
    return x, tensor(y, x.dtype)


def call(function: Callable[..., Result], *args: object, name: str | None = None) -> Result:
    """Return `function(*args)`, or a node that calls it if an argument is symbolic."""
    symbol = next((arg for arg in leaves_of(args) if isinstance(arg, _graph.SymbolicTensor)), None)
    if symbol is None:
        return function(*args)
    return symbol.graph.call(function, args, name=name)


def named_in_graphs(position: int, older: str) -> Callable[[F], F]:
    """Return a decorator that rejects ambiguous positional arguments in graph mode.

    TensorFlow 1 has other parameters from `position` on. In graph mode, the decorated function
    raises InvalidTypeError for more than `position` positional arguments.

    Args:
        position: Index of the first ambiguous argument.
        older: Name of TensorFlow 1's argument at this position, for the message.
    """

    def decorate(function: F) -> F:
        parameter = list(inspect.signature(function).parameters)[position]

        @functools.wraps(function)
        def apply(*args: object, **kwargs: object) -> Any:
            if len(args) > position and not _graph.executing_eagerly():
                function_name = function.__qualname__.removesuffix(".__new__")
                raise InvalidTypeError(
                    f"{function_name} has"
                    f" {show_value(parameter)} in place {position + 1}, where TensorFlow 1 has"
                    f" {older!r}: in graph mode give it by name, as {parameter}=..., or call what"
                    f" thalweg.tf.compat.v1 has under this name, which reads it as {older}."
                )
            return function(*args, **kwargs)

        return apply  # pyright: ignore[reportReturnType]

    return decorate


# Return sizes of a shape as ints; the shape must not be a symbolic tensor.
sizes = _graph.ints


def set_static(
    result: Result,
    dtype: torch.dtype | None = None,
    shape: Callable[[], Sequence[int | None] | None] = lambda: None,
) -> Result:
    """Set the dtype and static shape of a symbolic `result` in place; return `result`.

    Args:
        result: A tensor; an eager tensor is returned unchanged.
        dtype: The dtype if the result has none.
        shape: `shape()` returns the sizes to set, or None to set none.
    """
    if isinstance(result, _graph.SymbolicTensor):
        result.dtype = dtype if result.dtype is None else result.dtype
        static_shape = shape()
        if static_shape is not None:
            result.set_shape(static_shape)
    return result
