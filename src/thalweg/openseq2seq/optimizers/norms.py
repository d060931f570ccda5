"""Norms of gradients and variables.

Squares are added in float64, so that no norm overflows that float32 can hold; OpenSeq2Seq adds
them in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from thalweg.graph import Output, operation
from thalweg.openseq2seq.optimizers.gradients import (
    concrete,
    deferred,
    refuse_none,
    values_of,
)


def norms(tensors: Sequence[Tensor], as_shipped: bool = False) -> Tensor:
    """The norm of each tensor, float32 of shape (n,), on the device of the first."""
    if not tensors:
        return torch.zeros(0)
    measure = _shipped_norm if as_shipped else _norm
    device = tensors[0].device
    return torch.stack([measure(tensor).to(device) for tensor in tensors]).float()


def own_norm(tensor: Tensor, as_shipped: bool = False) -> Tensor:
    """The norm of a tensor in the dtype of the tensor, of shape ()."""
    if as_shipped:
        return tensor.detach().square().sum().sqrt()
    return _norm(tensor).to(tensor.dtype)


def global_norm(tensors: Sequence[Tensor], as_shipped: bool = False) -> Tensor:
    """The common norm of tensors, float32 of shape (), on the device of the first."""
    if not tensors:
        return torch.zeros(())
    device = tensors[0].device
    if as_shipped:
        halves = [tensor.detach().float().square().sum() * 0.5 for tensor in tensors]
        return (torch.stack([half.to(device) for half in halves]).sum() * 2.0).sqrt()
    return _norm(torch.stack([_norm(tensor).to(device) for tensor in tensors])).float()


def norm_of(gradients: Sequence[Any], as_shipped: bool = False) -> Any:
    """The common norm of gradients; None is left out, and rows of slices count as they are."""
    present = [grad for grad in gradients if grad is not None]

    def measure(given: list[Any]) -> Tensor:
        found = [grad for grad in map(concrete, given) if grad is not None]
        return global_norm([values_of(grad) for grad in found], as_shipped)

    if not deferred(present):
        return measure(present)
    output = Output(torch.float32, (), ())
    return operation(measure, [present], "global_norm", kind="pure", outputs=output)


def _global_norm_with_cast(
    grads_and_vars: Sequence[tuple[Any, Any]], *, as_shipped: bool = False
) -> Any:
    """The common norm of gradients.

    Args:
        grads_and_vars: Pairs of a gradient and its variable. A gradient is a tensor, or
            `IndexedSlices`, whose rows count as they are.
        as_shipped: Whether squares are added in float32, where norms above 1.8e19 are infinite.

    Returns:
        A float32 tensor of shape ().

    Raises:
        ValueError: A gradient is None.

    Reference: OpenSeq2Seq, optimizers.optimizers
    """
    pairs = list(grads_and_vars)
    refuse_none((grad for grad, _ in pairs), (var for _, var in pairs), "its norm is asked for")
    return norm_of([grad for grad, _ in pairs], as_shipped)


def _norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.detach(), dtype=torch.float64)


def _shipped_norm(tensor: Tensor) -> Tensor:
    return tensor.detach().float().square().sum().sqrt()
