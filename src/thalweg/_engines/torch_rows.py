"""Part of a step with a sparse gradient computed by torch functions; see `torch_part`."""

from __future__ import annotations

from functools import partial
from typing import cast

import numpy as np
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.device_numbers import to_host
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.protocol import Call, Columns, Reduction, Results, StepRequest
from thalweg._engines.reduction_order import combine_leaves
from thalweg._engines.row_updates import make_row_calls, update_rows
from thalweg._engines.torch_part import Batch, TorchPart, leaves_by_tensor
from thalweg.formula import variable_squares
from thalweg.indexed_slices import IndexedSlices


class TorchRows(TorchPart):
    """Plan for one variable with a sparse gradient; a `Part` of a step."""

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """Return False: each step is planned from scratch."""
        return False

    @no_grad()
    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return a reduction; see `Reductions`. The result for "leaves" is [array without rows]."""
        if reduction.kind == "leaves":
            return [np.empty((0, len(reduction.formulas)))]
        if reduction.kind != "sums":
            return super().reduce(reduction, columns)
        (batch,) = self._batches
        grad = self._apply_stages(batch, reduction.stages, self._select_scalars(batch, columns))
        sums: list[Float64] = []
        for formula in reduction.formulas:
            source = self._read_variables(batch) if formula is variable_squares else grad
            (leaves,) = leaves_by_tensor([self._measure(formula, [source, source], {}).reshape(-1)])
            sums.append(combine_leaves(to_host(leaves), np.array([len(leaves)])))
        return np.stack(sums, axis=-1)

    def _update(self, batch: Batch, columns: Columns) -> list[Call]:
        """Return functions that copy the new rows of variable, slots and copy."""
        request, kind = self._request, self._compute_kind(batch)
        scalars, var = self._select_scalars(batch, columns), request.variables[0]
        grad = cast("IndexedSlices", request.gradients[0])
        values = self._apply_stages(batch, self._stages, scalars).view(grad.values.shape)
        gradient = values.to(var.dtype).to(kind), grad.indices.detach().long()

        tensors = [self._read_variables(batch).view(var.shape), *request.slots[0]]
        evaluate = partial(self._evaluate, scalars=scalars)
        updates = update_rows(self._rule, tensors, gradient, evaluate, self._add_rows)
        copy = request.copies[0] if request.copies else None
        tensors = [var, *request.slots[0]]
        return make_row_calls(self._rule, tensors, copy, request.from_copies, updates)

    def _add_rows(self, values: Tensor, row_indices: Tensor, count: int) -> Tensor:
        """Return the sum of values for each row index, rounded to the variable's dtype."""
        sums = values.new_zeros((count, *values.shape[1:])).index_add_(0, row_indices, values)
        return sums.to(self._request.variables[0].dtype).to(values.dtype)
