"""Shape, dtype and scale of a loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction

from thalweg._base.showing import show_value
from thalweg._graph import executing_eagerly, is_symbolic
from thalweg.errors import (
    InvalidArgumentError,
    InvalidTypeError,
    PerformanceWarning,
    did_you_mean,
    warn,
)
from thalweg.variable import REDUCED, as_dtype, dtype_name


def check_scalar(loss: object) -> None:
    """Raise InvalidArgumentError if a loss, eager or symbolic, has a known shape other than ()."""
    # An unknown shape of a graph's tensor is false, as that of a scalar.
    if shape := getattr(loss, "shape", ()):
        raise InvalidArgumentError(
            f"loss must be a scalar, of shape (), not of shape {tuple(shape)}. Reduce it, as by"
            " .mean() or .sum()."
        )


def scaled(loss: object, scale: object) -> Any:
    """Return a loss times the scale, as a callable or a symbolic tensor like the loss.

    In graph mode, a callable is called now, and the product is returned. An eager tensor, which
    `compute_gradients` rejects, is returned unscaled. The product with a number has the loss's
    dtype; it may be infinite.

    Raises:
        InvalidTypeError: The scale is a tensor, and the loss is not float32. A returned callable
            raises the error when called.
    """
    if callable(loss) and not isinstance(loss, Tensor) and not is_symbolic(loss):
        if not executing_eagerly():
            return _scale_loss(loss(), scale)
        return lambda: _scale_loss(loss(), scale)
    return _scale_loss(loss, scale) if is_symbolic(loss) else loss


def _scale_loss(value: Any, scale: Any) -> object:
    """Return a loss times the scale; the loss itself if the scale is 1.

    Raise InvalidTypeError if the scale is a tensor and the loss is not float32.
    """
    dtype = getattr(value, "dtype", None)
    if not isinstance(scale, float) and dtype not in (torch.float32, None):
        raise InvalidTypeError(
            f"The loss is {dtype_name(dtype)}, but a loss scale that adapts is float32. Cast the"
            " loss to float32."
        )
    if isinstance(scale, float) and scale == 1.0:
        return value
    if isinstance(scale, Tensor) and isinstance(value, Tensor):
        scale = scale.to(value.device)
    return value * scale


_MESSAGE = (
    'dtype is "mixed", but nothing is in mixed precision: no variable is float16 or bfloat16, and'
    " the loss computes in neither. The loss is scaled all the same. Call model.half() or"
    " model.bfloat16() beforehand, use torch.autocast inside of the loss, or leave the dtype at"
    " float32."
)


_FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_NAMES = ("mixed", *map(dtype_name, _FLOAT_DTYPES))


def is_mixed(dtype: object) -> bool:
    """Return True if `dtype` is "mixed"; return False for None and floating-point dtypes.

    Raises:
        InvalidArgumentError: The name is unknown, or the dtype is not floating-point.
        InvalidTypeError: `dtype` is neither a name nor a dtype.
    """
    expected = f"dtype must be one of {', '.join(_NAMES)}, not {show_value(dtype)}."
    if dtype is None:
        return False
    if isinstance(dtype, str) and dtype not in _NAMES:
        raise InvalidArgumentError(f"{expected} {did_you_mean(dtype, _NAMES)}".rstrip())
    if isinstance(dtype, str):
        return dtype == "mixed"
    try:
        actual = as_dtype(dtype)
    except InvalidTypeError as error:
        raise InvalidTypeError(expected) from error
    if actual not in _FLOAT_DTYPES:
        raise InvalidArgumentError(expected)
    return False


class MixedCheck:
    """Check of the first loss; warn if its autograd graph has no 16-bit tensor."""

    def __init__(self) -> None:
        self._is_first_loss = True

    def __call__(self, loss: object) -> None:
        """Check the first loss, a tensor recorded by autograd; ignore later ones."""
        if self._is_first_loss:
            if not _has_16_bits(loss):
                warn(_MESSAGE, PerformanceWarning)
            self._is_first_loss = False


def _has_16_bits(loss: object) -> bool:
    """Return True if a loss's autograd graph has 16-bit dtypes, or functions of unknown dtype.

    Return True for a loss without graph, too.
    """
    if not isinstance(loss, Tensor) or loss.grad_fn is None:
        # Such losses are rejected elsewhere.
        return True
    waiting: list[Any] = [loss.grad_fn]
    visited = set(waiting)
    while waiting:
        node = waiting.pop()
        # Custom autograd functions do not tell their dtypes: they may compute in 16 bits.
        if isinstance(node, BackwardCFunction) or not hasattr(node, "_input_metadata"):
            return True
        if any(metadata.dtype in REDUCED for metadata in node._input_metadata):
            return True
        new_nodes = {
            node_below for node_below, _ in node.next_functions if node_below is not None
        } - visited
        visited |= new_nodes
        waiting += new_nodes
    return False
