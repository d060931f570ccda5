"""Shapes and validation of variables of rules with passes, which are matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.matrix_blocks import slot_parts
from thalweg._engines.memory_protection import check_writable
from thalweg.errors import InvalidArgumentError, InvalidTypeError, LayoutError
from thalweg.formula import Rule, Slot
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import dtype_name

STACK_CHOICES = (
    "For a stack of matrices, such as experts, give layout='batch=1' to the constructor, the group,"
    " or each Stage of your own rule, or select another rule, such as AdamW. For one matrix, such"
    " as a Conv1d kernel, give heads=1; it would mix the matrices of a stack."
)


def matrix_shape(shape: torch.Size) -> tuple[int, int]:
    """Return (rows, columns) of a variable: its first dimension, and the product of all others."""
    return shape[0], shape[1:].numel()


def check_matrices(
    rule: Rule, rule_label: str, variables: Sequence[Tensor], labels: Sequence[str]
) -> None:
    """Raise an error unless a rule with passes can update these variables.

    Args:
        rule_label: The name of the rule in messages.
        variables, labels: The variables, with a name for each.

    Raises:
        InvalidArgumentError: A variable has fewer than two dimensions, three without a layout, or a
            shape that does not match the layout.
        InvalidTypeError: A variable is not float32, float64 or bfloat16.
    """
    for var, label in zip(variables, labels, strict=True):
        if var.dim() < 2:
            raise InvalidArgumentError(
                f"'{label}' has shape {tuple(var.shape)}, and {rule_label} is for matrices, of two"
                " dimensions or more: select another rule for it, such as AdamW."
            )
        if var.dim() == 3 and rule.needs_layout:
            raise InvalidArgumentError(stack_message(repr(label), var.shape, rule_label))
        if var.dtype not in (torch.float32, torch.float64, torch.bfloat16):
            raise InvalidTypeError(
                f"'{label}' is {dtype_name(var.dtype)}, and {rule_label} is for float32, float64"
                " and bfloat16."
            )
        try:
            rule.layout.blocks(var.shape)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"'{label}' of {rule_label}: {error}") from None


def stack_message(label: str, shape: torch.Size, rule_label: str) -> str:
    """Return the error message for a variable of three dimensions without a layout."""
    size, *matrix = shape
    return (
        f"{label} has shape {tuple(shape)}: it may be a stack of {size} matrices of shape"
        f" {tuple(matrix)}, such as experts, and {rule_label} would take it as one matrix of shape"
        f" {matrix_shape(shape)}. {STACK_CHOICES}"
    )


def check_step(
    rule: Rule, variables: Sequence[Tensor], gradients: Sequence[Any], labels: Sequence[str]
) -> None:
    """Raise an error unless a rule with passes can take this step.

    Raises:
        InvalidArgumentError: A variable occurs twice, or `check_matrices` raises it.
        InvalidTypeError: A gradient is sparse, or `check_matrices` raises it.
    """
    label = f"rule {rule.name!r}"
    check_matrices(rule, label, variables, labels)
    for grad, name in zip(gradients, labels, strict=True):
        if isinstance(grad, IndexedSlices) and not rule.is_whole:
            raise InvalidTypeError(
                f"The gradient of '{name}' is sparse, and {label} is for matrices: give it a dense"
                " one, or the rule whole=True."
            )
    if len(set(map(id, variables))) < len(variables):
        raise InvalidArgumentError(
            f"A variable comes twice in a step of {label}, which updates each once."
        )


def shape_beside(slot: Slot, shape: torch.Size) -> tuple[int, ...]:
    """Return the shape of a slot beside a variable; () for a slot without `per` and `shape`."""
    if slot.per == "row":
        return tuple(shape[:-1]) if slot.squeezed else (*shape[:-1], 1)
    if slot.per == "column":
        return (*shape[:-2], shape[-1]) if slot.squeezed else (*shape[:-2], 1, shape[-1])
    return () if slot.shape is None else slot_parts(slot, shape).shape


def shaped_like(var: Tensor, slot: Slot) -> Tensor:
    """Return a meta tensor with the shape of a slot of the variable."""
    return torch.empty(shape_beside(slot, var.shape), dtype=var.dtype, device="meta")


def check_shaped_slots(
    rule: Rule,
    variables: Sequence[Tensor],
    element_slots: Sequence[Sequence[Tensor]],
    slots: Sequence[Sequence[Tensor]],
    shapes: Sequence[Sequence[tuple[int, ...]]],
    labels: Sequence[str],
) -> None:
    """Raise an error unless stages can read and write the `shaped_slots` of variables.

    Args:
        variables, labels: The variables, with a name for each.
        element_slots: For each variable the slots that have its shape; must not overlap `slots`.
        slots: For each variable its `shaped_slots`, in the rule's order.
        shapes: The expected shapes of `slots`.

    Raises:
        InvalidArgumentError: A slot has a wrong shape or device.
        InvalidTypeError: A slot has an unsupported dtype.
        LayoutError: A slot overlaps with another tensor or itself, or has no memory.
    """
    tensors = [*variables, *(slot for var_slots in element_slots for slot in var_slots)]
    names = [*labels]
    for name, var_slots in zip(labels, element_slots, strict=True):
        names += [f"a slot of {name}"] * len(var_slots)
    for var, var_slots, expected_shapes, label in zip(
        variables, slots, shapes, labels, strict=True
    ):
        for shaped_slot, slot, shape in zip(
            rule.shaped_slots, var_slots, expected_shapes, strict=True
        ):
            slot_label = f"'{shaped_slot.name}' of '{label}'"
            if slot.dtype not in layout.STORAGE_NAMES:
                raise InvalidTypeError(
                    f"{slot_label} is {dtype_name(slot.dtype)}, which is not computed."
                )
            if tuple(slot.shape) != shape or slot.device != var.device:
                raise InvalidArgumentError(
                    f"{slot_label} has shape {tuple(slot.shape)} on {slot.device}; it must have"
                    f" shape {shape} on {var.device}."
                )
            layout.check_memory(slot, slot_label)
            if slot.is_neg() or layout.may_overlap(slot):
                raise LayoutError(
                    f"{slot_label} cannot be updated in place: its elements share memory (shape"
                    f" {tuple(slot.shape)}, strides {slot.stride()})."
                )
            tensors.append(slot)
            names.append(slot_label)
    layout.check_disjoint(tensors, names)
    check_writable(zip(tensors, names, strict=True))
