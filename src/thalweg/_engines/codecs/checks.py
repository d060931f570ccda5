"""Validation of a step with encoded slots."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.codecs import CODECS
from thalweg._engines.codecs.codec import ALIGNMENT, Codec
from thalweg._engines.protocol import StepRequest
from thalweg.errors import InvalidArgumentError, InvalidTypeError, LayoutError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import dtype_name


def list_codecs(codecs: Sequence[str | None], slots: Sequence[Tensor]) -> list[Codec | None]:
    """Return the codec of each slot of a variable, or None for a slot that is not encoded.

    Args:
        codecs: The codec names of the rule's slots; empty if it has none.
        slots: The slots. Encoded slots are uint8; slots of small variables are not encoded.
    """
    if not codecs:
        return [None] * len(slots)
    slot_pairs = zip(codecs, slots, strict=True)
    return [
        CODECS[name] if name and slot.dtype == torch.uint8 else None for name, slot in slot_pairs
    ]


def check_encoded(request: StepRequest) -> None:
    """Raise an error if an encoded slot of the step cannot be updated.

    Raises:
        InvalidTypeError: A variable is float64. A variable with `weights='split'` is not bfloat16.
            A slot that is not encoded differs in shape from its variable.
        NotImplementedError: A gradient is sparse.
        InvalidArgumentError: A slot has the wrong number of bytes or is on another device.
        LayoutError: A slot is not contiguous, not aligned, or has no memory.
    """
    rows = zip(request.variables, request.gradients, request.slots, request.titles, strict=True)
    for var, grad, slots, label in rows:
        for index, codec in enumerate(list_codecs(request.rule.codecs, slots)):
            slot, codec_name = slots[index], request.rule.codecs[index]
            name = f"slot '{request.rule.element_slots[index].name}' of '{label}'"
            # Else a slot in numbers, which has the shape of the variable.
            if codec is None and codec_name and slot.shape != var.shape:
                raise InvalidTypeError(
                    f"{name} is {dtype_name(slot.dtype)} {tuple(slot.shape)}, and is kept in"
                    f" {codec_name}, as uint8, or in numbers of shape {tuple(var.shape)}."
                )
            if codec is not None:
                _check_variable(codec, var, grad, label, name)
                _check_records(codec, var, slot, name)


def _check_variable(codec: Codec, var: Tensor, grad: object, label: str, name: str) -> None:
    """Raise an error if a gradient is sparse, or if a codec does not support a variable's dtype."""
    if codec.is_beside and var.dtype != torch.bfloat16:
        raise InvalidTypeError(
            f"'{label}' is {dtype_name(var.dtype)}, and {name} is the lower part of a bfloat16."
        )
    if var.dtype == torch.float64:
        raise InvalidTypeError(
            f"'{label}' is float64, and {name} is kept in {codec.name}, which holds float32 for"
            " parameters of float32, bfloat16 and float16."
        )
    if isinstance(grad, IndexedSlices):
        raise NotImplementedError(
            f"The gradient of '{label}' is sparse, and {name} is kept in {codec.name}, block by"
            " block: give a dense gradient, which a rule of yours with whole=True makes of it, or"
            " update it with an optimizer of its own, without state_storage."
        )


def _check_records(codec: Codec, var: Tensor, slot: Tensor, name: str) -> None:
    """Raise an error if an encoded slot has a wrong shape, device or memory layout."""
    expected_shape = (codec.bytes_of(var.numel()),)
    if slot.shape != expected_shape or slot.device != var.device:
        raise InvalidArgumentError(
            f"{name} has shape {tuple(slot.shape)} on {slot.device}; {codec.name} keeps"
            f" {var.numel()} elements of {dtype_name(var.dtype)} in shape {expected_shape}"
            f" on {var.device}."
        )
    layout.check_memory(slot, name)
    if not slot.is_contiguous() or slot.data_ptr() % ALIGNMENT:
        raise LayoutError(
            f"cannot update {name} in place: its bytes must lie one after the other, from a"
            f" multiple of {ALIGNMENT} on (strides {slot.stride()}). Give a .clone() of it."
        )
