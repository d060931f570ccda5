"""Gradients that are added up over several runs before they make one update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg.core.slots import SlotStore
from thalweg.core.state import Staged
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.v1.train.slot_creator import base_name

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
