"""What one kernel reads and writes of variables with dense gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.array_types import Int64
from thalweg._engines.protocol import Dtype, StepRequest
from thalweg._engines.random_bits import NARROW


class Streams(NamedTuple):
    """The memory of several variables of one storage signature.

    Attributes:
        names: Storage types of variable, gradient, slots and copy (if any); the names of codecs for
            slots that are encoded.
        copied: Whether there is a copy.
        from_copy: Whether what others wrote to it counts.
        compute: The type of the arithmetic.
        gradient: The dtype of gradients.
        sizes: Elements of each variable.
        base: (variables, streams) where they begin; 0 for gradients. With `draws` there are two
            columns more: each variable's place, as `StepRequest.places` has it.
        draws: Whether numbers of 16 bits are rounded by random bits.
    """

    names: tuple[str, ...]
    copied: bool
    from_copy: bool
    compute: Dtype
    gradient: torch.dtype
    sizes: list[int]
    base: Int64
    draws: bool = False

    @property
    def measured_types(self) -> tuple[str, ...]:
        """The storage types of what measures may read."""
        return self.names if self.from_copy else self.names[: len(self.names) - self.copied]

    @property
    def bytes(self) -> Int64:
        """How many each gradient has."""
        return np.array(self.sizes, np.int64) * self.gradient.itemsize


def streams_of(request: StepRequest, members: Sequence[int]) -> Streams:
    """Those of some of the variables of a step, which are all of one storage signature."""
    copies = request.copies or [None] * len(request.variables)
    tensors_by_member = [
        [request.variables[i], *request.slots[i], *([] if (copy := copies[i]) is None else [copy])]
        for i in members
    ]
    gradient = request.gradients[members[0]].dtype
    var, *other_dtypes = (tensor.dtype for tensor in tensors_by_member[0])
    kinds = (var, gradient, *other_dtypes)
    codecs = dict(enumerate(request.rule.codecs, 2))
    names = tuple(
        layout.STORAGE_NAMES.get(dtype) or str(codecs[k]) for k, dtype in enumerate(kinds)
    )
    base = np.zeros((len(members), len(names)), np.int64)
    for row, tensors in enumerate(tensors_by_member):
        base[row, 0], *base[row, 2:] = map(Tensor.data_ptr, tensors)
    has_copy = copies[members[0]] is not None
    rounded_names = (
        names[0],
        *names[2 : len(names) - has_copy],
    )  # copies are rounded to the nearest
    draws = bool(request.places) and not NARROW.isdisjoint(rounded_names)
    if draws:
        base = np.hstack([base, np.array([request.places[i] for i in members], np.int64)])
    return Streams(
        names,
        has_copy,
        has_copy and request.from_copies,
        layout.compute_dtype(var),
        gradient,
        [tensors[0].numel() for tensors in tensors_by_member],
        base,
        draws,
    )
