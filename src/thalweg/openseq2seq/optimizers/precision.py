"""Check that a mixed-precision training computes anything in 16 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from thalweg._base.showing import show_value
from thalweg.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    PerformanceWarning,
    did_you_mean,
    warn,
)
from thalweg.variable import REDUCED, as_dtype, dtype_name

_MESSAGE = (
    'dtype is "mixed", but nothing is in mixed precision: no variable is float16 or bfloat16, and'
    " the loss computes in neither. The loss is scaled all the same. Call model.half() or"
    " model.bfloat16() beforehand, use torch.autocast inside of the loss, or leave the dtype at"
    " float32."
)


_PLAIN = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_NAMES = ("mixed", *map(dtype_name, _PLAIN))


def is_mixed(dtype: object) -> bool:
    """Return True if a dtype means mixed precision; None does not.

    Raises:
        InvalidArgumentError: The name is unknown, or nothing is trained in the dtype.
        InvalidTypeError: The value is neither a name nor a dtype.
    """
    known = f"dtype must be one of {', '.join(_NAMES)}, not {show_value(dtype)}."
    if dtype is None:
        return False
    if isinstance(dtype, str) and dtype not in _NAMES:
        raise InvalidArgumentError(f"{known} {did_you_mean(dtype, _NAMES)}".rstrip())
    if isinstance(dtype, str):
        return dtype == "mixed"
    try:
        found = as_dtype(dtype)
    except InvalidTypeError as error:
        raise InvalidTypeError(known) from error
    if found not in _PLAIN:
        raise InvalidArgumentError(known)
    return False


class MixedCheck:
    """Warns if a first loss depends on nothing that has a 16-bit dtype, be it a variable or not."""

    def __init__(self) -> None:
        self._is_due = True

    def __call__(self, loss: object) -> None:
        """Look at the first loss that is given, a tensor that autograd has recorded."""
        if self._is_due:
            if not _has_16_bits(loss):
                warn(_MESSAGE, PerformanceWarning)
            self._is_due = False


def _has_16_bits(loss: object) -> bool:
    """Return whether autograd has met 16 bits, or a function that it does not look into."""
    if not isinstance(loss, Tensor) or loss.grad_fn is None:
        return True  # refused elsewhere
    waiting: list[Any] = [loss.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if isinstance(node, BackwardCFunction) or not hasattr(node, "_input_metadata"):
            return True
        if any(each.dtype in REDUCED for each in node._input_metadata):
            return True
        following = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= following
        waiting += following
    return False
