"""Clipping of gradients by their norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg import _graph
from thalweg._base.showing import show_value
from thalweg.errors import InvalidTypeError
from thalweg.indexed_slices import IndexedSlices
from thalweg.tf.convert import call, tensor
from thalweg.tf.elementwise import as_shaped
from thalweg.variable import dtype_name

__all__ = ["clip_by_global_norm", "clip_by_norm", "global_norm"]

_SLICES = (IndexedSlices, _graph.SymbolicSlices)


def clip_by_norm(t: object, clip_norm: object, axes: object = None, name: str | None = None) -> Any:
    """Return a tensor, or slices, scaled to a norm of at most `clip_norm`.

    The norm is computed along `axes`, by default over all elements. Elements with a NaN norm become
    NaN. Raise InvalidArgumentError if `clip_norm` does not broadcast to the tensor's shape.
    """
    if isinstance(t, _SLICES):
        return type(t)(clip_by_norm(t.values, clip_norm, axes, name), t.indices, t.dense_shape)
    axes = list(axes) if isinstance(axes, tuple) else axes

    def clip(operand: Any, limit: Tensor) -> Tensor:
        squares = (operand * operand).sum(axes, keepdim=axes is not None)
        # The gradient of a root at 0 is infinite, and `where` multiplies it by 0: NaN. The inner
        # `where` keeps 0 out of the root.
        positive = squares > 0
        size = torch.where(positive, torch.where(positive, squares, 1).sqrt(), squares)
        limit = _match_limit(operand, limit).clamp(min=0)
        # The comparison is False for a size of NaN, which is kept then.
        bound = torch.where(size < limit, limit, size)
        return as_shaped(operand, operand * limit / torch.where(bound == 0, 1, bound))

    return call(clip, tensor(t), _as_limit(clip_norm), name=name or "clip_by_norm")


def global_norm(t_list: Sequence[object], name: str | None = None) -> Any:
    """Return the norm over all elements of all tensors and slices; None if all items are None."""
    _check_list(t_list)
    operands = [_get_values(operand) for operand in t_list if operand is not None]
    if not operands:
        return None

    def measure(*tensors: Tensor) -> Tensor:
        return torch.stack([(operand * operand).sum() for operand in tensors]).sum().sqrt()

    return call(measure, *operands, name=name or "global_norm")


def clip_by_global_norm(
    t_list: Sequence[object], clip_norm: object, use_norm: object = None, name: str | None = None
) -> tuple[list[Any], Any]:
    """Scale all tensors and slices by one factor, to a global norm of at most `clip_norm`.

    Args:
        t_list: A list of tensors and slices; None stays None.
        clip_norm: Maximum norm.
        use_norm: Optional. The global norm of `t_list`; by default it is computed.

    Returns:
        (scaled list, norm before scaling). All elements are NaN if the norm is not finite.
    """
    _check_list(t_list)
    norm = global_norm(t_list, name) if use_norm is None else tensor(use_norm)
    if norm is None:
        return list(t_list), norm

    def factor(size: Tensor, limit: Tensor) -> Tensor:
        limit, highest = _match_limit(size, limit), torch.finfo(size.dtype).max
        # With a limit of 0 the factor is 0, not 0 times infinity. `size - size` is NaN for a norm
        # that is not finite.
        inverse = (1 / limit).clamp(max=highest)
        return limit * torch.minimum(1 / size, inverse) + (size - size)

    scale = call(factor, norm, _as_limit(clip_norm), name=name or "clip_by_global_norm")
    return [
        operand if operand is None else scale_values(operand, scale) for operand in t_list
    ], norm


def _as_limit(clip_norm: object) -> float | Tensor:
    return clip_norm if isinstance(clip_norm, int | float) else tensor(clip_norm)


def _match_limit(tensor: torch.Tensor, limit: object) -> torch.Tensor:
    """Return a limit in the dtype and on the device of a floating-point tensor."""
    if not tensor.is_floating_point():
        raise InvalidTypeError(f"Norms are of floats, not of {dtype_name(tensor.dtype)}.")
    return torch.as_tensor(limit, dtype=tensor.dtype, device=tensor.device)


def _get_values(operand: object) -> Tensor:
    return tensor(operand.values if isinstance(operand, _SLICES) else operand)


def scale_values(operand: object, scale: object) -> Any:
    """Return a tensor or slices, multiplied by a scalar."""
    values = call(torch.mul, _get_values(operand), scale)
    if isinstance(operand, _SLICES):
        return type(operand)(values, operand.indices, operand.dense_shape)
    return values


def _check_list(t_list: object) -> None:
    if not isinstance(t_list, Sequence) or isinstance(t_list, str):
        raise InvalidTypeError(f"t_list should be a sequence, not {show_value(t_list)}.")
