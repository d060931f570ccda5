"""Entries over the same memory: the last one would win, so all must say the same of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg._core.state.entries import Entry, has_storage, kept, plain
from thalweg._engines.layout import byte_span

_ALIGNED = 16  # bytes, a multiple of each element's size

_Place = tuple[Tensor, Entry, Any]  # the entry's plain tensor, the entry, what it is set to


def conflicts(pairs: Iterable[tuple[Entry, object]]) -> list[str]:
    """Which entries would not keep what they are set to, in words."""
    return [each for group in _groups(pairs) for each in _of_group(_distinct(group))]


def _groups(pairs: Iterable[tuple[Entry, object]]) -> Iterator[list[_Place]]:
    """Those that lie in one run of memory, in the order in which they are set."""
    places = [(plain(entry.own), entry, value) for entry, value in pairs]
    found = [
        (str(place[0].device), *byte_span(place[0]), index)
        for index, place in enumerate(places)
        if place[0].numel() and has_storage(place[0])
    ]
    group, device, reach = list[int](), "", 0
    for where, start, end, index in sorted(found):
        if where != device or start >= reach:
            if len(group) > 1:
                yield [places[each] for each in sorted(group)]
            group, device, reach = [], where, end
        group.append(index)
        reach = max(reach, end)
    if len(group) > 1:
        yield [places[each] for each in sorted(group)]


def _distinct(group: Sequence[_Place]) -> list[_Place]:
    """One of those that are the same tensor and are set to the same."""
    found: list[_Place] = []
    for own, entry, value in group:
        if not any(_is_one(own, other) and alike(value, given) for other, _, given in found):
            found.append((own, entry, value))
    return found


def _of_group(group: Sequence[_Place]) -> list[str]:
    if len(group) < 2:
        return []
    start = min(byte_span(own)[0] for own, _, _ in group) // _ALIGNED * _ALIGNED
    size = max(byte_span(own)[1] for own, _, _ in group) - start
    memory = torch.empty(-(-size // _ALIGNED) * _ALIGNED, dtype=torch.uint8, device="cpu")
    views = [_view(memory, own, byte_span(own)[0] - start) for own, _, _ in group]
    values = [kept(value, own.dtype) for own, _, value in group]
    for view, value in zip(views, values, strict=True):
        view.copy_(value)
    return [
        f"{group[index][1].name!r} and {_later(group, index)!r} share memory here, and are given"
        " different values"
        for index, (view, value) in enumerate(zip(views, values, strict=True))
        if not alike(view, value)
    ]


def _view(memory: Tensor, own: Tensor, offset: int) -> Tensor:
    """Where a tensor would lie in a copy of its memory."""
    items = memory.view(own.dtype)
    found = items.as_strided(own.shape, own.stride(), offset // own.element_size())
    found = found.conj() if own.is_conj() else found
    return torch._neg_view(found) if own.is_neg() else found  # pyright: ignore


def _later(group: Sequence[_Place], index: int) -> str:
    start, end = byte_span(group[index][0])
    for own, entry, _ in group[index + 1 :]:
        first, last = byte_span(own)
        if first < end and start < last:
            return entry.name
    return group[-1][1].name


def _is_one(one: Tensor, other: Tensor) -> bool:
    def key(tensor: Tensor) -> Any:
        bits = tensor.dtype, tensor.is_conj(), tensor.is_neg()
        return tensor.data_ptr(), tensor.shape, tensor.stride(), bits

    return key(one) == key(other)


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits."""
    if one.dtype != other.dtype or one.device != other.device:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: Tensor) -> Tensor:
    resolved = plain(tensor).resolve_conj().resolve_neg().contiguous()
    return resolved.view(-1).view(torch.uint8)
