"""Reductions over gradients and variables outside a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from thalweg._engines.array_types import Float64
from thalweg._engines.cpu.reductions import max_abs, sums_of
from thalweg._engines.layout import compute_dtype
from thalweg._engines.protocol import Columns, Reduction
from thalweg.formula import variable_squares


class Tensors:
    """`Reductions` over gradients and variables, without the plan of a step.

    Args:
        gradients: Dense gradients, or the values of sparse gradients.
        flush: True if stages treat denormals as zero.
    """

    def __init__(
        self, gradients: Sequence[Tensor], variables: Sequence[Tensor], flush: bool = False
    ) -> None:
        self._flush = flush
        self._gradients = gradients
        self._variables = variables

    device = None

    def reduce(self, reduction: Reduction, columns: Columns) -> Float64:
        """Return "sums" or "peaks" on the host; see `Reduction`.

        The formula `variable_squares` reads the variable. Other formulas read the gradient.

        Raises:
            NotImplementedError: The kind of the reduction is "leaves" or "measures".
        """
        formulas, stages = reduction.formulas, reduction.stages
        if reduction.kind == "peaks":
            return max_abs(self._gradients)
        if reduction.kind != "sums":
            raise NotImplementedError(f"gradients outside a step have no {reduction.kind}")
        sums = np.zeros((len(self._variables), len(formulas)))
        for column, formula in enumerate(formulas):
            if formula is variable_squares:
                sums[:, column] = sums_of(formula, self._variables)
                continue
            if not stages:
                sums[:, column] = sums_of(formula, self._gradients)
                continue
            # Scalars of the stages may differ between variables.
            for index, (grad, var) in enumerate(zip(self._gradients, self._variables, strict=True)):
                dtype = compute_dtype(var.dtype)
                stage_args = stages, columns.scalars_of(index, dtype), dtype, self._flush
                sums[index, column] = sums_of(formula, [grad], *stage_args)[0]
        return sums
