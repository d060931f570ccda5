"""Gradients that are added up over several runs before they make one update."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.checks import check_memories, check_pairs
from thalweg.core.section import Call
from thalweg.core.slots import SlotStore
from thalweg.core.state import Staged
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.ground.scalars import reciprocal
from thalweg.indexed_slices import IndexedSlices, values_of, with_values
from thalweg.openseq2seq.optimizers.gradients import Gradient
from thalweg.v1.train.slot_creator import base_name
from thalweg.variable import titles_of

ACCUMULATOR = "gradient_sum"


class Accumulators(Staged):
    """A sum of gradients for each variable, of its shape and dtype; variables of a graph in one."""

    def __init__(self) -> None:
        self._slots = SlotStore()

    def make(self, targets: Sequence[Any]) -> None:
        """Zeros for the variables that have no sum yet."""
        missing = [var for var in targets if self._slots.get(var, ACCUMULATOR) is None]
        names = [f"{base_name(var)}/{ACCUMULATOR}" for var in missing]
        self._slots.make(missing, ACCUMULATOR, 0.0, names)

    def get(self, target: Any) -> Any:
        """The sum of a variable, or None."""
        return self._slots.get(target, ACCUMULATOR)

    def of(self, targets: Sequence[Any]) -> list[Any]:
        """The sums; KeyError if one is missing."""
        return [self._slots.of(var, [ACCUMULATOR])[0] for var in targets]


def check_count(iter_size: Any) -> None:
    """Refuse what is no number of runs.

    Raises:
        InvalidArgumentError: It is no positive integer.
    """
    if not isinstance(iter_size, int) or isinstance(iter_size, bool) or iter_size < 1:
        raise InvalidArgumentError(f"iter_size must be a positive integer, not {iter_size!r}.")


def as_skip(value: Any) -> bool:
    """Whether a run only adds gradients up: a bool, a tensor of shape (), or what a callable gives.

    Raises:
        InvalidTypeError: It is no bool.
    """
    found = value() if callable(value) and not isinstance(value, Tensor) else value
    if isinstance(found, Tensor) and found.shape == () and found.dtype == torch.bool:
        return bool(found)
    if isinstance(found, bool | np.bool_):
        return bool(found)
    raise InvalidTypeError(f"skip_update_ph must be or return a bool, not {found!r}.")


def check_addable(
    gradients: Sequence[Gradient], targets: Sequence[Tensor], sums: Sequence[Tensor]
) -> None:
    """Refuse gradients and sums that do not fit their variables; nothing has changed then."""
    names = titles_of(list(targets))
    check_memories([*sums])
    found = [
        (grad, var, name)
        for grad, var, name in zip(gradients, targets, names, strict=True)
        if grad is not None
    ]
    check_pairs([(grad, var) for grad, var, _ in found], [name for *_, name in found], scatter=True)


def shares(gradients: Sequence[Gradient], count: int) -> list[Gradient]:
    """What a run adds up: gradients divided by `count`, as a session divides by a constant."""
    found: list[Gradient] = []
    for grad in gradients:
        if grad is None:
            found.append(None)
            continue
        values = values_of(grad)
        found.append(with_values(grad, values * reciprocal(values.new_tensor(count))))
    return found


def adding(sums: Sequence[Tensor], shares: Sequence[Gradient]) -> list[Call]:
    """What adds shares to their sums, as functions in C; None adds nothing."""
    made: list[Call] = []
    for total, grad in zip(sums, shares, strict=True):
        if isinstance(grad, IndexedSlices):
            made.append(partial(total.detach().index_add_, 0, grad.indices.long(), grad.values))
        elif grad is not None:
            made.append(partial(total.detach().add_, grad))
    return made


def clearing(sums: Sequence[Tensor]) -> list[Call]:
    """What begins anew, as functions in C."""
    return [total.detach().zero_ for total in sums]
