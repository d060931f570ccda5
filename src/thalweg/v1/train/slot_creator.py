"""Slots of a variable or tensor: `tensorflow.python.training.slot_creator`.

A slot is a variable that is not trained, such as a momentum. Its name begins with the primary
variable's name: "w/Momentum". In a graph, the name is made unique and put below the variable scope.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thalweg._base.execution_context import executing_eagerly, handle_of, is_symbolic, resolve
from thalweg._base.static_shape import Shape
from thalweg._graph import get_default_graph, get_variable_scope, make_variable
from thalweg._graph.slice_info import mark_slice_like
from thalweg.variable import Variable, as_dtype, name_of, to_tensor


def base_name(var: Any) -> str:
    """Return the name of a variable without ":0"."""
    return name_of(var).split(":")[0]


def scoped_name(var: Any, name: str) -> str:
    """Return the name of a slot of a graph's variable: below the variable scope it is made in."""
    scope = get_variable_scope().name if var.graph is get_default_graph() else ""
    return f"{scope}/{name}" if scope else name


def create_slot(
    primary: object,
    val: object,
    name: str,
    colocate_with_primary: bool = True,
    *,
    copy_xla_sharding: bool = False,
) -> Any:
    """Create and return a slot with an initial value.

    Args:
        primary: The variable or tensor of the slot.
        val: The initial value: a tensor, array or number.
        name: Last part of the slot's name.
        colocate_with_primary, copy_xla_sharding: Ignored.
    """
    return _make_slot(primary, val, name, None)


def create_slot_with_initializer(
    primary: object,
    initializer: object,
    shape: Sequence[int] | None,
    dtype: object,
    name: str,
    colocate_with_primary: bool = True,
    *,
    copy_xla_sharding: bool = False,
) -> Any:
    """Create and return a slot with the initial value `initializer(shape, dtype=dtype)`.

    If `initializer` is a tensor, it is the initial value. If `shape` is not fully known, the
    session's initialization calls `initializer` with the shape of `primary`. See `create_slot` for
    other arguments.
    """
    kind = as_dtype(dtype)
    if not callable(initializer):
        return _make_slot(primary, initializer, name, kind)
    size = Shape(shape)
    if size.is_fully_defined():
        return _make_slot(primary, initializer(tuple(size), dtype=kind), name, kind)

    # The session knows the shape, once it has initialized `primary`.
    def initial_value() -> object:
        return to_tensor(initializer(tuple(resolve(primary).shape), dtype=kind), kind)

    return _make_deferred_slot(primary, initial_value, name, kind)


def create_zeros_slot(
    primary: Any,
    name: str,
    dtype: Any = None,
    colocate_with_primary: bool = True,
    *,
    copy_xla_sharding: bool = False,
) -> Any:
    """Create and return a slot filled with zeros, of the shape of `primary`.

    The default of `dtype` is the dtype of `primary`. See `create_slot` for other arguments.
    """
    kind = primary.dtype if dtype is None else as_dtype(dtype)
    if not is_symbolic(primary):
        return _make_slot(primary, torch.zeros_like(primary, dtype=kind), name, kind)

    def zeros_like_primary() -> torch.Tensor:
        return torch.zeros_like(resolve(primary), dtype=kind, requires_grad=False)

    return _make_deferred_slot(primary, zeros_like_primary, name, kind)


def _make_slot(primary: Any, initial_value: object, name: str, dtype: torch.dtype | None) -> object:
    """Return a new variable with an initial value, named after `primary` and `name`."""
    primary = handle_of(primary)
    full_name = f"{base_name(primary)}/{name}"
    if is_symbolic(primary):
        with primary.graph.as_default():
            slot = make_variable(initial_value, scoped_name(primary, full_name), dtype=dtype)
        mark_slice_like(slot, primary)
        return slot
    # In graph mode, the slot of an eager tensor is a variable of the default graph.
    if not executing_eagerly():
        return make_variable(initial_value, full_name, dtype=dtype)
    return Variable(initial_value, full_name, trainable=False, dtype=dtype)


def _make_deferred_slot(primary: Any, begin: Callable[[], Any], name: str, dtype: Any) -> Any:
    """Return a new slot with the initial value `begin()`.

    `begin` is called when a session initializes the slot; in eager mode it is called now.
    """
    primary = handle_of(primary)
    full_name = f"{base_name(primary)}/{name}"
    if not is_symbolic(primary):
        return Variable(begin(), full_name, trainable=False)
    slot = make_variable(begin, scoped_name(primary, full_name), like=primary, dtype=dtype)
    mark_slice_like(slot, primary)
    return slot
