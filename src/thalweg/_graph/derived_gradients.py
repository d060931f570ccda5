"""Operations that map gradients to gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from thalweg._base.static_shape import UNKNOWN
from thalweg._graph.eager_or_graph import IndexedSlices
from thalweg._graph.operation import operation
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import SymbolicSlices


def made_of_gradients(
    function: Callable[..., list[Any]],
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *others: object,
    name: str,
    dtypes: Sequence[Any],
    dense: bool = False,
) -> list[Any]:
    """Add an operation that maps gradients to new gradients in each run; return the new gradients.

    Args:
        function: `function(gradients, variables, *others)` returns a list of new gradients. A run
            passes lists of values, without the pairs for which `gradients` has None. A value is
            None if the run does not compute the gradient.
        gradients: Symbolic or eager gradients. For None, the new gradient is None, too.
        variables: One variable per gradient.
        *others: Further arguments of `function`, symbolic or not.
        dtypes: The dtype of each new gradient.
        dense: True if `function` returns a dense tensor for a sparse gradient.
    """
    present = [index for index, grad in enumerate(gradients) if grad is not None]
    results: list[Any] = [None] * len(gradients)
    if not present:
        return results
    inputs = [[sequence[index] for index in present] for sequence in (gradients, variables)]
    # Without flows: new gradients are constants for further differentiation.
    outputs = [
        Output(dtypes[index], _shape_of_slot(variables[index], gradients[index]), ())
        for index in present
    ]
    grads = operation(function, [*inputs, *others], name, kind="pure", outputs=outputs)
    for index, output in zip(present, grads, strict=True):
        is_sparse = isinstance(gradients[index], IndexedSlices) and not dense
        output.may_be_sparse = not dense
        results[index] = SymbolicSlices.of(output) if is_sparse else output
    return results


def _shape_of_slot(var: object, grad: object) -> Any:
    """Return the static shape of a variable, or of the gradient if `var` is None."""
    return getattr(grad if var is None else var, "shape", None)


def deduplicated(values: Any, indices: Any) -> tuple[Any, Any]:
    """Return (sum of the rows of each distinct index, distinct indices).

    Args:
        values: Rows, of shape (rows, *row shape).
        indices: int32 or int64, of shape (rows,).
    """
    slices = IndexedSlices(values, indices)
    if not isinstance(slices, SymbolicSlices):
        return _sum_rows(slices)
    rows = None if values.shape is UNKNOWN else (None, *values.shape[1:])
    outputs = [Output(values.dtype, rows, ()), Output(indices.dtype, (None,), ())]
    return tuple(operation(_sum_rows, [slices], "deduplicate", kind="pure", outputs=outputs))


def _sum_rows(slices: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (values, indices) of slices with equal indices added."""
    summed = slices.deduplicated()
    return summed.values, summed.indices
