"""Parts of a step of the reference engine: `torch_part` with the arithmetic of NumPy."""

# torch.from_numpy has no types.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.array_types import Int64
from thalweg._engines.denormals import set_denormals
from thalweg._engines.layout import compute_dtype
from thalweg._engines.protocol import Columns, Reduction, Scalars, Stages, StepRequest
from thalweg._engines.reference import evaluate, measure_elements, to_numpy, transform
from thalweg._engines.row_updates import group_occurrences
from thalweg._engines.torch_part import Batch, TorchPart
from thalweg._engines.torch_rows import TorchRows
from thalweg.formula import Formula


class ReferencePart(TorchPart):
    """Plan for one variable on the CPU with a dense gradient; a `Part` of a step."""

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """Return False: each step is planned from scratch."""
        return False

    def _select_scalars(self, batch: Batch, columns: Columns) -> Scalars:
        """Return {name: scalar of the variable, or its vector over rows or columns}."""
        request = self._request
        dtype = compute_dtype(request.variables[0].dtype)
        vectors = dict(request.vectors[0]) if request.vectors else {}
        scalars = {**columns.scalars_of(0, dtype), **vectors}
        return {name: x.numpy() if isinstance(x, Tensor) else x for name, x in scalars.items()}

    def _evaluate(
        self, formula: Formula, tensors: list[Tensor], scalars: Scalars
    ) -> Sequence[Tensor]:
        return evaluate(formula, tensors, scalars)

    def _transform(self, stages: Stages, values: Tensor, scalars: Scalars) -> Tensor:
        return transform(stages, values, scalars, self._flush)

    def _measure(self, formula: Formula, tensors: Sequence[Tensor], scalars: Scalars) -> Tensor:
        return measure_elements(formula, tensors, scalars)

    def _reduce_lines(self, reduction: Reduction, columns: Columns) -> list[list[Tensor]]:
        """Return the measures; flush denormals only if `reduction.stages` is not empty."""
        with set_denormals(self._flush and bool(reduction.stages)):
            return super()._reduce_lines(reduction, columns)


class ReferenceRows(ReferencePart, TorchRows):
    """Plan for one variable on the CPU with a sparse gradient; a `Part` of a step."""

    def _add_rows(self, values: Tensor, row_indices: Tensor, count: int) -> Tensor:
        """Return the sum of values for each row; duplicate rows are added in their order."""
        dtype = compute_dtype(values.dtype)
        sums = np.zeros((count, *values.shape[1:]), dtype)
        with np.errstate(all="ignore"):
            for wave in group_occurrences(row_indices, count):
                sums[row_indices[wave].numpy()] += values[wave].numpy()
        # TensorFlow adds the rows onto zeros, which takes the sign from -0.
        rounded_sums = torch.from_numpy(sums).to(self._request.variables[0].dtype)
        return torch.from_numpy(to_numpy(rounded_sums) + dtype(0))
