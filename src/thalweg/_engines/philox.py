"""Random bits, and how numbers are rounded by them to 16 bits: the same on every engine.

Philox4x32-10 (Salmon et al. 2011) makes four words of 32 bits of a key and a counter. The key is
the seed of a training; the counter is where and when a number is stored: the position of its
element, counted in eights, in the whole variable; the number of the step; that of the variable; and
that of what is stored. Of the eight elements of a call each takes 16 bits. So neither threads nor
ranks, and no pause of a training, change what is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.random_bits import GROUP, SCALARS

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
INCREMENTS = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF

Words = npt.NDArray[np.uint64]


def philox(counter: tuple[Words, int, int, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """The four words of each counter.

    Args:
        counter: Four words of 32 bits, each in 64.
        key: Two words.
    """
    mask, (first, second) = np.uint64(MASK), map(np.uint64, MULTIPLIERS)
    c0, c1, c2, c3 = (np.asarray(each, np.uint64) for each in counter)
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = first * c0, second * c2
        c0 = (right >> np.uint64(32)) ^ c1 ^ np.uint64(k0)
        c1 = right & mask
        c2 = (left >> np.uint64(32)) ^ c3 ^ np.uint64(k1)
        c3 = left & mask
        k0, k1 = (k0 + INCREMENTS[0]) & MASK, (k1 + INCREMENTS[1]) & MASK
    return c0, c1, c2, c3


def draw_bits(
    count: int, origin: int, step: int, number: int, stream: int, key: tuple[int, int]
) -> npt.NDArray[np.uint32]:
    """16 bits for each of some elements that follow one another.

    Args:
        count: How many elements.
        origin: The position of the first one in the whole variable.
        step, number: Of the step, and of the variable.
        stream: Which of the numbers of an element is stored: 0 the variable, 1 its first slot ...
        key: From the seed.
    """
    first, shift = divmod(origin, GROUP)
    groups = np.arange(first, first + -(-(shift + count) // GROUP), dtype=np.uint64)
    high = (groups >> np.uint64(32)) << np.uint64(8) | np.uint64(stream)
    counter = groups & np.uint64(MASK), step, number, high
    words = np.stack(np.broadcast_arrays(*philox(counter, key)), axis=-1)
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=-1)
    return halves.astype(np.uint32).reshape(-1)[shift : shift + count]


def round_to_bfloat(
    values: npt.NDArray[np.float32], bits: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint16]:
    """Numbers as bfloat16, the upper of two neighbours as often as they are near it.

    What is no finite number, or beyond the largest, becomes what it does without.
    """
    own = values.view(np.uint32)
    size = own & np.uint32(0x7FFFFFFF)
    moved = np.where(size < np.uint32(0x7F7F0000), own + bits, own + ((own >> 16 & 1) + 0x7FFF))
    found = np.where(size > np.uint32(0x7F800000), np.uint32(0x7FC0), moved >> 16)
    return found.astype(np.uint16)


def round_to_half(
    values: npt.NDArray[np.float32], bits: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint16]:
    """The same as float16."""
    size = values.view(np.uint32) & np.uint32(0x7FFFFFFF)
    least = np.maximum(size >> np.uint32(23), np.uint32(113)) - np.uint32(10)  # a last place
    unit = (least << np.uint32(23)).view(np.float32)
    inverse = ((np.uint32(254) - least) << np.uint32(23)).view(np.float32)
    with np.errstate(all="ignore"):
        places = size.view(np.float32) * inverse
        whole = np.floor(places)
        share = (places - whole) * np.float32(65536) + bits.astype(np.float32)
        found = (whole + (share >= 65536).astype(np.float32)) * unit
        nearest = values.astype(np.float16).view(np.uint16)
        sign = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16) & np.uint16(0x8000)
        moved = found.astype(np.float16).view(np.uint16) | sign
    return np.where(size < np.uint32(0x477FE000), moved, nearest)  # 65504


def round_tensor(
    value: Tensor,
    var: Tensor,
    dtype: torch.dtype,
    place: tuple[int, int],
    stream: int,
    scalars: Mapping[str, Any],
) -> Tensor:
    """New values of a variable or a slot in 16 bits, drawn in the order of the variable's memory.

    Args:
        value: The values, of the variable's shape, in float32.
        var: The variable.
        dtype: float16 or bfloat16.
        place: The number of the variable, and the position of its first element in the whole.
        stream: As for `draw_bits`.
        scalars: What kernels are given.
    """
    like = var if layout.is_dense(var) else torch.empty(var.shape, dtype=dtype, device="meta")
    made = torch.empty_like(like, dtype=dtype, device="cpu", memory_format=torch.preserve_format)
    numbers = torch.empty_like(made, dtype=torch.float32).copy_(value)
    flat = numbers.as_strided((var.numel(),), (1,)).numpy()
    step, low, high = (int(scalars[name]) for name in SCALARS)
    bits = draw_bits(var.numel(), place[1], step, place[0], stream, (low, high))
    round_to = round_to_half if dtype == torch.float16 else round_to_bfloat
    found = torch.from_numpy(round_to(flat, bits).view(np.int16)).view(dtype)  # pyright: ignore
    made.as_strided((var.numel(),), (1,)).copy_(found)
    return made.to(value.device)
