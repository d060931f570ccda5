"""Reductions over gradients and variables outside a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from thalweg._engines.array_types import Float64
from thalweg._engines.cpu import reductions
from thalweg._engines.layout import compute_dtype
from thalweg._engines.protocol import Columns, Formulas, Stages
from thalweg.formula import variable_squares


class Tensors:
    """Reductions of a `StepPlan` over gradients and variables that are not updated.

    Args:
        gradients: Dense gradients, or the values of sparse ones.
        variables: The variable of each gradient.
        flush: Stages treat denormals as zero.
    """

    def __init__(
        self, gradients: Sequence[Tensor], variables: Sequence[Tensor], flush: bool = False
    ) -> None:
        self._flush = flush
        self._gradients = gradients
        self._variables = variables

    def compute_sums(
        self, formulas: Formulas, stages: Stages, columns: Columns
    ) -> Sequence[Float64]:
        """See `StepPlan`; formulas read the gradient alone, `variable_squares` the variable."""
        if not stages:
            return [
                reductions.sums_of(
                    formula, self._variables if formula is variable_squares else self._gradients
                )
                for formula in formulas
            ]
        sums = np.zeros((len(formulas), len(self._variables)))
        for index, (grad, var) in enumerate(zip(self._gradients, self._variables, strict=True)):
            dtype = compute_dtype(var.dtype)
            scalars = columns.scalars_of(index, dtype)
            sums[:, index] = np.concatenate(
                reductions.sums_of_pair(formulas, grad, var, stages, scalars, dtype, self._flush)
            )
        return list(sums)

    def sums_on_device(self, formulas: Formulas, stages: Stages, columns: Columns) -> None:
        """See `StepPlan`."""

    def max_abs(self) -> Float64:
        """See `StepPlan`."""
        return reductions.max_abs(self._gradients)

    def max_abs_on_device(self, is_checked: Tensor) -> None:
        """See `StepPlan`."""
