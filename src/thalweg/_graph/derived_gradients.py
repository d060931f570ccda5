"""Operations that map gradients to gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg._graph.operation import operation
from thalweg._graph.shapes import Output
from thalweg._graph.symbolic_slices import SymbolicSlices
from thalweg.indexed_slices import IndexedSlices


def made_of_gradients(
    function: Callable[..., list[Any]],
    gradients: Sequence[Any],
    variables: Sequence[Any],
    *others: object,
    name: str,
    dtypes: Sequence[Any],
    dense: bool = False,
) -> list[Any]:
    """Return gradients that a function computes from gradients in each run.

    Args:
        function: Called with the values of the gradients that are not None, of their variables,
            and of `others`; returns a gradient for each.
        gradients: Any gradients. None stays None.
        variables: One for each gradient.
        *others: More arguments, maybe symbolic.
        name: Name of the operation.
        dtypes: The dtypes of the results.
        dense: True if the results are whole tensors even if the gradients are slices.
    """
    present = [index for index, grad in enumerate(gradients) if grad is not None]
    results: list[Any] = [None] * len(gradients)
    if not present:
        return results
    inputs = [[sequence[index] for index in present] for sequence in (gradients, variables)]
    outputs = [
        Output(dtypes[index], _shape_of_slot(variables[index], gradients[index]), ())
        for index in present
    ]
    grads = operation(function, [*inputs, *others], name, kind="pure", outputs=outputs)
    for index, output in zip(present, grads, strict=True):
        is_sparse = isinstance(gradients[index], SymbolicSlices | IndexedSlices) and not dense
        output.may_be_sparse = not dense
        results[index] = SymbolicSlices.of(output) if is_sparse else output
    return results


def _shape_of_slot(var: object, grad: object) -> Any:
    """Return the static shape of a variable, or of the gradient if `var` is None."""
    return getattr(grad if var is None else var, "shape", None)
