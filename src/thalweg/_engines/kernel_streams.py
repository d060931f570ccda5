"""Tensors of one kernel, as tables of dtypes, sizes and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._engines import layout
from thalweg._engines.array_types import Int64
from thalweg._engines.codegen import Measurement, Update, find_codecs
from thalweg._engines.protocol import Dtype, StepRequest
from thalweg._engines.random_bits import NARROW, ElementRuns, Place

# A full variable that is rounded to the nearest numbers.
_BEGINNING: Place = (None, 0)


class Streams(NamedTuple):
    """The memory of several variables with equal dtypes that one kernel updates.

    Attributes:
        names: Storage types of variable, gradient, slots and copy (if any); encoded slots have the
            name of their codec.
        copied: True if the variables have copies.
        from_copy: True if the step begins at a copy that other code has written.
        compute: The compute dtype.
        gradient: The dtype of the gradients.
        sizes: The number of elements of each variable.
        base: Addresses, (variables, streams); 0 for gradients. With `positions`, there are two more
            columns: the variable's index for random bits, and the first element's position.
        draws: True if 16-bit numbers are rounded stochastically.
        positions: True if rounding depends on positions of elements: with `draws`, and for slots in
            blocks of codes.
        runs: With `positions`, the positions of each variable's elements; None for adjacent
            elements.
    """

    names: tuple[str, ...]
    copied: bool
    from_copy: bool
    compute: Dtype
    gradient: torch.dtype
    sizes: list[int]
    base: Int64
    draws: bool = False
    positions: bool = False
    runs: Sequence[ElementRuns | None] = ()

    @property
    def measured_types(self) -> tuple[str, ...]:
        """Return the storage types of the streams that measures may read."""
        return self.names if self.from_copy else self.names[: len(self.names) - self.copied]

    def describe_update(self, request: StepRequest) -> Update:
        """Return the `Update` of the variables in a step, by which the kernel is cached."""
        rule = request.rule
        return Update(
            rule.update,
            self.names,
            request.stages,
            before=rule.before,
            copy=self.copied,
            from_copy=self.from_copy,
            vectors=tuple(getattr(rule.update, "vectors", {}).items()),
            draws=self.draws,
        )

    def describe_memory(self, storage: tuple[str, ...]) -> Measurement:
        """Return a measurement without formulas, to which callers add formulas and stages.

        Args:
            storage: The streams' storage types: `names`, or `measured_types` to leave out the copy.
        """
        has_copy = self.copied and len(storage) == len(self.names)
        name = np.dtype(self.compute).name
        return Measurement((), storage, name, copy=has_copy, from_copy=self.from_copy)

    @property
    def bytes(self) -> Int64:
        """Return the size of each gradient in bytes."""
        return np.array(self.sizes, np.int64) * self.gradient.itemsize


def streams_of(request: StepRequest, members: Sequence[int]) -> Streams:
    """Return the dtypes, sizes and addresses of variables that one kernel updates, as tables.

    A *stream* is a tensor of a variable: the variable, the gradient, a slot or the 16-bit copy. All
    variables must have equal dtypes. Addresses of gradients are 0. The result does not keep the
    tensors alive.

    Args:
        members: The indices of the variables in the request. Rows of the tables have this order.
    """
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
        layout.STORAGE_NAMES.get(dtype) or str(codecs[stream]) for stream, dtype in enumerate(kinds)
    )
    base = np.zeros((len(members), len(names)), np.int64)
    for row, tensors in enumerate(tensors_by_member):
        # Column 1 is for gradients.
        base[row, 0], *base[row, 2:] = map(Tensor.data_ptr, tensors)
    has_copy = copies[members[0]] is not None
    # Copies are rounded to the nearest.
    rounded_names = (names[0], *names[2 : len(names) - has_copy])
    places = [request.places[i] for i in members] if request.places else [_BEGINNING] * len(members)
    draws = places[0][0] is not None and not NARROW.isdisjoint(rounded_names)
    has_positions = draws or any(not codec.is_beside for codec in find_codecs(names).values())
    runs: list[ElementRuns | None] = []
    if has_positions:
        runs = [origin if isinstance(origin, ElementRuns) else None for _, origin in places]
        columns = [(n or 0, origin if isinstance(origin, int) else 0) for n, origin in places]
        base = np.hstack([base, np.array(columns, np.int64)])
    return Streams(
        names,
        has_copy,
        has_copy and request.from_copies,
        layout.compute_dtype(var),
        gradient,
        [tensors[0].numel() for tensors in tensors_by_member],
        base,
        draws,
        has_positions,
        runs,
    )
