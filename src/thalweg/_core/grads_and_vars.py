"""Conversion and validation of (gradient, variable) pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module

from thalweg._base.execution_context import is_symbolic
from thalweg._base.showing import show_value
from thalweg.errors import InvalidArgumentError, InvalidTypeError, LayoutError
from thalweg.indexed_slices import IndexedSlices
from thalweg.indexed_slices import as_gradient as from_torch
from thalweg.variable import check_held, is_variable, name_of, tensor_of, to_tensor

Gradient = Tensor | IndexedSlices
Pair = tuple[Gradient, Tensor]


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor's memory as a real view with a last dimension of 2."""
    return torch.view_as_real(tensor.detach().resolve_conj())


def as_pairs(grads_and_vars: Any) -> list[tuple[Any, Any]]:
    """Return `grads_and_vars` as a list of pairs (gradient, variable).

    A Keras variable becomes its torch parameter.

    Raises:
        InvalidTypeError: The argument is not an iterable of pairs.
    """
    try:
        pairs = list(grads_and_vars)
    except TypeError:
        raise InvalidTypeError(
            "grads_and_vars must be an iterable of (gradient, variable), not"
            f" {show_value(grads_and_vars)}."
        ) from None
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:  # pyright: ignore[reportUnknownArgumentType]
            raise InvalidTypeError(
                "grads_and_vars must hold pairs (gradient, variable), not"
                f" {show_value(cast('object', pair))}."
            )
    return [(grad, tensor_of(var)) for grad, var in pairs]


def as_gradient(grad: object, var: Tensor, label: str) -> Gradient:
    """Return a gradient as a tensor or as IndexedSlices; arrays, numbers and lists are converted.

    Raises:
        InvalidTypeError: The gradient cannot be converted.
        InvalidArgumentError: A sparse tensor of torch has another shape than the variable. The
            `dense_shape` of IndexedSlices is not checked.
        LayoutError: The indices of a sparse tensor extend beyond their storage.
    """
    if isinstance(grad, IndexedSlices):
        return grad
    if isinstance(grad, Tensor):
        if grad.layout == torch.sparse_coo and grad.shape != var.shape:
            raise InvalidArgumentError(
                f"Gradient of '{label}' has shape {tuple(grad.shape)} but the variable has shape"
                f" {tuple(var.shape)}."
            )
        if grad.layout == torch.sparse_coo:
            check_held(grad._indices(), f"What indexes the gradient of '{label}'")
        return from_torch(grad)  # pyright: ignore[reportReturnType]
    try:
        # An array keeps its dtype; numbers and lists have none of their own.
        return to_tensor(grad, None if hasattr(grad, "dtype") else var.dtype).to(var.device)
    except ValueError as error:
        raise InvalidTypeError(
            "Gradient must be convertible to a Tensor or IndexedSlices, or None:"
            f" {show_value(grad)} of '{label}' ({error})"
        ) from None


def concrete(grad: object) -> Gradient | None:
    """Return a gradient as a detached tensor, `IndexedSlices` or None; see `as_gradient`."""
    if type(grad) is Tensor and grad.layout == torch.strided and not grad.requires_grad:
        return grad
    if grad is None or isinstance(grad, IndexedSlices):
        return grad
    return from_torch(to_tensor(grad).detach())


def has_rows(grad: object) -> bool:
    """Return True if a gradient is sparse: `IndexedSlices` or a sparse tensor of torch."""
    return not isinstance(grad, Tensor) or grad.layout is not torch.strided


def flatten(var_list: Any, label: str = "var_list") -> list[Tensor]:
    """Return the variables in nested lists, tuples and dicts as a list; dicts in sorted key order.

    Args:
        var_list: The nested variables, or a single variable.
        label: The argument's name in messages.

    Raises:
        InvalidTypeError: `var_list` is None or a module, or contains something else than variables.
    """
    refuse_no_variables(var_list, label)
    var_list = tensor_of(var_list)
    if isinstance(var_list, Tensor) or is_symbolic(var_list):
        return [var_list]
    if isinstance(var_list, Mapping):
        var_list = _sort_named(cast("Mapping[Any, Any]", var_list), label)
    if not isinstance(var_list, Iterable) or isinstance(var_list, str | bytes):
        advice = " Names are given by thalweg.named_variables(module)."
        raise InvalidTypeError(
            f"{label} must hold variables, not {show_value(var_list)}."
            f"{advice * isinstance(var_list, str)}"
        )
    return [var for nest in cast("Iterable[Any]", var_list) for var in flatten(nest, label)]


def _sort_named(mapping: Mapping[Any, Any], label: str) -> list[object]:
    """Return the values of a mapping, in the order of its keys."""
    try:
        return [mapping[key] for key in sorted(mapping)]
    except TypeError as error:
        raise InvalidTypeError(
            f"A dict of {label} must have keys that can be sorted, not {list(mapping)!r}."
        ) from error


def refuse_no_variables(var_list: object, label: str = "var_list") -> None:
    """Raise InvalidTypeError if `var_list` is None or a module."""
    if var_list is None:
        raise InvalidTypeError(
            f"{label} must hold variables, not None: give those to train, as"
            " list(model.parameters()), or a function that returns them."
        )
    if isinstance(var_list, Module):
        raise InvalidTypeError(
            f"{label} must hold variables, not a module; give list(module.parameters())."
        )


def distinct(variables: Sequence[Tensor]) -> list[Tensor]:
    """Return each variable once, in order of first appearance."""
    return list({id(var): var for var in variables}.values())


def check_variables(variables: Sequence[object]) -> None:
    """Raise an error unless each element is a variable or a leaf that requires a gradient.

    Raises:
        InvalidTypeError: An element is not a tensor; the message names the first.
        NotImplementedError: A tensor is neither a variable nor a leaf that requires a gradient.
        LayoutError: A variable is a nested tensor.
    """
    for index, var in enumerate(variables):
        position = f" at index {index}" if len(variables) > 1 else ""
        if not isinstance(var, Tensor):
            raise InvalidTypeError(f"Expected a variable, received {show_value(var)}{position}.")
        if not is_variable(var):
            raise NotImplementedError(
                f"Trying to update a Tensor {name_of(var, 'Tensor')!r}{position}:"
                " it is not a variable. Use thalweg.Variable or a leaf that requires a gradient."
            )
        if var.is_nested:
            raise LayoutError(
                f"cannot update '{name_of(var)}'{position} in place: it is a nested tensor. Give"
                " its parts to the optimizer one by one."
            )
