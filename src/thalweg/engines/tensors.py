"""Measures of any tensors, without a step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from thalweg.engines.cpu import measure
from thalweg.engines.engine import Columns, Stages
from thalweg.formula import Formula, gradient_squares


class Tensors:
    """What `Ready` answers, of gradients and variables that are not updated here.

    Args:
        gradients: Dense, or the values of sparse ones.
        variables: As many.
    """

    def __init__(self, gradients: Sequence[Tensor], variables: Sequence[Tensor]) -> None:
        self._gradients = gradients
        self._variables = variables

    def sums(
        self, formulas: tuple[Formula, ...], stages: Stages, columns: Columns
    ) -> Sequence[np.ndarray]:
        """See `Ready`; formulas are `gradient_squares` and `variable_squares`."""
        return [
            measure.sums_of_squares(
                self._gradients if formula is gradient_squares else self._variables
            )
            for formula in formulas
        ]

    def peaks(self) -> np.ndarray:
        """See `Ready`."""
        return measure.peaks(self._gradients)
