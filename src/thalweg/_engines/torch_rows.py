"""Part of a step with a sparse gradient computed by torch functions; see `torch_part`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from thalweg._base.context_managers import no_grad
from thalweg._base.device_numbers import to_host
from thalweg._engines import layout
from thalweg._engines.array_types import Float64, Int64
from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.low_precision_copies import saturated
from thalweg._engines.protocol import (
    Call,
    Columns,
    Reduction,
    Scalars,
    StepRequest,
    formula_of_rows,
)
from thalweg._engines.reduction_order import combine_leaves
from thalweg._engines.torch_functions import torch_evaluate, torch_transform
from thalweg._engines.torch_part import Batch, TorchPart, leaves_by_tensor, values_of_measure
from thalweg.formula import Formula, variable_squares
from thalweg.indexed_slices import IndexedSlices, values_of


class TorchRows(TorchPart):
    """Plan for one variable with a sparse gradient; a `Part` of a step.

    Args:
        request: The step, of one variable.
    """

    def _gradient(self, member: int) -> Tensor:
        """Return the values of the gradient, duplicates included."""
        if self._gradients is None:
            raise RuntimeError("the part is not aimed at gradients")
        return layout.as_packed(values_of(self._gradients[member]))

    def try_rebind(self, request: StepRequest, bounds: Int64) -> bool:
        """Return False: each step is planned from scratch."""
        return False

    @no_grad()
    def reduce(self, reduction: Reduction, columns: Columns) -> Any:
        """See `Reductions`; rows of sparse gradients have no leaves."""
        if reduction.kind == "leaves":
            return [np.empty((0, len(reduction.formulas)))]
        if reduction.kind != "sums":
            return super().reduce(reduction, columns)
        (batch,) = self._batches
        grad = self._staged(batch, reduction.stages, self._scalars(batch, columns))
        sums: list[Float64] = []
        for formula in reduction.formulas:
            source = self._starts(batch) if formula is variable_squares else grad
            (leaves,) = leaves_by_tensor(
                [values_of_measure(formula, [source, source], {}).reshape(-1)]
            )
            sums.append(combine_leaves(to_host(leaves), np.array([len(leaves)])))
        return np.stack(sums, axis=-1)

    def _update(self, batch: Batch, columns: Columns) -> list[Call]:
        """Return calls that copy the new rows of variable, slots and copy."""
        request, rule, kind = self._request, self._rule, self._kind(batch)
        scalars = self._scalars(batch, columns)
        var, start = request.variables[0], self._starts(batch).view(request.variables[0].shape)
        tensors = [start, *(slot.detach() for slot in request.slots[0])]
        grad = cast("IndexedSlices", self._gradients[0])  # pyright: ignore[reportOptionalSubscript]
        values = self._staged(batch, self._stages, scalars).view(grad.values.shape)
        values = values.to(var.dtype).to(kind)
        indices = grad.indices.detach().long()
        rows, places = cast(Any, torch).unique(indices, return_inverse=True)
        blocks = [tensor[rows].to(kind) for tensor in tensors]
        if rule.before is not None:
            moved_rows = torch_transform((rule.before,), blocks[0], scalars)
            blocks[0] = moved_rows.to(var.dtype).to(kind)
        formula = formula_of_rows(rule, var)
        if rule.duplicates == "sum":
            sums = torch.zeros_like(blocks[0]).index_add_(0, places, values)
            inputs = [blocks[0], sums.to(var.dtype).to(kind), *blocks[1:]]
            blocks = self._evaluate_rows(formula, inputs, scalars)
        else:
            for wave in _waves(places, len(rows)):
                wave_places = places[wave]
                inputs = [block[wave_places] for block in blocks]
                inputs.insert(1, values[wave])
                for block, new_rows in zip(
                    blocks, self._evaluate_rows(formula, inputs, scalars), strict=True
                ):
                    block.index_copy_(0, wave_places, new_rows)
        calls = self._row_calls(formula, 1, rows, blocks)
        if rule.update_untouched is not None:
            mask = torch.ones(len(var), dtype=torch.bool, device=rows.device)
            untouched_rows = mask.index_fill_(0, rows, value=False).nonzero().view(-1)
            inputs = [tensor[untouched_rows].to(kind) for tensor in tensors]
            blocks = self._evaluate_rows(rule.update_untouched, inputs, scalars)
            calls += self._row_calls(rule.update_untouched, 0, untouched_rows, blocks)
        return calls

    def _evaluate_rows(
        self, formula: Formula, inputs: Sequence[Tensor], scalars: Scalars
    ) -> list[Tensor]:
        """Return new rows of variable and slots, rounded to their dtypes."""
        tensors = [self._request.variables[0], *self._request.slots[0]]
        pairs = zip(torch_evaluate(formula, inputs, scalars), tensors, strict=True)
        return [result.to(tensor.dtype).to(result.dtype) for result, tensor in pairs]

    def _row_calls(
        self, formula: Formula, grad_count: int, rows: Tensor, blocks: Sequence[Tensor]
    ) -> list[Call]:
        """Return calls that copy new rows into the tensors that a formula changes."""
        request, graph = self._request, trace_formula(formula)
        tensors = [request.variables[0], *request.slots[0]]
        moves_variable = self._rule.before is not None and grad_count > 0
        changed_indices = [
            index
            for index in range(len(tensors))
            if not graph.passes_through(index, index + (grad_count if index else 0))
            or (moves_variable and not index)
        ]
        pairs = [
            (tensors[index], blocks[index].to(tensors[index].dtype)) for index in changed_indices
        ]
        copy = request.copies[0] if request.copies else None
        if copy is not None and (0 in changed_indices or not request.from_copies):
            pairs.append((copy, saturated(blocks[0], copy.dtype)))
        return [partial(tensor.detach().index_copy_, 0, rows, block) for tensor, block in pairs]


def _waves(places: Tensor, count: int) -> Iterator[Tensor]:
    """Yield the positions of first, second, ... occurrences of `count` places."""
    order = torch.argsort(places, stable=True)
    ones = torch.ones_like(places)
    counts = torch.zeros(count, dtype=places.dtype, device=places.device).index_add_(
        0, places, ones
    )
    group_starts = (counts.cumsum(0) - counts)[places[order]]
    ranks = torch.empty_like(places)
    ranks[order] = torch.arange(len(places), dtype=torch.int64, device=places.device) - group_starts
    for rank in range(int(counts.max()) if count else 0):
        yield (ranks == rank).nonzero().view(-1)
