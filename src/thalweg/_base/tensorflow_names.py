"""TensorFlow's attributes of dtypes, shapes, tensors and variables, for torch's classes.

Classes of this library could not replace torch's: gradients have torch's types, `torch.dtype` has
no subclasses, and `torch.zeros(n, dtype=...)` accepts nothing else. `tensor_patching` adds the
missing names to torch's classes; `Variable` always has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from thalweg._base.added_dtypes import added_type
from thalweg._base.execution_context import TensorReference, handle_of, process
from thalweg._base.scatter import UPDATES, scatter
from thalweg._base.static_shape import Shape
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import Variable, as_dtype, check_held, dtype_name, name_of, to_tensor


def _find_numpy_type(dtype: torch.dtype) -> type[Any]:
    """Return NumPy's scalar type for a dtype; without one, the scalar type of ml_dtypes.

    Raises:
        InvalidTypeError: There is neither, or ml_dtypes is not installed.
    """
    try:
        return torch.empty(0, dtype=dtype, device="cpu").numpy().dtype.type
    except TypeError:
        scalar_type = added_type(dtype)
    if scalar_type is None:
        raise InvalidTypeError(f"NumPy has no {dtype_name(dtype)}.")
    return scalar_type


def _find_limits(dtype: torch.dtype) -> tuple[object, object]:
    """Return the smallest and the largest number of a dtype; False and True for bool.

    Raises:
        InvalidTypeError: The dtype is complex.
    """
    if dtype == torch.bool:
        return False, True
    if dtype.is_floating_point:
        info: Any = torch.finfo(dtype)
        if dtype != torch.bfloat16:
            info = np.finfo(_find_numpy_type(dtype))
        return info.min, info.max
    if dtype.is_complex:
        raise InvalidTypeError(f"Cannot find the limits of {dtype_name(dtype)}.")
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _is_integer(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _is_compatible(dtype: torch.dtype, other: object) -> bool:
    try:
        return dtype == as_dtype(other)
    except InvalidTypeError:
        return False


_DTYPE_NAMES = {
    "base_dtype": property(lambda dtype: dtype),
    "name": property(dtype_name),
    "real_dtype": property(lambda dtype: dtype.to_real()),
    "as_numpy_dtype": property(_find_numpy_type),
    "is_floating": property(lambda dtype: dtype.is_floating_point),
    "is_integer": property(_is_integer),
    "is_bool": property(lambda dtype: dtype == torch.bool),
    "is_unsigned": property(lambda dtype: _is_integer(dtype) and not dtype.is_signed),
    "is_quantized": property(lambda dtype: False),
    "is_numpy_compatible": property(lambda dtype: dtype != torch.bfloat16),
    "is_compatible_with": _is_compatible,
    "size": property(lambda dtype: dtype.itemsize),
    "min": property(lambda dtype: _find_limits(dtype)[0]),
    "max": property(lambda dtype: _find_limits(dtype)[1]),
    "limits": property(_find_limits),
    "_is_ref_dtype": property(lambda dtype: False),
}

_SHAPE_NAMES = {
    name: vars(Shape)[name]
    for name in (
        "ndims", "rank", "dims", "as_list", "is_fully_defined", "num_elements",
        "is_compatible_with", "assert_is_compatible_with", "assert_has_rank",
        "assert_is_fully_defined", "with_rank", "with_rank_at_least", "with_rank_at_most",
        "merge_with", "concatenate",
    )
}  # fmt: skip


def _set_shape(tensor: torch.Tensor, shape: Any) -> None:
    if shape is not None and not Shape.is_compatible_with(Shape(tensor.shape), shape):
        sizes = tuple(tensor.shape)
        raise InvalidArgumentError(f"A tensor of shape {sizes} cannot have shape {tuple(shape)}.")


def _reference(tensor: torch.Tensor) -> TensorReference:
    return TensorReference(tensor)


def _get_shape(tensor: torch.Tensor) -> Shape:
    return Shape(tensor.shape)


_TENSOR_NAMES: dict[str, Callable[..., Any]] = {
    "get_shape": _get_shape,
    "set_shape": _set_shape,
    "ref": _reference,
    "experimental_ref": _reference,
}


class VariableOp(NamedTuple):
    """Value of a variable's `op` in eager mode."""

    name: str
    type: str
    device: torch.device
    graph: None = None


def _op(var: torch.Tensor) -> object:
    handle = handle_of(var)
    return VariableOp(_shared_name(var), "VarHandleOp", var.device) if handle is var else handle.op


def _shared_name(var: torch.Tensor) -> str:
    return name_of(var).partition(":")[0]


def unique_id(var: torch.Tensor) -> str:
    """Return a name that no other living tensor has."""
    return f"{_shared_name(var)}_{getattr(var, '_uid', id(var))}"


def _graph_key(var: torch.Tensor) -> str:
    """Return the key of the default graph, or "" in eager mode."""
    graph = process.default_graph()
    return "" if graph is None else graph._graph_key


def _sparse_read(var: torch.Tensor, indices: object, name: str | None = None) -> torch.Tensor:
    """Return the rows at `indices`."""
    rows = to_tensor(indices)
    check_held(var)
    check_held(rows, f"What indexes '{name_of(var)}'")
    rows = rows.to(var.device)
    return var[rows.long()]


def _scatter(update: str) -> Callable[..., Any]:
    """Return a method that changes rows of a variable in place, by `update` such as "add"."""

    def apply(
        var: torch.Tensor, sparse_delta: Any, use_locking: bool = False, name: str | None = None
    ) -> torch.Tensor:
        scatter(var, sparse_delta.indices, sparse_delta.values, update)
        return var

    apply.__doc__ = f'The rows of slices, by "{update}": see `scatter`.'
    return apply


def _scatter_add(var: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Call `torch.Tensor.scatter_add`, or for slices update the variable as TensorFlow does."""
    first = args[0] if args else kwargs.get("sparse_delta")
    if not isinstance(first, IndexedSlices):
        return torch.Tensor.scatter_add(var, *args, **kwargs)
    return _scatter("add")(var, *args, **kwargs)


def _load(var: Any, value: object, session: object = None) -> None:
    var.assign(value)


def _is_initialized(var: object) -> bool:
    return True


_PARAMETER_NAMES: dict[str, Any] = {
    "name": property(name_of),
    **{
        name: vars(Variable)[name]
        for name in ("assign", "assign_add", "assign_sub", "read_value", "value", "_operand")
    },
    "handle": property(lambda var: var),
    "op": property(_op),
    "initializer": property(lambda var: None),
    "initialized_value": Variable.read_value,
    "load": _load,
    "is_initialized": _is_initialized,
    "sparse_read": _sparse_read,
    "scatter_add": _scatter_add,
    "_shared_name": property(_shared_name),
    "_unique_id": property(unique_id),
    "_graph_key": property(_graph_key),
    "_in_graph_mode": property(lambda var: False),
    **{f"scatter_{update}": _scatter(update) for update in UPDATES if update != "add"},
}

NAMES: tuple[tuple[type, dict[str, Any]], ...] = (
    (torch.dtype, _DTYPE_NAMES),
    (torch.Size, _SHAPE_NAMES),
    (torch.Tensor, _TENSOR_NAMES),
    (torch.nn.Parameter, _PARAMETER_NAMES),
)
# These replace torch's attributes: `name` is None, and `scatter_add` returns a new tensor.
OVER_TORCHS = ((torch.nn.Parameter, "name"), (torch.nn.Parameter, "scatter_add"))

for _name, _value in {**_TENSOR_NAMES, **_PARAMETER_NAMES}.items():
    if _name not in vars(Variable):
        setattr(Variable, _name, _value)
