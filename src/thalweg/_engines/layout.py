"""Checks of tensors before kernels use their addresses; the kernels check nothing themselves."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, ge, mul
from typing import Any

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from thalweg._engines.array_types import Int64
from thalweg.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    LayoutError,
    PerformanceWarning,
    warn,
)
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import REDUCED, TRAINED, dtype_name

STORAGE_NAMES = {dtype: dtype_name(dtype) for dtype in TRAINED}
_EXPECTED = f"[{', '.join(STORAGE_NAMES.values())}]"
# Device types whose tensors have addresses of memory.
BY_ADDRESS = ("cpu", "cuda", "xpu")
_ENUMERABLE = 1 << 26  # largest strided tensor whose addresses are compared one by one
_PLAIN_CLASSES = {Tensor, torch.nn.Parameter}  # classes without `__torch_dispatch__`
_STRIDED = {torch.strided}
_LAYOUT: Any = Tensor.layout.__get__  # pyright: ignore
_NBYTES: Any = Tensor.nbytes.__get__  # pyright: ignore


def compute_dtype(dtype: torch.dtype) -> type[np.floating]:
    """Return the dtype of the arithmetic for a variable of this dtype."""
    return np.float64 if dtype == torch.float64 else np.float32


def is_dense(tensor: Tensor) -> bool:
    """Return True if elements fill contiguous memory without gaps, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    extents = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in extents if pair[1] != 1):
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def same_strides(tensor: Tensor, other_tensor: Tensor) -> bool:
    """Return True if two tensors of one shape have equal strides, except in dims of size 1."""
    return tensor.numel() == 0 or all(
        stride == other_stride or size == 1
        for stride, other_stride, size in zip(
            tensor.stride(), other_tensor.stride(), tensor.shape, strict=True
        )
    )


def is_aligned(tensor: Tensor) -> bool:
    """Return True if the address of the first element is a multiple of the element size."""
    return tensor.data_ptr() % tensor.element_size() == 0


def is_far(tensor: Any, device: torch.device) -> bool:
    """Return True if a tensor, or `IndexedSlices`, is on another device than `device`."""
    return tensor.device != device


def check_memory(tensor: Tensor, subject: str, param: Tensor | None = None) -> None:
    """Raise if a tensor has no memory for its elements: if it is fake, distributed or freed.

    A meta tensor is accepted if `param` is None or a meta tensor.

    Args:
        subject: The tensor's name as the subject of the message.
        param: Optional. The parameter whose state has the tensor.

    Raises:
        LayoutError: The memory is missing or too small.
    """
    if tensor.is_meta:
        if param is not None and not param.is_meta:
            raise LayoutError(
                f"{subject} is on meta, without numbers, and the parameter is on {param.device}."
                " Load a state, or delete the state of the parameter."
            )
        return
    has_memory, nbytes = False, 0
    # A class with `__torch_dispatch__` (DTensor, FakeTensor) has no elements in its own storage.
    if type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        try:
            nbytes = tensor.untyped_storage().nbytes()
            has_memory = tensor.data_ptr() != 0 and not tensor._is_zerotensor()
        except (RuntimeError, NotImplementedError):
            has_memory = False
    offset_bytes = tensor.storage_offset() * tensor.element_size() if has_memory else 0
    first, end = byte_span(tensor) if has_memory else (0, 0)
    if tensor.numel() and (not has_memory or offset_bytes + end - first > nbytes):
        raise LayoutError(
            f"{subject} has no memory that holds its {tensor.numel()} elements"
            f" ({type(tensor).__name__}). Give its local part, or a .clone() of it."
        )


def all_have_memory(tensors: Sequence[Tensor]) -> bool:
    """Return True if all tensors are plain and contiguous, with memory for all elements.

    After False, a tensor may still be valid: call `check_memory` for each tensor.
    """
    if not {*map(type, tensors)} <= _PLAIN_CLASSES or not {*map(_LAYOUT, tensors)} <= _STRIDED:
        return False
    starts: Any = map(mul, map(Tensor.storage_offset, tensors), map(Tensor.element_size, tensors))
    sizes: Any = map(_NBYTES, tensors)
    ends: Any = map(add, starts, sizes)
    return (
        all(map(Tensor.is_contiguous, tensors))
        and all(map(Tensor.data_ptr, tensors))  # 0 for zero tensors without memory
        and all(map(ge, map(UntypedStorage.nbytes, map(Tensor.untyped_storage, tensors)), ends))
    )


def check_parts(tensor: Tensor, subject: str, param: Tensor | None = None) -> None:
    """Check the memory of a dense tensor, or of values and indices of a sparse COO tensor.

    Raises:
        LayoutError: See `check_memory`.
    """
    if tensor.layout == torch.sparse_coo:
        check_memory(tensor._values(), f"The values of {subject[:1].lower()}{subject[1:]}")
        check_memory(tensor._indices(), f"The indices of {subject[:1].lower()}{subject[1:]}")
    elif tensor.layout == torch.strided:
        check_memory(tensor, subject, param)


def check_variable(var: Tensor, name: str) -> None:
    """Raise if no engine can update a variable in place.

    Raises:
        InvalidTypeError: The dtype is not a supported real floating type.
        LayoutError: Elements share memory, or the layout is not strided.
    """
    if var.layout != torch.strided:
        raise LayoutError(f"cannot update '{name}' in place: its layout is {var.layout}.")
    if var.dtype not in STORAGE_NAMES:
        raise InvalidTypeError(f"Invalid type {var.dtype} for {name}, expected: {_EXPECTED}.")
    if var.is_neg():
        raise LayoutError(
            f"cannot update '{name}' in place: it is the negative view of other memory."
            " Call .resolve_neg() on it before giving it to the optimizer."
        )
    check_memory(var, f"'{name}'")
    if may_overlap(var):
        zero = [dim for dim, step in enumerate(var.stride()) if step == 0 and var.shape[dim] > 1]
        reason = "stride 0" if zero else f"shape {tuple(var.shape)}, strides {var.stride()}"
        raise LayoutError(
            f"cannot update '{name}' in place: its {var.numel()} elements share memory ({reason})."
            " Call .clone() on it before giving it to the optimizer."
        )


def check_slots(var: Tensor, slots: Sequence[Tensor], name: str) -> None:
    """Raise if no engine can update the slots of a variable in place.

    Raises:
        InvalidTypeError: The dtype of a slot is not supported.
        InvalidArgumentError: A slot and the variable differ in shape or device.
        LayoutError: Elements of a slot share memory.
    """
    for slot in slots:
        if slot.dtype not in STORAGE_NAMES:
            raise InvalidTypeError(
                f"Invalid type {slot.dtype} for a slot of {name}, expected: {_EXPECTED}."
            )
        if slot.shape != var.shape or slot.device != var.device:
            raise InvalidArgumentError(
                f"'{name}' has shape {tuple(var.shape)} on {var.device} now, but its slot has shape"
                f" {tuple(slot.shape)} on {slot.device}. Make a new optimizer for it."
            )
        check_memory(slot, f"A slot of '{name}'")
        if slot.is_neg() or may_overlap(slot):
            raise LayoutError(
                f"cannot update a slot of '{name}' in place: its elements share memory"
                f" (shape {tuple(slot.shape)}, strides {slot.stride()})."
            )


def without_records(slots: Sequence[Tensor], codecs: Sequence[str | None]) -> Sequence[Tensor]:
    """Return the slots of a variable that are not stored as bytes of a codec.

    Args:
        slots: All slots of the variable.
        codecs: The codec of each slot, or None; empty if the rule has no codecs.
    """
    if not codecs:
        return slots
    pairs = zip(slots, codecs, strict=True)
    return [slot for slot, codec in pairs if codec is None or slot.dtype != torch.uint8]


def may_overlap(tensor: Tensor) -> bool:
    """Return True if elements of a tensor overlap, or if the tensor is too large to find out."""
    if is_dense(tensor):
        return False
    extents = zip(tensor.stride(), tensor.shape, strict=True)
    reach = 0
    for stride, size in sorted(pair for pair in extents if pair[1] != 1):
        if stride <= reach:
            # Strides do not decide; compare the offsets of all elements.
            offsets = _compute_element_offsets(tensor)
            return offsets is None or len(np.unique(offsets)) < len(offsets)
        reach += stride * (size - 1)
    return False


def _compute_element_offsets(tensor: Tensor) -> Int64 | None:
    """Return the offsets of all elements, or None if the tensor has more than `_ENUMERABLE`."""
    if tensor.numel() > _ENUMERABLE:
        return None
    total = np.zeros((), np.int64)
    for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
        total = np.add.outer(total, np.arange(size, dtype=np.int64) * stride)
    return total.ravel()


def byte_span(tensor: Tensor) -> tuple[int, int]:
    """Return the address of a tensor's first byte, and the address behind its last byte.

    Return (0, 0) for a tensor without elements.
    """
    if tensor.numel() == 0:
        return 0, 0
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return start, start + tensor.nbytes
    last_offset = sum(
        stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    start = tensor.data_ptr()
    return start, start + (last_offset + 1) * tensor.element_size()


def merge_byte_spans(tensors: Sequence[Tensor]) -> Int64:
    """Return the address ranges of tensors as an ascending array: start, end, start, end, ...

    Ranges that overlap or touch are merged.
    """
    spans = np.array([byte_span(tensor) for tensor in tensors if tensor.numel()], np.int64)
    # The ranges include address 0, which gradients on the meta device have.
    return merge_ranges([np.array([-1, 1]), spans])


def merge_ranges(runs: Sequence[Int64]) -> Int64:
    """Return the union of results of `merge_byte_spans`, in the form of `merge_byte_spans`."""
    spans = np.concatenate([run.reshape(-1, 2) for run in runs])
    spans = spans[np.argsort(spans[:, 0])]
    reach = np.maximum.accumulate(spans[:, 1])
    first_spans = np.flatnonzero(np.append(True, spans[1:, 0] > reach[:-1]))
    last_spans = np.append(first_spans[1:] - 1, len(spans) - 1)
    return np.stack([spans[first_spans, 0], reach[last_spans]], axis=1).ravel()


def lie_apart(starts: Int64 | int, sizes: Int64 | int, bounds: Int64) -> bool:
    """Return True if no memory range overlaps with a range of `bounds`.

    Args:
        starts, sizes: The addresses and the sizes in bytes: two arrays, or two numbers.
        bounds: A result of `merge_byte_spans`.
    """
    # A range that begins inside has an odd number of bounds before its start; one that ends inside
    # or behind has more bounds before its end than before its start.
    bound_counts = bounds.searchsorted(starts, "right")
    return not ((bound_counts & 1) | (bound_counts != bounds.searchsorted(starts + sizes))).any()


def check_disjoint(tensors: Sequence[Tensor], names: Sequence[str]) -> None:
    """Raise if different tensors share memory.

    Raises:
        LayoutError: Two tensors share memory; the message names the first pair.
    """
    spans = [(*byte_span(tensor), index) for index, tensor in enumerate(tensors) if tensor.numel()]
    spans.sort()
    open_spans: list[tuple[int, int]] = []
    for start, end, index in spans:
        open_spans = [neighbor for neighbor in open_spans if neighbor[0] > start]
        for _, neighbor in open_spans:
            if _share_bytes(tensors[neighbor], tensors[index]):
                first, second = sorted((neighbor, index))
                raise LayoutError(
                    f"cannot update '{names[first]}' and '{names[second]}' in one step:"
                    " they share memory. Give the optimizer one of them, or a .clone()."
                )
        open_spans.append((end, index))


def _share_bytes(tensor1: Tensor, tensor2: Tensor) -> bool:
    """Return True if two tensors share a byte, or are too large to find out.

    The address ranges of the tensors must overlap. The function does not check that.
    """
    if tensor1.device != tensor2.device:
        return False
    # Elsewhere the address of a tensor is that of an object, which says nothing about its memory.
    storages = (tensor.untyped_storage()._cdata for tensor in (tensor1, tensor2))  # pyright: ignore[reportPrivateUsage]
    if tensor1.device.type not in BY_ADDRESS and len(set(storages)) > 1:
        return False
    if is_dense(tensor1) and is_dense(tensor2):
        return True
    addresses: list[Int64] = []
    for tensor in (tensor1, tensor2):
        offsets = _compute_element_offsets(tensor)
        if offsets is None:
            return True
        starts = offsets * tensor.element_size() + tensor.data_ptr()
        addresses.append(np.add.outer(starts, np.arange(tensor.element_size())).ravel())
    return bool(np.intersect1d(addresses[0], addresses[1]).size)


def check_copy(var: Tensor, copy: Tensor, name: str) -> None:
    """Raise if a tensor is not a valid copy of a variable: in 16 bits, or on another device.

    Raises:
        InvalidTypeError: The copy's dtype is not 16-bit. A copy on another device may also have the
            variable's dtype.
        InvalidArgumentError: Shapes differ.
        LayoutError: Elements of the copy share memory.
    """
    has_same_dtype = is_far(copy, var.device) and copy.dtype == var.dtype
    if var.dtype in REDUCED and not has_same_dtype:
        raise InvalidTypeError(
            f"{name} is {dtype_name(var.dtype)} and can have no copy, expected: [float32, float64]."
        )
    if copy.dtype not in REDUCED and not has_same_dtype:
        raise InvalidTypeError(
            f"Invalid type {copy.dtype} for the copy of {name}, expected: [float16, bfloat16]."
        )
    if copy.shape != var.shape:
        raise InvalidArgumentError(
            f"The copy of '{name}' has shape {tuple(copy.shape)} on {copy.device} but the variable"
            f" has shape {tuple(var.shape)} on {var.device}."
        )
    if copy.is_meta and not var.is_meta:
        raise InvalidArgumentError(f"the copy of '{name}' is on meta: it holds no values.")
    check_variable(copy, f"the copy of {name}")


def check_shape(grad: Tensor | IndexedSlices, var: Tensor, name: str) -> None:
    """Raise if a gradient, dense or sparse, does not have the shape of its variable.

    For `IndexedSlices`, only the shape of a row is compared, and not `dense_shape`.

    Raises:
        InvalidArgumentError: The shapes differ.
    """
    shape = tuple(var.shape)
    if not isinstance(grad, IndexedSlices):
        if grad.shape != var.shape:
            raise InvalidArgumentError(
                f"Gradient of '{name}' has shape {tuple(grad.shape)} but the variable has shape"
                f" {shape}."
            )
        return
    if not shape or tuple(grad.values.shape[1:]) != shape[1:]:
        raise InvalidArgumentError(
            f"Gradient of '{name}' has rows of shape {tuple(grad.values.shape[1:])} but the"
            f" variable has shape {shape}."
        )


def check_kind(
    values: Tensor, var: Tensor, name: str, narrow: bool = False, device: torch.device | None = None
) -> None:
    """Raise if the elements of a gradient have a wrong dtype or device, or no memory.

    Args:
        values: A dense gradient, or the values of a sparse gradient.
        narrow: True if the gradient of a float32 variable may have a 16-bit dtype.
        device: Optional. The required device; by default the variable's.

    Raises:
        InvalidTypeError: The dtypes differ.
        InvalidArgumentError: The devices differ.
        LayoutError: The elements are not in memory.
    """
    fits = values.dtype == var.dtype
    if narrow and var.dtype == torch.float32:
        fits = fits or values.dtype in REDUCED
    if not fits:
        raise InvalidTypeError(
            f"Gradient of '{name}' is {dtype_name(values.dtype)} but the variable is"
            f" {dtype_name(var.dtype)}. Cast the gradient."
        )
    device = device or var.device
    if values.device != device:
        raise InvalidArgumentError(f"'{name}' is on {device}, its gradient on {values.device}.")
    check_memory(values, f"The gradient of '{name}'")


def check_slices(
    slices: IndexedSlices, var: Tensor, name: str, scatter: bool, narrow: bool = False
) -> None:
    """Raise if a sparse gradient is invalid for its variable.

    Args:
        scatter: True to report a bad index as TensorFlow's scatter kernels do.
        narrow: True if the values for a float32 variable may have a 16-bit dtype.

    Raises:
        InvalidTypeError: The dtypes differ.
        InvalidArgumentError: Shapes or devices differ, or an index is out of range.
        LayoutError: Values or indices are not in memory.
    """
    check_kind(slices.values, var, name, narrow)
    check_shape(slices, var, name)
    check_memory(slices.indices, f"The indices of the gradient of '{name}'")
    try:
        slices.check_range(var.shape[0], "scatter" if scatter else "fused")
    except InvalidArgumentError as error:
        error.add_note(f"In the gradient of '{name}'.")
        raise


def with_strides_of(grad: Tensor, var: Tensor) -> Tensor:
    """Return a gradient with the strides of its variable; copy it only if strides differ."""
    grad = grad.detach()
    if grad.is_neg() or grad.is_conj():
        grad = grad.resolve_neg().resolve_conj()
    if same_strides(grad, var) and is_aligned(grad):
        return grad
    copy = torch.empty_strided(var.shape, var.stride(), dtype=grad.dtype, device=grad.device)
    return copy.copy_(grad)


def as_packed(values: Tensor) -> Tensor:
    """Return values contiguous, aligned and without lazy negation; a copy only if necessary."""
    values = values.detach().resolve_neg().contiguous()
    return values if is_aligned(values) else values.clone()


def from_memory_order(flat: Tensor, var: Tensor) -> Tensor:
    """Return a view of `flat` in the shape of a variable.

    Args:
        flat: The elements, in memory order of a dense variable (`is_dense`), else row-major.
    """
    return flat.as_strided(var.shape, var.stride()) if is_dense(var) else flat.view(var.shape)


def warn_slow(name: str, reason: str) -> None:
    """Warn that the reference engine updates a variable; the message is `name`, then `reason`."""
    warn(
        f"'{name}' {reason}, so it is updated by the reference engine, slowly."
        " Make it contiguous to have it fused.",
        PerformanceWarning,
    )
