"""Accumulation of gradients over several runs per update."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.showing import show_value
from thalweg._core.slots import SlotStore
from thalweg._core.state import Staged
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.v1.train.slot_creator import base_name
from thalweg.variable import TRAINED, StateVariable, Variable

_VARIABLES = {Tensor, torch.nn.Parameter, Variable, StateVariable}
ACCUMULATOR = "gradient_sum"


class Accumulators(Staged):
    """Sums of gradients; each sum has the shape and dtype of its variable."""

    def __init__(self) -> None:
        self._slots = SlotStore()
        self._cache: tuple[list[object], list[Tensor], SlotStore] | None = None

    def of_step(self, targets: Sequence[object]) -> list[Tensor]:
        """Return a new list: the gradient sum of each target (a variable or a float32 master).

        Missing sums are created, filled with zeros. The sums of the last targets are cached.
        """
        if self._cache is not None:
            cached_targets, sums, store = self._cache
            has_same_targets = len(cached_targets) == len(targets) and all(
                map(is_, cached_targets, targets)
            )
            # An update of this object by its staged copy replaces the store of the sums.
            if has_same_targets and store is self._slots:
                return [*sums]
        self.make(targets)
        new_sums = self.of(targets)
        self._cache = list(targets), new_sums, self._slots
        return [*new_sums]

    def make(self, targets: Sequence[Any]) -> None:
        """Create sums of zeros for the variables that have none."""
        missing = [var for var in targets if self._slots.get(var, ACCUMULATOR) is None]
        names = [f"{base_name(var)}/{ACCUMULATOR}" for var in missing]
        self._slots.make(missing, ACCUMULATOR, 0.0, names)

    def get(self, target: Tensor) -> Any:
        """Return the sum of a variable, or None."""
        return self._slots.get(target, ACCUMULATOR)

    def of(self, targets: Sequence[Any]) -> list[Any]:
        """Return the sums; KeyError if one is missing."""
        return [self._slots.of(var, [ACCUMULATOR])[0] for var in targets]


def are_addable(
    gradients: Sequence[object], targets: Sequence[Tensor], sums: Sequence[Tensor]
) -> bool:
    """Return True if a quick check proves that gradients can be added to sums.

    The check requires contiguous host tensors. A gradient, target and sum must have one shape and
    dtype; targets and sums must not overlap. After False, the caller must call `check_addable`.
    """
    spans: list[tuple[int, int]] = []
    for grad, var, total in zip(gradients, targets, sums, strict=True):
        if type(grad) is not Tensor or type(var) not in _VARIABLES or type(total) not in _VARIABLES:
            return False
        if var.dtype not in TRAINED or not (var.is_leaf and var.requires_grad):
            return False
        for tensor in (grad, var, total):
            if tensor.dtype is not var.dtype or tensor.shape != var.shape or not is_whole(tensor):
                return False
        # A gradient may overlap other tensors: `adding` copies it before anything is written.
        spans += [(var.data_ptr(), var.nbytes), (total.data_ptr(), total.nbytes)]
    spans.sort()
    end = 0
    for start, size in spans:
        if start < end:
            return False
        end = start + size
    return True


def is_whole(tensor: Tensor) -> bool:
    """Return True if a tensor is contiguous in host memory, and its storage holds all elements."""
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        return False
    if not tensor.is_contiguous() or tensor.is_neg():
        return False
    try:
        end_byte = tensor.storage_offset() * tensor.itemsize + tensor.nbytes
        return tensor.untyped_storage().nbytes() >= end_byte and tensor.data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        # Tensors of functorch have no storage.
        return False


def check_count(iter_size: object) -> None:
    """Raise InvalidArgumentError unless the runs per update are a positive integer."""
    if not isinstance(iter_size, int) or isinstance(iter_size, bool) or iter_size < 1:
        raise InvalidArgumentError(
            f"iter_size must be a positive integer, not {show_value(iter_size)}."
        )


def as_skip(value: object) -> bool:
    """Return the skip flag of a run, True if the run only accumulates gradients, as a bool.

    `value` is a bool or a bool tensor of shape (), or a callable that returns either. Raise
    InvalidTypeError for any other value.
    """
    skip = value() if callable(value) and not isinstance(value, Tensor) else value
    if isinstance(skip, Tensor) and skip.shape == () and skip.dtype == torch.bool:
        return bool(skip)
    if isinstance(skip, bool | np.bool_):
        return bool(skip)
    raise InvalidTypeError(f"skip_update_ph must be or return a bool, not {show_value(skip)}.")
