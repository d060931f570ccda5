"""Formatting of user values in messages, without reads of missing memory."""

# torch does not annotate all methods of `Tensor`.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MOST_CHARACTERS = 80
# Torch abbreviates the values of larger tensors.
_MOST_ELEMENTS = 1000
# Most bits of an integer that is printed; Python limits the digits.
_SHOWN_BITS = 256
_READERS: set[Any] = {
    Tensor.__repr__, Tensor.__format__, Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.__array__,
    Tensor.__bool__, Tensor.__float__, Tensor.__int__, Tensor.__index__, Tensor.__iter__,
}  # fmt: skip


def holds_elements(tensor: Tensor) -> bool:
    """Return True if the storage of a strided tensor contains its last element.

    Raises:
        RuntimeError, NotImplementedError: The tensor has no storage, such as a tensor of functorch.
    """
    if tensor.is_contiguous():
        end = tensor.numel() - 1
    else:
        end = sum(
            (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
        )
    num_bytes = (tensor.storage_offset() + end + 1) * tensor.element_size()
    return not tensor.numel() or tensor.untyped_storage().nbytes() >= num_bytes


def show_value(value: object) -> str:
    """Return the `repr` of a value for a message, on one line of at most 80 characters.

    A tensor with unreadable elements is described by type, shape and dtype, also inside of another
    object.
    """
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"an integer of {value.bit_length()} bits"
    try:
        with Describing():
            text = " ".join(repr(value).split())
    except Exception:  # the user's own `__repr__` may raise anything
        text = _describe(value) if isinstance(value, Tensor) else f"a {type(value).__name__}"
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."


class Describing(TorchFunctionMode):
    """Block in which `repr` describes tensors whose elements cannot be read."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _READERS and not _is_readable(args[0]):
            if func in (Tensor.__repr__, Tensor.__format__):
                return _describe(args[0])
            raise ValueError("The elements of the tensor cannot be read.")
        return func(*args, **(kwargs or {}))


def _is_readable(tensor: Tensor) -> bool:
    """Return True if a tensor has at most 1,000 elements, all in memory, or is a meta tensor."""
    # The elements of a class with a dispatch of its own are elsewhere.
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:  # pyright: ignore
        return False
    # Torch prints a meta tensor without values.
    if tensor.is_meta:
        return True
    if tensor.layout != torch.strided or tensor.numel() > _MOST_ELEMENTS:
        return False
    try:
        return holds_elements(tensor)
    except (RuntimeError, NotImplementedError):
        return False


def _describe(tensor: Tensor) -> str:
    """Return the type, shape and dtype of a tensor as text."""
    kind = type(tensor).__name__
    dtype = str(tensor.dtype).removeprefix("torch.")
    description = f"a {kind} of shape {tuple(tensor.shape)} and type {dtype}"
    try:
        is_cut = (
            tensor.layout == torch.strided and not tensor.is_meta and not holds_elements(tensor)
        )
    except (RuntimeError, NotImplementedError):
        return description
    return f"{description} whose storage was cut" if is_cut else description
