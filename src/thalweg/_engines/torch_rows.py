"""Part of a step with a sparse gradient computed by torch functions; see `torch_part`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.device_numbers import to_host
from thalweg._engines import layout
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.protocol import Call, Columns, Reduction, Results, StepRequest
from thalweg._engines.reduction_order import combine_leaves
from thalweg._engines.row_updates import make_row_calls, update_rows
from thalweg._engines.torch_functions import torch_evaluate
from thalweg._engines.torch_part import Batch, TorchPart, leaves_by_tensor, values_of_measure
from thalweg.formula import Formula, variable_squares
from thalweg.indexed_slices import IndexedSlices, values_of


class TorchRows(TorchPart):
    """Plan for one variable with a sparse gradient; a `Part` of a step."""

    def _gradient(self, member: int) -> Tensor:
        """Return the values of the gradient, duplicates included."""
        if self._gradients is None:
            raise RuntimeError("the part is not aimed at gradients")
        return layout.as_packed(values_of(self._gradients[member]))

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """Return False: each step is planned from scratch."""
        return False

    @no_grad()
    def reduce(self, reduction: Reduction, columns: Columns) -> Results:
        """Return the results of a reduction for the variable; leaves are empty."""
        if reduction.kind == "leaves":
            return [np.empty((0, len(reduction.formulas)))]
        if reduction.kind != "sums":
            return super().reduce(reduction, columns)
        (batch,) = self._batches
        grad = self._stage_gradients(batch, reduction.stages, self._scalars(batch, columns))
        sums: list[Float64] = []
        for formula in reduction.formulas:
            source = self._read_variables(batch) if formula is variable_squares else grad
            (leaves,) = leaves_by_tensor(
                [values_of_measure(formula, [source, source], {}).reshape(-1)]
            )
            sums.append(combine_leaves(to_host(leaves), np.array([len(leaves)])))
        return np.stack(sums, axis=-1)

    def _update(self, batch: Batch, columns: Columns) -> list[Call]:
        """Return calls that copy the new rows of variable, slots and copy."""
        request, kind = self._request, self._kind(batch)
        scalars, var = self._scalars(batch, columns), request.variables[0]
        grad = cast("IndexedSlices", self._gradients[0])  # pyright: ignore[reportOptionalSubscript]
        values = self._stage_gradients(batch, self._stages, scalars).view(grad.values.shape)
        gradient = values.to(var.dtype).to(kind), grad.indices.detach().long()

        def evaluate(formula: Formula, inputs: list[Tensor]) -> Sequence[Tensor]:
            return torch_evaluate(formula, inputs, scalars)

        def add(values: Tensor, places: Tensor, count: int) -> Tensor:
            """Return sums of values, rounded like the variable."""
            sums = values.new_zeros((count, *values.shape[1:])).index_add_(0, places, values)
            return sums.to(var.dtype).to(kind)

        tensors = [self._read_variables(batch).view(var.shape), *request.slots[0]]
        updates = update_rows(self._rule, tensors, gradient, evaluate, add)
        copy = request.copies[0] if request.copies else None
        tensors = [var, *request.slots[0]]
        return make_row_calls(self._rule, tensors, copy, request.from_copies, updates)
