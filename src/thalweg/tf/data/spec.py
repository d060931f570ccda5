"""Specifications of a dataset's elements: dtypes and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from thalweg import _graph
from thalweg._base.execution_context import eagerly, is_symbolic
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.nest import mapped
from thalweg._graph.shapes import infer_outputs
from thalweg.errors import InvalidArgumentError
from thalweg.tf.convert import tensor
from thalweg.variable import as_dtype


class TensorSpec:
    """Shape and dtype of a tensor.

    Args:
        shape: Sizes, None for an unknown size; or None for an unknown number of sizes.
        dtype: The dtype, or None.
        name: Ignored.
    """

    def __init__(self, shape: object, dtype: Any = torch.float32, name: str | None = None) -> None:
        self.shape = _graph.Shape(shape)
        self.dtype = None if dtype is None else as_dtype(dtype)

    def __repr__(self) -> str:
        shape = None if self.shape is UNKNOWN else tuple(self.shape)
        return f"TensorSpec(shape={shape}, dtype={self.dtype})"


def converted(nest: Any, dtypes: Any = None) -> Any:
    """Convert the leaves of a nest of tuples and dicts to tensors; a list becomes one tensor.

    `dtypes` is a nest of dtypes, a single dtype for all tensors, or None.
    """
    if isinstance(nest, dict):
        return {key: converted(leaf, dtypes and dtypes[key]) for key, leaf in nest.items()}
    if isinstance(nest, tuple):
        kinds = dtypes if isinstance(dtypes, tuple) else [dtypes] * len(nest)
        return tuple(converted(leaf, kind) for leaf, kind in zip(nest, kinds, strict=True))
    if is_symbolic(nest):
        return nest
    with eagerly():
        return tensor(np.asarray(nest) if isinstance(nest, range) else nest, dtypes)


def spec_of(nest: object) -> Any:
    """Return the specs of tensors."""
    return mapped(lambda each: TensorSpec(each.shape, each.dtype), nest)


def get_output_types(dataset_or_iterator: Any) -> Any:
    """Return the dtypes of an element."""
    return mapped(lambda each: each.dtype, dataset_or_iterator.element_spec)


def get_output_shapes(dataset_or_iterator: Any) -> Any:
    """Return the shapes of an element."""
    return mapped(lambda each: each.shape, dataset_or_iterator.element_spec)


def row(spec: TensorSpec) -> TensorSpec:
    """Return the specification of one row."""
    return TensorSpec(spec.shape[1:], spec.dtype)


def batch(spec: TensorSpec, size: int | None) -> TensorSpec:
    """Return the specification of `size` stacked tensors."""
    return TensorSpec(None if spec.shape is UNKNOWN else [size, *spec.shape], spec.dtype)


def shapes_for(spec: object, shapes: Any) -> list[tuple[int | None, ...] | None]:
    """Return a list with the shape of each tensor of an element; flatten the nest `shapes`.

    None is an unknown size or shape. Raise InvalidArgumentError if `shapes` does not have the
    structure of `spec`.
    """
    if (pairs := _pair_specs(spec, shapes, "padded_shapes")) is not None:
        return [shape for pair in pairs for shape in shapes_for(*pair)]
    if shapes is None:
        return [None]
    sizes = [shapes] if isinstance(shapes, int) else shapes
    return [tuple(None if size in (None, -1) else int(size) for size in sizes)]


def values_for(spec: Any, values: Any) -> list[Any]:
    """Return a list with the padding value of each tensor of an element.

    `values` has the structure of `spec`, or is a single value for all tensors. None is 0.

    Raises:
        InvalidArgumentError: `values` has another structure, or a value is symbolic.
        TypeError: A value does not fit a tensor's dtype.
    """
    # A single value is for all tensors.
    if not isinstance(values, dict | tuple | list):
        values = mapped(lambda _: values, spec)
    if (pairs := _pair_specs(spec, values, "padding_values")) is not None:
        return [value for pair in pairs for value in values_for(*pair)]
    value, spec_dtype = 0 if values is None else _as_constant(values), as_dtype(spec.dtype)
    if isinstance(value, float) and not spec_dtype.is_floating_point:
        raise TypeError(f"padding_values has {value} for a tensor of {spec_dtype}.")
    return [value]


def _pair_specs(spec: Any, nest: Any, argument: str) -> list[tuple[object, object]] | None:
    """Return (item of `spec`, item of `nest`) pairs; return None if `spec` is a leaf.

    Raise InvalidArgumentError if the structures differ; `argument` is a name for the message.
    """
    if isinstance(spec, dict):
        keys = spec if nest is None else nest
        if isinstance(keys, dict) and keys.keys() == spec.keys():
            return [(inner_spec, nest and nest[key]) for key, inner_spec in spec.items()]
    elif isinstance(spec, tuple):
        items = [None] * len(spec) if nest is None else nest
        if isinstance(items, tuple | list) and len(items) == len(spec):
            return list(zip(spec, items, strict=True))
    else:
        return None
    raise InvalidArgumentError(f"{argument} is {nest}, and elements are {spec}.")


def _as_constant(value: Any) -> object:
    if is_symbolic(value):
        if value.op.type != "Const":
            raise InvalidArgumentError(f"padding_values must be constants; '{value.name}' is none.")
        value = value.op.function()
    return value.item() if hasattr(value, "item") else value


def padded(spec: TensorSpec, size: int | None, shape: Any) -> TensorSpec:
    """Return the specification of `size` tensors, padded to a shape and stacked."""
    rank = spec.shape.ndims
    sizes = shape if shape is not None or rank is None else [None] * rank
    return TensorSpec(None if sizes is None else [size, *sizes], spec.dtype)


def pair_specs(types: Any, shapes: Any) -> Any:
    """Return a nest of `TensorSpec` for nests of dtypes and shapes; lists become tuples.

    `shapes` is None for unknown shapes.
    """
    if isinstance(types, dict):
        return {key: pair_specs(kind, shapes and shapes[key]) for key, kind in types.items()}
    if isinstance(types, tuple | list):
        shapes_in_order = shapes if shapes is not None else [None] * len(types)
        return tuple(
            pair_specs(kind, shape) for kind, shape in zip(types, shapes_in_order, strict=True)
        )
    return TensorSpec(shapes, types)


def after(function: Callable[..., object], spec: object, first: Callable[[], Iterator[Any]]) -> Any:
    """Return the specification of a function's results, from a call on tensors without values.

    Args:
        function: `function(element)` returns the result.
        spec: The specification of `element`.
        first: `first()` returns an iterator of real results. It is called only if the function
            needs values.
    """
    with _graph.Graph().as_default():
        symbols = mapped(lambda each: _graph.placeholder(each.dtype or "float32", each.shape), spec)
        outputs = infer_outputs(lambda element: converted(function(element)), (symbols,), "map")
    if not (isinstance(outputs, _graph.Output) and outputs.shape is None):
        return spec_of(outputs)
    try:
        element = next(first())
    except Exception:
        return spec_of(outputs)
    return mapped(lambda each: TensorSpec(None, each.dtype), element)
