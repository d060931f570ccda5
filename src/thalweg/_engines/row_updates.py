"""Updates of the rows of a sparse gradient, for engines that compute whole arrays at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from thalweg._engines.formula_parser import trace_formula
from thalweg._engines.low_precision_copies import saturated
from thalweg._engines.protocol import Call, select_row_formula
from thalweg.formula import Formula, Rule

Updates = Iterable[tuple[Formula, Tensor, Sequence[Tensor]]]


def update_rows(
    rule: Rule,
    tensors: Sequence[Tensor],
    gradient: tuple[Tensor, Tensor],
    evaluate: Callable[[Formula, list[Tensor]], Sequence[Tensor]],
    add: Callable[[Tensor, Tensor, int], Tensor],
) -> Updates:
    """Yield (formula, indices of rows, new rows of variable and slots); write nothing.

    The first tuple is for rows with entries in the gradient. If the rule has `update_untouched`, a
    second tuple is for all other rows.

    Args:
        tensors: The variable and its slots.
        gradient: Values in the compute dtype, and int64 indices.
        evaluate: `evaluate(formula, tensors)` returns the results of a formula.
        add: `add(values, row_indices, count)` returns the sum of the values of each row from 0 to
            `count - 1`. Sums are rounded to the variable's dtype.
    """
    (values, indices), var = gradient, tensors[0]
    formula, kind = select_row_formula(rule, var), values.dtype
    rows, row_indices = cast(Any, torch).unique(indices, return_inverse=True)
    blocks = [tensor.detach()[rows].to(kind) for tensor in tensors]
    if rule.before is not None:
        blocks[0] = evaluate(rule.before, blocks[:1])[0].to(var.dtype).to(kind)
    if rule.duplicates == "sum":
        values = add(values, row_indices, len(rows))
        row_indices = torch.arange(len(rows), dtype=torch.int64, device=var.device)
    # A later entry of a row updates the row as the earlier entries have left it.
    for wave in group_occurrences(row_indices, len(rows)):
        inputs = [block[row_indices[wave]] for block in blocks]
        results = evaluate(formula, [inputs[0], values[wave], *inputs[1:]])
        # Between entries, a row is rounded as if it were stored.
        for block, tensor, result in zip(blocks, tensors, results, strict=True):
            block.index_copy_(0, row_indices[wave], result.to(tensor.dtype).to(kind))
    yield formula, rows, blocks
    if rule.update_untouched is not None:
        mask = torch.ones(len(var), dtype=torch.bool, device=var.device)
        untouched_rows = mask.index_fill_(0, rows, value=False).nonzero().view(-1)
        inputs = [tensor.detach()[untouched_rows].to(kind) for tensor in tensors]
        yield rule.update_untouched, untouched_rows, evaluate(rule.update_untouched, inputs)


def make_row_calls(
    rule: Rule, tensors: Sequence[Tensor], copy: Tensor | None, reads_copy: bool, updates: Updates
) -> list[Call]:
    """Return functions that write new rows: into the variable, its slots and its copy.

    Tensors whose values a formula does not change are not written (see `find_changed`). The copy is
    also written if `reads_copy` is False.

    Args:
        tensors: The variable, then its slots.
        copy: The copy of the variable, or None.
        reads_copy: True if a step begins at the values of the copy.
        updates: From `update_rows`.
    """
    calls: list[Call] = []
    for formula, rows, blocks in updates:
        indices = find_changed(rule, formula, len(tensors))
        pairs = [(tensors[index], blocks[index].to(tensors[index].dtype)) for index in indices]
        if copy is not None and (0 in indices or not reads_copy):
            pairs.append((copy, saturated(blocks[0].to(tensors[0].dtype), copy.dtype)))
        calls += [partial(tensor.detach().index_copy_, 0, rows, block) for tensor, block in pairs]
    return calls


def find_changed(rule: Rule, formula: Formula, count: int) -> list[int]:
    """Return the indices of the tensors that `formula` changes: 0 for the variable, then slots.

    The variable also counts as changed if `formula` is the update and the rule has a formula
    `before` it. A caller must not write other tensors: the compute dtype may not hold all bits.

    Args:
        formula: `rule.update` or `rule.update_untouched`.
        count: The number of tensors: the variable and its slots.
    """
    graph, reads_gradient = trace_formula(formula), formula is not rule.update_untouched
    moves_variable = reads_gradient and rule.before is not None
    return [
        index
        for index in range(count)
        if not graph.passes_through(index, index + (reads_gradient and index > 0))
        or (moves_variable and not index)
    ]


def group_occurrences(row_indices: Tensor, count: int) -> Iterator[Tensor]:
    """Yield positions in `row_indices`: of first occurrences of rows, of second occurrences, ..."""
    order = torch.argsort(row_indices, stable=True)
    ones = torch.ones_like(row_indices)
    counts = row_indices.new_zeros(count).index_add_(0, row_indices, ones)
    group_starts = (counts.cumsum(0) - counts)[row_indices[order]]
    ranks = torch.empty_like(row_indices)
    ranks[order] = (
        torch.arange(len(row_indices), dtype=torch.int64, device=row_indices.device) - group_starts
    )
    for rank in range(int(counts.max()) if count else 0):
        yield (ranks == rank).nonzero().view(-1)
