"""Norms of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base.execution_context import is_deferred
from thalweg._core.gradient_stats import GradientStats
from thalweg._core.gradient_transforms import GradientTransforms
from thalweg._engines import Tensors
from thalweg._graph import Output, operation
from thalweg.indexed_slices import values_of
from thalweg.openseq2seq.optimizers.gradients import concrete, floating, refuse_none


def norm_of(gradients: Sequence[object], as_shipped: bool = False) -> Any:
    """Return the common norm of the gradients that are not None, without summing repeated rows."""
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
    """Return the common norm of gradients.

    Args:
        grads_and_vars: Pairs of a gradient and its variable. A gradient is a tensor, or
            `IndexedSlices`, whose rows count as they are.
        as_shipped: Whether norms above 1.8e19 are infinite, whose squares float32 does not hold.

    Returns:
        A float32 tensor of shape ().

    Raises:
        ValueError: A gradient is None.

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    pairs = list(grads_and_vars)
    refuse_none((grad for grad, _ in pairs), (var for _, var in pairs), "its norm is asked for")
    return norm_of([grad for grad, _ in pairs], as_shipped)
