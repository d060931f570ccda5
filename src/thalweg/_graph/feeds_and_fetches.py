"""Inputs and outputs of a run: feeds, fetches, and their conversions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from thalweg._base.showing import show_value
from thalweg._base.static_shape import Shape, UnknownShape
from thalweg._graph.add_operation import ONLY_INSIDE
from thalweg._graph.nodes import Nodes, Operation, SymbolicTensor
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg.errors import InvalidArgumentError, InvalidTypeError, NotFoundError
from thalweg.indexed_slices import IndexedSlices, exported
from thalweg.variable import check_held, dtype_name, to_tensor

__all__ = ["convert_feeds", "copy_to_cpu", "exported", "fetched_element"]

_DTYPES = {
    np.dtype(kind): getattr(torch, np.dtype(kind).name)
    for kind in ("float32", "float64", "int32", "int64", "bool")
}
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def fetched_element(graph: Nodes, fetch: object) -> Operation | SymbolicTensor:
    """Return the operation or tensor that `Session.run` computes for `fetch`.

    `fetch` is a name, or an object that `Nodes.as_graph_element` accepts, such as a parameter.

    Raises:
        InvalidTypeError: `fetch` is another kind of object.
        InvalidArgumentError: `fetch` is of another graph, of a branch or loop, or an unknown name.
    """
    try:
        element = graph.as_graph_element(fetch)
    except NotFoundError as error:
        raise InvalidArgumentError(
            f"Fetch argument {show_value(fetch)} cannot be found: {error}"
        ) from error
    except InvalidTypeError as error:
        raise InvalidTypeError(
            f"Fetch argument"
            f" {show_value(fetch)} has invalid type {type(fetch)}, must be a string or Tensor. "
            f"({error})"
        ) from error
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"Fetch argument {show_value(fetch)} cannot be interpreted as a Tensor. ({error})"
        ) from error
    op = element if isinstance(element, Operation) else element.op
    if op.block is not None:
        raise InvalidArgumentError(f"Cannot fetch '{op.name}': it {ONLY_INSIDE}")
    return element


def convert_feeds(graph: Nodes, feeds: Mapping[object, object]) -> dict[SymbolicTensor, Any]:
    """Return {symbolic tensor: torch tensor or `IndexedSlices` of its dtype} for a `feed_dict`.

    Raises:
        InvalidTypeError: A key is not a tensor, a value is symbolic, or a conversion loses digits.
        InvalidArgumentError: A key is of another graph, or a value has another shape.
        LayoutError: The storage of a fed tensor is too small.
    """
    values: dict[SymbolicTensor, Any] = {}
    for key, value in feeds.items():
        if isinstance(key, SymbolicTensor) and key.op.graph is graph:
            tensor = _match_feed(key, value)
            if tensor is not None:
                values[key] = tensor
                continue
        for component, part in _split_slices(key, value):
            tensor, feed = _convert_feed(graph, component, part)
            values[tensor] = feed
    return values


def _split_slices(key: object, value: Any) -> list[tuple[object, Any]]:
    """Return one feed as a list of (key, value) pairs; split a tuple that is fed for slices.

    The tuple is (values, indices) or (values, indices, dense_shape), and `key` is symbolic slices.
    If an operation computes the slices, such as a gradient, return one pair: the slices' source
    tensor and `IndexedSlices`. Otherwise return a pair for each component. Return [(key, value)]
    for any other feed. Raise InvalidArgumentError for a tuple of another length.
    """
    if not isinstance(key, SymbolicSlices) or not isinstance(value, tuple):
        return [(key, value)]
    if len(value) not in (2, 3):
        raise InvalidArgumentError(
            f"Cannot feed '{key.name}' with a tuple of {len(value)}: slices take values, indices"
            " and optionally dense_shape."
        )
    components = (key.values, key.indices, key.dense_shape)
    if any(isinstance(x, SymbolicTensor) and key.source in x.op.inputs for x in components):
        return [(key.source, IndexedSlices(*value))]
    pairs = zip(components, value, strict=False)
    return [pair for pair in pairs if pair[0] is not None and pair[1] is not None]


def _match_feed(tensor: SymbolicTensor, value: Any) -> torch.Tensor | None:
    """Return `value` as a torch tensor, or None if its shape or dtype is not that of `tensor`.

    Also return None unless `value` is an array or a torch tensor. An array is copied.
    """
    kind, shape = type(value), tensor.shape
    if kind not in (np.ndarray, torch.Tensor):
        return None
    # An unknown shape is not a tuple, so the result is NotImplemented, which is true.
    if tuple.__eq__(value.shape, shape) is not True:
        return None
    if kind is np.ndarray:
        return torch.from_numpy(value.copy()) if _DTYPES.get(value.dtype) is tensor.dtype else None
    if value.dtype is not tensor.dtype:
        return None
    check_held(value, f"What is fed for '{tensor.name}'")
    return value.detach()


def _convert_feed(graph: Nodes, key: Any, value: Any) -> tuple[SymbolicTensor, object]:
    """Return (symbolic tensor, torch tensor or slices) of one feed; see `convert_feeds`."""
    tensor = key
    if not isinstance(key, SymbolicTensor) or key.graph is not graph:
        tensor = _find_tensor(graph, key)
    if isinstance(value, (SymbolicTensor, SymbolicSlices)):
        raise InvalidTypeError(
            f"Cannot feed '{tensor.name}' with the symbolic tensor '{value.name}': feeds are "
            "numbers, lists, arrays or torch tensors."
        )
    is_sparse = isinstance(value, IndexedSlices)
    for component in (value.values, value.indices) if is_sparse else (value,):
        if isinstance(component, torch.Tensor):
            check_held(component, f"What is fed for '{tensor.name}'")
    try:
        feed = _convert_value(value.values if is_sparse else value, tensor.dtype).detach()
    except InvalidTypeError as error:
        reason = "" if tensor.dtype is None else f", which has dtype {dtype_name(tensor.dtype)}"
        raise InvalidTypeError(f"Cannot feed Tensor '{tensor.name}'{reason}: {error}") from error
    # Slices have as many values as indices; their number of rows is that of the dense tensor.
    rows = (value.dense_shape or (None,))[0] if is_sparse else None
    shape = (rows, *feed.shape[1:]) if is_sparse else tuple(feed.shape)
    if not tensor.shape.accepts(shape):
        raise InvalidArgumentError(
            f"Cannot feed value of shape {shape} for Tensor '{tensor.name}', which has "
            f"shape {tuple(tensor.shape)}"
        )
    return tensor, _check_slices(value, feed, tensor.shape) if is_sparse else feed


def _check_slices(slices: IndexedSlices, values: torch.Tensor, shape: Shape) -> IndexedSlices:
    """Return `slices` with their values replaced by `values`.

    Raise InvalidArgumentError if an index is not below the number of rows. This number is the first
    size in `slices.dense_shape`, or else in `shape`, the static shape of the fed tensor. If both
    are unknown, nothing is checked.
    """
    rows = slices.dense_shape[0] if slices.dense_shape else None
    if rows is None and not isinstance(shape, UnknownShape):
        rows = shape[0]
    if rows is not None:
        slices.check_range(rows)
    return IndexedSlices(values, slices.indices, slices.dense_shape)


def _convert_value(value: object, dtype: torch.dtype | None) -> torch.Tensor:
    """Return a value as a tensor of `dtype`, or of the value's own dtype if `dtype` is None.

    Floats without fractions are accepted for integers. Raise InvalidTypeError for values that do
    not fit the dtype.
    """
    try:
        return to_tensor(value, dtype)
    except InvalidTypeError:
        if dtype not in _INTEGERS:
            raise
        array = to_tensor(value)
        valid = array.is_floating_point() and (array.isfinite() & (array.trunc() == array)).all()
        if not valid:
            raise
        return array.to(dtype)


def _find_tensor(graph: Nodes, key: object) -> SymbolicTensor:
    """Return the symbolic tensor of the graph for a key of `feed_dict`, or raise an error."""
    try:
        element = graph.as_graph_element(key)
    except (InvalidTypeError, InvalidArgumentError, NotFoundError) as error:
        kind = InvalidTypeError if isinstance(error, InvalidTypeError) else InvalidArgumentError
        raise kind(f"Cannot interpret feed_dict key {key!r} as Tensor: {error}") from error
    if isinstance(element, Operation):
        raise InvalidTypeError(
            f"Cannot interpret feed_dict key {key!r} as Tensor: it is an operation."
        )
    return element


def copy_to_cpu(value: torch.Tensor) -> torch.Tensor:
    """Return a copy of a value as a plain tensor in CPU memory."""
    source = value.detach()
    return source.clone() if source.device.type == "cpu" else source.cpu()
