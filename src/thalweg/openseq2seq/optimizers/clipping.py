"""Norms of gradients, and clipping by the global norm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import is_deferred
from thalweg._base.showing import show_value
from thalweg._base.static_shape import UNKNOWN
from thalweg._core.clip_factor import Factor, Norm, factor_of
from thalweg._core.gradient_stats import GradientStats
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._core.hyperparameters import check_size, is_number
from thalweg._core.norms import clip_factor
from thalweg._engines import Tensors
from thalweg._graph import Output, operation
from thalweg.errors import InvalidArgumentError, InvalidTypeError
from thalweg.indexed_slices import values_of, with_values
from thalweg.openseq2seq.optimizers.gradients import (
    Gradient,
    check_given,
    concrete,
    floating,
    map_gradients,
    map_pairs,
    refuse_none,
    transform_present,
)
from thalweg.variable import name_of

_SHAPED = "Clipping as OpenSeq2Seq does it gives a gradient of shape (1,) to"


def norm_of(gradients: Sequence[object], as_shipped: bool = False) -> Any:
    """Return the global norm as `_global_norm_with_cast` does, but skip gradients of None."""
    present = [grad for grad in gradients if grad is not None]

    def measure(gradient_list: list[object]) -> Tensor:
        values = [
            floating(values_of(grad)) for grad in map(concrete, gradient_list) if grad is not None
        ]
        transforms = GradientTransforms(overflow=as_shipped, casts=True)
        stats = GradientStats(transforms, Tensors(values, values), values)
        with np.errstate(over="ignore"):
            norm = np.float32(stats.global_norm)
        device = values[0].device if values else "cpu"
        return torch.tensor(norm, dtype=torch.float32, device=device)

    if not is_deferred(*present):
        return measure(present)
    output = Output(torch.float32, (), ())
    return operation(measure, [present], "global_norm", kind="pure", outputs=output)


def _global_norm_with_cast(
    grads_and_vars: Sequence[tuple[object, object]], *, as_shipped: bool = False
) -> object:
    """Return the global norm of gradients.

    Args:
        grads_and_vars: (gradient, variable) pairs. A gradient is a tensor or `IndexedSlices`. Rows
            with equal indices are measured separately, not added.
        as_shipped: True to return infinity if a square overflows float32 (norms above 1.8e19).

    Returns:
        A float32 tensor of shape ().

    Raises:
        ValueError: A gradient is None.

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    pairs = list(grads_and_vars)
    refuse_none(pairs, "its norm is asked for")
    return norm_of([grad for grad, _ in pairs], as_shipped)


def refuse_scalars(variables: Iterable[Any]) -> None:
    """Raise InvalidArgumentError about the first variable of shape (), as OpenSeq2Seq does."""
    for var in variables:
        if var.shape is not UNKNOWN and tuple(var.shape) == ():
            raise InvalidArgumentError(f"{_SHAPED} '{name_of(var)}' of shape ().")


def check_limit(name: str, limit: object) -> None:
    """Raise InvalidArgumentError if a maximum norm is negative, NaN or too large for a float."""
    check_size(name, limit)
    if is_number(limit) and not limit >= 0:
        raise InvalidArgumentError(
            f"{name} is the largest norm, 0 or more, not {show_value(limit)}."
        )


def _clip_by_global_norm(
    t_list: Sequence[object],
    clip_norm: object,
    use_norm: object = None,
    name: str | None = None,
    *,
    as_shipped: bool = False,
) -> tuple[list[object], object]:
    """Scale tensors down to a global norm of at most `clip_norm`; also return the old norm.

    Args:
        t_list: A list of tensors and `IndexedSlices`. None is accepted and returned as None.
        clip_norm: The maximum norm. 0 gives zeros.
        use_norm: Optional. The global norm of the tensors; by default it is computed.
        name: Name of the operation in graph mode.
        as_shipped: True to compute norms as `_global_norm_with_cast(..., as_shipped=True)`, and to
            accept a negative `clip_norm`, which changes nothing.

    Returns:
        (tensors in float32, norm before clipping). If the norm is infinite, infinities become NaN
        and all other elements 0. If the norm is NaN, all elements become NaN.

    Raises:
        TypeError: `t_list` is not a sequence, or is a string.
        ValueError: `clip_norm` is below 0 or NaN.

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    if not isinstance(t_list, Sequence) or isinstance(t_list, str | bytes):
        raise InvalidTypeError(f"t_list should be a sequence, not {show_value(t_list)}.")
    if not as_shipped:
        check_limit("clip_norm", clip_norm)
    norm = norm_of(t_list, as_shipped) if use_norm is None else use_norm

    def clip(gradients: Any, variables: object, size: Any, limit: Any) -> list[Gradient]:
        float_gradients = [
            None if grad is None else with_values(grad, values_of(grad).float())
            for grad in gradients
        ]
        dtype_sources = [None if grad is None else values_of(grad) for grad in float_gradients]
        size, limit = float(size), float(limit)
        factor = factor_of(Norm(np.float64(size)), limit, np.float32, None, False)
        if as_shipped:
            with np.errstate(over="ignore"):
                factor = Factor(clip_factor(np.float32(size), np.float32(limit), False))
        transforms = GradientTransforms(
            global_clipnorm=limit, clip_factor=factor, overflow=as_shipped
        )
        return transform_present(float_gradients, dtype_sources, transforms)[0]

    clipped = map_gradients(
        clip,
        t_list,
        [None] * len(t_list),
        norm,
        clip_norm,
        name=name or "clip_by_global_norm",
        dtypes=[torch.float32] * len(t_list),
    )
    return clipped, norm


def _clip_gradients_by_norm(
    grads_and_vars: Sequence[tuple[Any, Any]], clip_gradients: object, *, as_shipped: bool = False
) -> list[tuple[object, object]]:
    """Scale gradients down to a global norm of at most `clip_gradients`.

    Args:
        grads_and_vars: (gradient, variable) pairs.
        clip_gradients: The maximum norm.
        as_shipped: True to compute norms as `_global_norm_with_cast(..., as_shipped=True)`, to
            raise ValueError for variables of shape (), and to accept a negative `clip_gradients`,
            which changes nothing.

    Returns:
        The pairs with new gradients, in the dtypes of their variables.

    Raises:
        ValueError: There are no pairs, a gradient is None, or `clip_gradients` is below 0 or NaN.

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    grads_and_vars = check_given(grads_and_vars)
    if not as_shipped:
        check_limit("clip_gradients", clip_gradients)
    refuse_none(grads_and_vars, "clipping needs its norm")
    if as_shipped:
        refuse_scalars(var for _, var in grads_and_vars)

    def clip(gradients: Any, variables: Any, limit: Any) -> list[Gradient]:
        transforms = GradientTransforms(
            global_clipnorm=float(limit), overflow=as_shipped, casts=True, nan_if_not_finite=False
        )
        return transform_present(gradients, variables, transforms)[0]

    return map_pairs(clip, grads_and_vars, clip_gradients, name="clip_gradients_by_norm")
