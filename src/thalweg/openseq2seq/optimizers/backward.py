"""`BackwardResult`: the gradients of a backward pass, and functions that unscale the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thalweg._core.validation import check_readable
from thalweg._core.vectors import is_host
from thalweg.indexed_slices import values_of, whole, with_values
from thalweg.openseq2seq.optimizers.accumulation import is_whole
from thalweg.openseq2seq.optimizers.gradients import Gradient, concretes
from thalweg.variable import titles_of


class BackwardResult(NamedTuple):
    """Unprocessed gradients of one loss; symbolic while a graph is built.

    Attributes:
        gradients: For each variable a tensor, `IndexedSlices` or None, in the variable's dtype,
            multiplied by `scale`.
        variables: The variables by which the loss was differentiated.
        targets: The tensors to update. A target is a variable's float32 master, or the variable
            itself.
        penalties: For each target the unscaled gradient of its penalty, or None.
        scale: The factor of the loss: a number, a float32 tensor, or None for no factor.
    """

    gradients: list[Any]
    variables: list[Any]
    targets: list[Any]
    penalties: list[Any]
    scale: Any = None

    @classmethod
    def plain(cls, pairs: Sequence[tuple[object, object]]) -> BackwardResult:
        """Return the results for pairs of gradient and variable, without masters."""
        variables = [var for _, var in pairs]
        gradients = [grad for grad, _ in pairs]
        return cls(gradients, variables, variables, [None] * len(pairs))

    def done(self, gradients: Sequence[object]) -> BackwardResult:
        """Return a copy with new gradients that are unscaled and include the penalties."""
        return BackwardResult(
            list(gradients), self.variables, self.targets, [None] * len(self.targets)
        )

    @property
    def pairs(self) -> list[Any]:
        """Gradients and targets."""
        return list(zip(self.gradients, self.targets, strict=True))

    @property
    def has_masters(self) -> bool:
        """True if a master is updated in place of a variable."""
        targets = self.targets
        return self.variables is not targets and not all(map(is_, self.variables, targets))

    @property
    def copies(self) -> list[Any]:
        """For each target the variable that it is the master of, or None."""
        return [
            None if var is target else var
            for var, target in zip(self.variables, self.targets, strict=True)
        ]

    def present(self) -> BackwardResult:
        """Return the results of the variables that have a gradient."""
        if NoneType not in set(map(type, self.gradients)):
            return self
        return self.only([index for index, grad in enumerate(self.gradients) if grad is not None])

    def only(self, indices: Sequence[int]) -> BackwardResult:
        """Return the results of the variables at some indices."""
        columns = self.gradients, self.variables, self.targets, self.penalties
        gradients, variables, targets, penalties = (
            [column[i] for i in indices] for column in columns
        )
        return BackwardResult(gradients, variables, targets, penalties, self.scale)


def unscaled(backward: BackwardResult) -> list[Gradient]:
    """Return one unscaled gradient per target, in the target's dtype, with the penalty added.

        (gradient.to(target.dtype) + scale * penalty) / scale

    The tensors of `backward` must be concrete; they are not changed. If the scale is None, return
    the gradients without casts and penalties. As in OpenSeq2Seq, division is a multiplication by
    the reciprocal in float32.

    Raise LayoutError if the memory of a gradient was freed.
    """
    gradients = concretes(backward.gradients)
    # The full check is slow, and plain host tensors pass it.
    for grad in gradients:
        if type(grad) is not Tensor or not is_whole(grad):
            check_readable(gradients, titles_of(backward.variables))
            break
    if backward.scale is None:
        return gradients
    inverse, scale = unscaling(backward.scale, backward.targets), backward.scale
    return [
        None if grad is None else _unscale_gradient(grad, target, penalty, scale, inverse)
        for grad, target, penalty in zip(
            gradients, backward.targets, backward.penalties, strict=True
        )
    ]


def _unscale_gradient(
    grad: Any, target: Tensor, penalty: Tensor | None, scale: Any, inverse: Any
) -> Tensor | Any:
    """Return (cast(grad) + penalty * scale) * inverse in the dtype of `target`.

    A sparse gradient becomes dense if there is a penalty.
    """
    values = values_of(grad).to(target.dtype)
    if penalty is not None:
        # Rows that repeat are added up in the wider dtype.
        scale = scale.to(target.device) if isinstance(scale, Tensor) else scale
        return (whole(with_values(grad, values), target) + penalty * scale) * inverse
    is_identity = not isinstance(inverse, Tensor) and inverse == 1
    return with_values(grad, values if is_identity else values * inverse)


def unscaling(scale: Any, targets: Sequence[Tensor]) -> Any:
    """Return 1 / `scale` in float32 as a number.

    If `scale` is a tensor on a GPU and all targets are on this GPU, return a tensor.
    """
    if isinstance(scale, Tensor):
        on_host = is_host(scale) or any(target.device != scale.device for target in targets)
        if not on_host:
            # To read the number would wait for the GPU.
            return 1 / scale.detach()
        with np.errstate(all="ignore"):
            return float(np.float32(1) / np.float32(scale.item()))
    return float(np.float32(1.0 / scale))


def raw(backward: BackwardResult) -> tuple[BackwardResult, Any]:
    """Return (copy of `backward` with concrete gradients, factors that unscale the gradients).

    The factors are a tensor or an array, with one factor per gradient that is not None. Without a
    loss scale, the factors are None. A gradient with a penalty is replaced by a new, unscaled
    tensor that includes the penalty; the factor is 1.
    """
    gradients = concretes(backward.gradients)
    if backward.scale is None:
        return backward.done(gradients), None
    inverse = unscaling(backward.scale, backward.targets)
    factors = [inverse] * len(gradients)
    penalised = [index for index, penalty in enumerate(backward.penalties) if penalty is not None]
    if penalised:
        unit = torch.ones_like(inverse) if isinstance(inverse, Tensor) else 1.0
        new_gradients = unscaled(backward.only(penalised))
        for index, grad in zip(penalised, new_gradients, strict=True):
            gradients[index] = grad
            factors[index] = unit
    present = [factors[index] for index, grad in enumerate(gradients) if grad is not None]
    if isinstance(inverse, Tensor):
        return backward.done(gradients), torch.stack(present)
    return backward.done(gradients), np.array(present, np.float32)
