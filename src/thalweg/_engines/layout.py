"""The gate: decides what may reach a raw-memory kernel. No pointers outside, no checks inside."""

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
_ENUMERABLE = 1 << 26  # largest strided tensor whose addresses are compared one by one
_PLAIN = {Tensor, torch.nn.Parameter}  # of no class with a dispatch of its own
_STRIDED = {torch.strided}
_LAYOUT: Any = Tensor.layout.__get__  # pyright: ignore
_NBYTES: Any = Tensor.nbytes.__get__  # pyright: ignore


def compute_dtype(dtype: torch.dtype) -> type[np.floating]:
    """The type in which a variable of this dtype is computed."""
    return np.float64 if dtype == torch.float64 else np.float32


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one run of memory, in any order of dimensions, each once."""
    if tensor.is_contiguous():
        return True
    expected = 1
    extents = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(pair for pair in extents if pair[1] != 1):
        if stride != expected:
            return tensor.numel() == 0
        expected *= size
    return True


def same_strides(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape walk their memory alike; strides of size-1 dims are free."""
    return a.numel() == 0 or all(
        x == y or size == 1 for x, y, size in zip(a.stride(), b.stride(), a.shape, strict=True)
    )


def is_aligned(tensor: Tensor) -> bool:
    """Whether the first element lies at a multiple of its size."""
    return tensor.data_ptr() % tensor.element_size() == 0


def is_far(tensor: Any, device: torch.device) -> bool:
    """Whether a tensor, or `IndexedSlices`, is on another device."""
    return tensor.device != device


def check_memory(tensor: Tensor, what: str) -> None:
    """Refuse a tensor whose elements are not in memory of its own: fake, distributed, freed.

    Raises:
        LayoutError: Names it.
    """
    found, nbytes = False, 0
    # A class with its own dispatch (DTensor, FakeTensor) keeps its elements elsewhere, if at all.
    if type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__:  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        try:
            nbytes = tensor.untyped_storage().nbytes()
            found = tensor.data_ptr() != 0 and not tensor._is_zerotensor()
        except (RuntimeError, NotImplementedError):
            found = False
    needed = tensor.storage_offset() * tensor.element_size() if found else 0
    first, end = byte_span(tensor) if found else (0, 0)
    if tensor.numel() and (not found or needed + end - first > nbytes):
        raise LayoutError(
            f"{what} has no memory that holds its {tensor.numel()} elements"
            f" ({type(tensor).__name__}). Give its local part, or a .clone() of it."
        )


def all_have_memory(tensors: Sequence[Tensor]) -> bool:
    """Whether plain, contiguous tensors have memory for all their elements; no is no answer.

    Cheap: each question is asked of all of them in C.
    """
    if not {*map(type, tensors)} <= _PLAIN or not {*map(_LAYOUT, tensors)} <= _STRIDED:
        return False
    starts: Any = map(mul, map(Tensor.storage_offset, tensors), map(Tensor.element_size, tensors))
    sizes: Any = map(_NBYTES, tensors)
    ends: Any = map(add, starts, sizes)
    return (
        all(map(Tensor.is_contiguous, tensors))
        and all(map(Tensor.data_ptr, tensors))  # there is none for zeros without memory
        and all(map(ge, map(UntypedStorage.nbytes, map(Tensor.untyped_storage, tensors)), ends))
    )


def check_parts(tensor: Tensor, what: str) -> None:
    """The same of a tensor that may be a sparse one of torch's: of its values and indices.

    Raises:
        LayoutError: Names it.
    """
    if tensor.layout == torch.sparse_coo:
        check_memory(tensor._values(), f"The values of {what[:1].lower()}{what[1:]}")
        check_memory(tensor._indices(), f"The indices of {what[:1].lower()}{what[1:]}")
    elif tensor.layout == torch.strided:
        check_memory(tensor, what)


def check_variable(var: Tensor, name: str) -> None:
    """Refuse what no engine can update in place.

    Raises:
        InvalidTypeError: If the dtype is not a real floating type that engines compute.
        InvalidArgumentError: If the variable has no memory (meta device).
        LayoutError: If elements share memory, or the layout is not strided.
    """
    if var.layout != torch.strided:
        raise LayoutError(f"cannot update '{name}' in place: its layout is {var.layout}.")
    if var.dtype not in STORAGE_NAMES:
        raise InvalidTypeError(f"Invalid type {var.dtype} for {name}, expected: {_EXPECTED}.")
    if var.device.type == "meta":
        raise InvalidArgumentError(f"'{name}' is on meta: it has no values to update.")
    if var.is_neg():
        raise LayoutError(
            f"cannot update '{name}' in place: it is the negative view of other memory."
            " Call .resolve_neg() on it before giving it to the optimizer."
        )
    check_memory(var, f"'{name}'")
    if may_overlap(var):
        zero = [dim for dim, step in enumerate(var.stride()) if step == 0 and var.shape[dim] > 1]
        why = "stride 0" if zero else f"shape {tuple(var.shape)}, strides {var.stride()}"
        raise LayoutError(
            f"cannot update '{name}' in place: its {var.numel()} elements share memory ({why})."
            " Call .clone() on it before giving it to the optimizer."
        )


def check_slots(var: Tensor, slots: Sequence[Tensor], name: str) -> None:
    """Refuse slots that no engine can update beside their variable.

    Raises:
        InvalidTypeError: For a dtype that is not computed.
        InvalidArgumentError: If shapes or devices differ.
        LayoutError: If elements of a slot share memory.
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
    """The slots of a variable that are kept as numbers, and not as bytes of a codec.

    Args:
        slots: All of them.
        codecs: For each that of the rule, or None; nothing if there is none.
    """
    if not codecs:
        return slots
    pairs = zip(slots, codecs, strict=True)
    return [slot for slot, codec in pairs if codec is None or slot.dtype != torch.uint8]


def may_overlap(tensor: Tensor) -> bool:
    """Whether two elements of a tensor may lie at one address."""
    if is_dense(tensor):
        return False
    extents = zip(tensor.stride(), tensor.shape, strict=True)
    reach = 0
    for stride, size in sorted(pair for pair in extents if pair[1] != 1):
        if stride <= reach:
            # The quick test cannot tell; look at the addresses themselves.
            offsets = _element_offsets(tensor)
            return offsets is None or len(np.unique(offsets)) < len(offsets)
        reach += stride * (size - 1)
    return False


def _element_offsets(tensor: Tensor) -> Int64 | None:
    if tensor.numel() > _ENUMERABLE:
        return None
    total = np.zeros((), np.int64)
    for stride, size in zip(tensor.stride(), tensor.shape, strict=True):
        total = np.add.outer(total, np.arange(size, dtype=np.int64) * stride)
    return total.ravel()


def byte_span(tensor: Tensor) -> tuple[int, int]:
    """First byte and one past the last byte that a tensor reaches."""
    if tensor.numel() == 0:
        return 0, 0
    if tensor.is_contiguous():
        start = tensor.data_ptr()
        return start, start + tensor.nbytes
    last = sum(
        stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )
    start = tensor.data_ptr()
    return start, start + (last + 1) * tensor.element_size()


def runs_of(tensors: Sequence[Tensor]) -> Int64:
    """Where tensors lie: start, end, start, end ... of disjoint runs of addresses, ascending."""
    spans = np.array([byte_span(tensor) for tensor in tensors if tensor.numel()], np.int64)
    # Address 0 counts as theirs: a gradient there lies on the meta device.
    return joined([np.array([-1, 1]), spans])


def joined(runs: Sequence[Int64]) -> Int64:
    """Where several runs of addresses lie, as `runs_of` has them."""
    spans = np.concatenate([each.reshape(-1, 2) for each in runs])
    spans = spans[np.argsort(spans[:, 0])]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.append(True, spans[1:, 0] > reach[:-1]))
    last = np.append(first[1:] - 1, len(spans) - 1)
    return np.stack([spans[first, 0], reach[last]], axis=1).ravel()


def lie_apart(starts: Int64 | int, sizes: Int64 | int, bounds: Int64) -> bool:
    """Whether no run of so many bytes reaches into memory with these bounds."""
    # A run that begins inside lies after an odd number of bounds; one that ends inside, or behind,
    # has more of them before its end than before its start.
    before = bounds.searchsorted(starts, "right")
    return not ((before & 1) | (before != bounds.searchsorted(starts + sizes))).any()


def check_disjoint(tensors: Sequence[Tensor], names: Sequence[str]) -> None:
    """Refuse different tensors that share memory.

    Raises:
        LayoutError: Names the first pair found.
    """
    spans = [(*byte_span(tensor), index) for index, tensor in enumerate(tensors) if tensor.numel()]
    spans.sort()
    open_spans: list[tuple[int, int]] = []
    for start, end, index in spans:
        open_spans = [other for other in open_spans if other[0] > start]
        for _, other in open_spans:
            if _share_bytes(tensors[other], tensors[index]):
                first, second = sorted((other, index))
                raise LayoutError(
                    f"cannot update '{names[first]}' and '{names[second]}' in one step:"
                    " they share memory. Give the optimizer one of them, or a .clone()."
                )
        open_spans.append((end, index))


def _share_bytes(a: Tensor, b: Tensor) -> bool:
    if a.device != b.device:
        return False
    if is_dense(a) and is_dense(b):
        return True
    addresses: list[Int64] = []
    for tensor in (a, b):
        offsets = _element_offsets(tensor)
        if offsets is None:
            return True
        starts = offsets * tensor.element_size() + tensor.data_ptr()
        addresses.append(np.add.outer(starts, np.arange(tensor.element_size())).ravel())
    return bool(np.intersect1d(addresses[0], addresses[1]).size)


def check_copy(var: Tensor, copy: Tensor, name: str) -> None:
    """Refuse a tensor that cannot hold a variable's numbers in a 16-bit type, or elsewhere.

    Raises:
        InvalidTypeError: If it is of no 16-bit type, nor of the variable's on another device.
        InvalidArgumentError: If shapes differ.
        LayoutError: If elements of the copy share memory.
    """
    same = is_far(copy, var.device) and copy.dtype == var.dtype
    if var.dtype in REDUCED and not same:
        raise InvalidTypeError(
            f"{name} is {dtype_name(var.dtype)} and can have no copy, expected: [float32, float64]."
        )
    if copy.dtype not in REDUCED and not same:
        raise InvalidTypeError(
            f"Invalid type {copy.dtype} for the copy of {name}, expected: [float16, bfloat16]."
        )
    if copy.shape != var.shape:
        raise InvalidArgumentError(
            f"The copy of '{name}' has shape {tuple(copy.shape)} on {copy.device} but the variable"
            f" has shape {tuple(var.shape)} on {var.device}."
        )
    check_variable(copy, f"the copy of {name}")


def check_gradient(
    grad: Tensor,
    var: Tensor,
    name: str,
    narrow: bool = False,
    device: torch.device | None = None,
) -> None:
    """Refuse a dense gradient that does not belong to its variable.

    Args:
        grad, var, name: Gradient and variable.
        narrow: Whether the gradient of a float32 variable may be of a 16-bit type.
        device: Where the gradient is to be, if not with the variable.

    Raises:
        InvalidTypeError: If the dtypes differ.
        InvalidArgumentError: If shapes or devices differ.
    """
    check_kind(grad, var, name, narrow, device)
    check_shape(grad, var, name)


def check_shape(grad: Tensor | IndexedSlices, var: Tensor, name: str) -> None:
    """Refuse a gradient, dense or sparse, that has not the shape of its variable.

    Of slices the rows count, and not what they say of the whole, which TensorFlow never reads.

    Raises:
        InvalidArgumentError: It has another one.
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
    values: Tensor,
    var: Tensor,
    name: str,
    narrow: bool = False,
    device: torch.device | None = None,
) -> None:
    """Refuse a gradient's elements that lie elsewhere, or are of another dtype, than a variable's.

    Raises:
        InvalidTypeError: If the dtypes differ.
        InvalidArgumentError: If the devices differ.
        LayoutError: If the elements are not in memory.
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
    grad: IndexedSlices, var: Tensor, name: str, scatter: bool, narrow: bool = False
) -> None:
    """Refuse a sparse gradient that does not belong to its variable.

    Args:
        grad, var, name: Gradient and variable.
        scatter: Whether a bad index is reported as TensorFlow's scatter kernels do.
        narrow: Whether the values for a float32 variable may be of a 16-bit type.

    Raises:
        InvalidTypeError: If the dtypes differ.
        InvalidArgumentError: If shapes or devices differ, or an index is out of range.
        LayoutError: If values or indices are not in memory.
    """
    check_kind(grad.values, var, name, narrow)
    check_shape(grad, var, name)
    check_memory(grad.indices, f"The indices of the gradient of '{name}'")
    try:
        grad.check_range(var.shape[0], "scatter" if scatter else "fused")
    except InvalidArgumentError as error:
        error.add_note(f"In the gradient of '{name}'.")
        raise


def with_strides_of(grad: Tensor, var: Tensor) -> Tensor:
    """The gradient in the variable's own strides, copied only if it has others."""
    grad = grad.detach()
    if grad.is_neg() or grad.is_conj():
        grad = grad.resolve_neg().resolve_conj()
    if same_strides(grad, var) and is_aligned(grad):
        return grad
    copy = torch.empty_strided(var.shape, var.stride(), dtype=grad.dtype, device=grad.device)
    return copy.copy_(grad)


def as_packed(values: Tensor) -> Tensor:
    """The values contiguous, aligned and as they read; copied only if they are not."""
    values = values.detach().resolve_neg().contiguous()
    return values if is_aligned(values) else values.clone()


def warn_slow(name: str, why: str) -> None:
    """One PerformanceWarning for a variable that cannot take the fused path."""
    warn(
        f"'{name}' {why}, so it is updated by the reference engine, slowly."
        " Make it contiguous to have it fused.",
        PerformanceWarning,
    )
