"""A loss times the loss scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thalweg._graph import executing_eagerly, is_symbolic
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.variable import dtype_name


def check_scalar(loss: object) -> None:
    """Raise for a loss, of a graph or not, that has more or less than one number to minimize.

    Raises:
        InvalidArgumentError: It is known that its shape is not ().
    """
    # An unknown shape of a graph's tensor is false, as that of a scalar.
    if shape := getattr(loss, "shape", ()):
        raise InvalidArgumentError(
            f"loss must be a scalar, of shape (), not of shape {tuple(shape)}. Reduce it, as by"
            " .mean() or .sum()."
        )


def scaled(loss: object, scale: object) -> Any:
    """Return a loss of the same kind, a callable or a symbolic tensor, times the scale.

    A number scales a loss in the loss's own dtype, where it may become infinite.

    Raises:
        InvalidTypeError: The scale is a tensor, as one that adapts, and the loss is not float32.
            For a callable, when it is called.
    """
    if callable(loss) and not isinstance(loss, Tensor) and not is_symbolic(loss):
        if not executing_eagerly():
            return _scale_loss(loss(), scale)
        return lambda: _scale_loss(loss(), scale)
    return _scale_loss(loss, scale) if is_symbolic(loss) else loss


def _scale_loss(value: Any, scale: Any) -> object:
    """Return a loss times the scale; the loss itself for scale 1.

    Raises:
        InvalidTypeError: The scale is a tensor and the loss is not float32.
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
