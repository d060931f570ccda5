"""Complex variables: a rule that is linear updates them as pairs of real numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thalweg.core.checks import check_pairs
from thalweg.core.pairs import Gradient, Pair
from thalweg.engines.layout import check_kind
from thalweg.errors import InvalidTypeError
from thalweg.formula import Rule
from thalweg.indexed_slices import IndexedSlices, values_of
from thalweg.variable import dtype_name


def as_real(tensor: Tensor) -> Tensor:
    """The same memory as real numbers, with a last dimension of 2."""
    return torch.view_as_real(tensor.detach().resolve_conj())


def real_pair(grad: Gradient, var: Tensor) -> Pair:
    """Gradient and variable as real numbers."""
    if isinstance(grad, IndexedSlices):
        return IndexedSlices(as_real(grad.values), grad.indices, (*var.shape, 2)), as_real(var)
    return as_real(grad), as_real(var)


def check_complex(pairs: Sequence[Pair], titles: Sequence[str], rule: Rule, clips: bool) -> None:
    """Refuse complex variables that the rule cannot update.

    Raises:
        InvalidTypeError: The rule is not linear, gradients are to be clipped, or a gradient is of
            another dtype.
        InvalidArgumentError, LayoutError: As for real variables.
    """
    for (grad, var), title in zip(pairs, titles, strict=True):
        kind = f"'{title}' is {dtype_name(var.dtype)}."
        if not rule.linear:
            raise InvalidTypeError(f"{rule.name} is not defined for complex variables; {kind}")
        if clips:
            raise InvalidTypeError(f"Clipping is not defined for complex gradients; {kind}")
        check_kind(values_of(grad), var, title)
    check_pairs([real_pair(*pair) for pair in pairs], titles, scatter=True)
