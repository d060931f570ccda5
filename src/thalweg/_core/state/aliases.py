"""Detection of state entries that share memory, but would get different values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._core.state.entries import Entry, has_storage, kept, plain
from thalweg._engines.layout import byte_span

# In bytes; a multiple of every element size, so that views of any dtype are aligned.
_ALIGNED = 16

# Plain tensor of the entry, the entry, and its new value.
_Write = tuple[Tensor, Entry, Any]


def conflicts(pairs: Iterable[tuple[Entry, object]]) -> list[str]:
    """Return a message for each entry that would lose its value when all values are written.

    A value is lost if a later write to overlapping memory changes it. Nothing is written.
    """
    return [message for group in _group_writes(pairs) for message in _describe_lost_values(group)]


def _group_writes(pairs: Iterable[tuple[Entry, object]]) -> Iterator[list[_Write]]:
    """Yield a list of writes, in the order of `pairs`, for each group of overlapping tensors."""
    writes = [(plain(entry.own), entry, value) for entry, value in pairs]
    spans = [
        (str(write[0].device), *byte_span(write[0]), index)
        for index, write in enumerate(writes)
        if write[0].numel() and has_storage(write[0])
    ]
    group, device, group_end = list[int](), "", 0
    for span_device, start, end, index in sorted(spans):
        if span_device != device or start >= group_end:
            if len(group) > 1:
                yield [writes[position] for position in sorted(group)]
            group, device, group_end = [], span_device, end
        group.append(index)
        group_end = max(group_end, end)
    if len(group) > 1:
        yield [writes[position] for position in sorted(group)]


def _describe_lost_values(group: Sequence[_Write]) -> list[str]:
    """Return a message for each write of `group` whose value a later write overwrites.

    The entries are not changed: the writes are tried in new memory.
    """
    # Comparing addresses is not enough: strided views of one span need not share an element.
    start = min(byte_span(tensor)[0] for tensor, _, _ in group) // _ALIGNED * _ALIGNED
    size = max(byte_span(tensor)[1] for tensor, _, _ in group) - start
    memory = torch.empty(-(-size // _ALIGNED) * _ALIGNED, dtype=torch.uint8, device="cpu")
    views = [_view(memory, tensor, byte_span(tensor)[0] - start) for tensor, _, _ in group]
    values = [kept(value, tensor.dtype, memory.device) for tensor, _, value in group]
    for view, value in zip(views, values, strict=True):
        view.copy_(value)
    return [
        f"{group[index][1].name!r} and {_find_later_name(group, index)!r} share memory here, and"
        " are given different values"
        for index, (view, value) in enumerate(zip(views, values, strict=True))
        if not alike(view, value)
    ]


def _view(memory: Tensor, tensor: Tensor, offset: int) -> Tensor:
    """Return the view of `memory` at a byte offset with the dtype and layout of the tensor."""
    elements = memory.view(tensor.dtype)
    view = elements.as_strided(tensor.shape, tensor.stride(), offset // tensor.element_size())
    view = view.conj() if tensor.is_conj() else view
    return torch._neg_view(view) if tensor.is_neg() else view  # pyright: ignore


def _find_later_name(group: Sequence[_Write], index: int) -> str:
    """Return the name of the first later entry that overlaps the entry at `index`."""
    start, end = byte_span(group[index][0])
    for tensor, entry, _ in group[index + 1 :]:
        first, last_byte_end = byte_span(tensor)
        if first < end and start < last_byte_end:
            return entry.name
    return group[-1][1].name


def alike(tensor1: Tensor, tensor2: Tensor) -> bool:
    """Return True if two tensors have the same dtype, device, and bits."""
    if tensor1.dtype != tensor2.dtype or tensor1.device != tensor2.device:
        return False
    return torch.equal(_view_bits(tensor1), _view_bits(tensor2))


def _view_bits(tensor: Tensor) -> Tensor:
    contiguous = plain(tensor).resolve_conj().resolve_neg().contiguous()
    return contiguous.view(-1).view(torch.uint8)
