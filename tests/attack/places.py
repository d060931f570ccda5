"""Places of tensors in buffers of bytes, drawn at random, and the bytes of each element."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

BYTES = 8192
FLOATS = ("float32", "float64", "float16", "bfloat16")
SIZES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int32": 4, "int64": 8}
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Place:
    """Addresses of a tensor's elements, computed without torch.

    Attributes:
        buffer: Which buffer.
        begin: The byte of the first element.
        shape, strides: As torch has them, strides in elements.
        dtype: The name of the dtype.
        is_view: Whether it shares its storage with the other tensors of the buffer.
        is_negative: Whether it is torch's negative view of what is there.
    """

    buffer: int
    begin: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    is_view: bool = False
    is_negative: bool = False

    def bytes(self) -> Array:
        """Return the bytes of each element, in the order of the elements: a row for each."""
        size = SIZES[self.dtype]
        offsets = np.zeros((), np.int64)
        for extent, stride in zip(self.shape, self.strides, strict=True):
            offsets = np.add.outer(offsets, np.arange(extent) * stride)
        return (self.begin + offsets.reshape(-1, 1) * size) + np.arange(size)

    def tensor(self, buffers: list[bytearray]) -> torch.Tensor:
        dtype, size = getattr(torch, self.dtype), SIZES[self.dtype]
        memory = buffers[self.buffer]
        if self.is_view:  # one storage per buffer, and an offset in it
            base = torch.frombuffer(memory, dtype=torch.uint8).view(dtype)
            view = base.as_strided(self.shape, self.strides, self.begin // size)
        else:
            count = (len(memory) - self.begin) // size
            base = torch.frombuffer(memory, dtype=dtype, count=count, offset=self.begin)
            view = base.as_strided(self.shape, self.strides)
        return torch._neg_view(view) if self.is_negative else view


def shape(dice: random.Random) -> tuple[int, ...]:
    while True:
        rank = dice.choice([0, 1, 1, 2, 2, 2, 3, 4])
        extents = tuple(dice.choice([1, 2, 3, 4, 5, 7, 8, 17, 33]) for _ in range(rank))
        if extents and dice.random() < 0.06:
            extents = (*extents[:-1], 0)
        if math.prod(extents) <= 130:
            return extents


def _run(extents: tuple[int, ...], order: list[int]) -> tuple[int, ...]:
    """Return strides of one run of memory whose last dimension in `order` is the innermost."""
    strides, step = [0] * len(extents), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(extents[dim], 1)
    return tuple(strides)


def _contiguous(extents: tuple[int, ...], dice: random.Random) -> tuple[int, ...]:
    return _run(extents, list(range(len(extents))))


def _permuted(extents: tuple[int, ...], dice: random.Random) -> tuple[int, ...]:
    return _run(extents, dice.sample(range(len(extents)), len(extents)))


def _channels_last(extents: tuple[int, ...], dice: random.Random) -> tuple[int, ...]:
    return _run(extents, [0, *range(2, len(extents)), 1] if len(extents) > 2 else [])


def _sliced(extents: tuple[int, ...], dice: random.Random) -> tuple[int, ...]:
    larger = tuple(extent + dice.choice([0, 0, 1, 3]) for extent in extents)
    return _run(larger, list(range(len(extents))))


def _stepped(extents: tuple[int, ...], dice: random.Random) -> tuple[int, ...]:
    factor = dice.choice([2, 3])
    return tuple(stride * factor for stride in _permuted(extents, dice))


def _expanded(extents: tuple[int, ...], dice: random.Random) -> tuple[int, ...]:
    return tuple(0 if dice.random() < 0.6 else extent for extent in _contiguous(extents, dice))


def _any(extents: tuple[int, ...], dice: random.Random) -> tuple[int, ...]:
    return tuple(dice.randint(0, 9) for _ in extents)


def _free_ones(extents: tuple[int, ...], dice: random.Random) -> tuple[int, ...]:
    pairs = zip(extents, _contiguous(extents, dice), strict=True)
    return tuple(dice.randint(0, 99) if extent == 1 else stride for extent, stride in pairs)


DENSE = [_contiguous, _contiguous, _permuted, _channels_last, _free_ones]
LOOSE = [_sliced, _stepped, _sliced, _stepped, _expanded, _any]


class Drawer:
    """Draws places one after the other, each behind the one before with canaries between them.

    A few lie anywhere instead, and some begin at odd bytes.
    """

    def __init__(self, dice: random.Random, buffers: int) -> None:
        self._dice = dice
        self._ends = [64] * buffers

    def place(
        self, extents: tuple[int, ...], dtype: str, preferred: tuple[int, ...] | None = None
    ) -> Place:
        """Return a place for a tensor of this shape.

        Args:
            extents, dtype: The tensor's shape and dtype.
            preferred: Strides that it may as well have.
        """
        dice, size = self._dice, SIZES[dtype]
        while True:
            if preferred is not None and dice.random() < 0.7:
                strides = preferred
            else:
                strides = dice.choice(DENSE if dice.random() < 0.7 else LOOSE)(extents, dice)
            if len(strides) != len(extents):
                continue
            buffer = dice.randrange(len(self._ends))
            reach = size * (1 + sum(s * max(e - 1, 0) for s, e in zip(strides, extents)))
            begin = self._ends[buffer] + dice.choice([0, 0, 1, 8, 24])
            if dice.random() < 0.04:
                begin = dice.randrange(64, max(65, self._ends[buffer]))
            if dice.random() < 0.9:
                begin = -(-begin // size) * size
            if begin + reach + 64 <= BYTES:
                break
        self._ends[buffer] = max(self._ends[buffer], begin + reach)
        is_view = begin % size == 0 and dice.random() < 0.5
        is_negative = dtype in FLOATS and dice.random() < 0.02
        return Place(buffer, begin, extents, strides, dtype, is_view, is_negative)


def overlaps_itself(place: Place) -> bool:
    addresses = place.bytes()
    return len(np.unique(addresses)) < addresses.size


def share(places: list[Place]) -> bool:
    return any(
        first.buffer == second.buffer and np.intersect1d(first.bytes(), second.bytes()).size
        for first, second in itertools.combinations(places, 2)
    )
