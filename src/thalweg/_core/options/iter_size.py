"""Accumulation of gradients over n session runs. Each run adds its gradient times 1 / n.

The run that takes the step adds its own gradients to copies of the sums. So a step that fails
leaves the variables unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from thalweg._base.scalars import reciprocal
from thalweg._core.atomic_section import Call, run
from thalweg._core.validation import check_memories, check_pairs
from thalweg._engines.layout import check_slots
from thalweg.indexed_slices import Gradient, IndexedSlices, values_of
from thalweg.variable import titles_of


def check_addable(
    gradients: Sequence[Gradient], targets: Sequence[Tensor], sums: Sequence[Tensor]
) -> None:
    """Raise an error if a gradient or sum has another shape or dtype than its variable.

    Raise an error, too, if a sum has no memory for its elements. `targets` are the variables.
    Gradients may be None.
    """
    check_memories(sums)
    names = titles_of(targets)
    for total, var, name in zip(sums, targets, names, strict=True):
        check_slots(var, [total], name)
    triples = zip(gradients, targets, names, strict=True)
    present = [(grad, var, name) for grad, var, name in triples if grad is not None]
    check_pairs(
        [(grad, var) for grad, var, _ in present], [name for *_, name in present], scatter=True
    )


def adding(sums: Sequence[Tensor], gradients: Sequence[Gradient], count: int) -> list[Call]:
    """Return C functions that add each gradient times 1 / `count` to its sum in place.

    The factor is rounded as in a TensorFlow session. Gradients that are None are skipped.
    """
    calls: list[Call] = []
    for total, grad in zip(sums, gradients, strict=True):
        if grad is None:
            continue
        values = values_of(grad)
        scaled_grad = values * reciprocal(values.new_full((), count))
        if isinstance(grad, IndexedSlices):
            calls.append(partial(total.detach().index_add_, 0, grad.indices.long(), scaled_grad))
        else:
            calls.append(partial(total.detach().add_, scaled_grad))
    return calls


def totals(sums: Sequence[Tensor], gradients: Sequence[Gradient], count: int) -> list[Gradient]:
    """Return new tensors: the sums plus the gradients, added as `adding` does.

    The result of a variable is None if its gradient is None and its sum is 0.
    """
    new_sums = [total.detach().clone() for total in sums]
    run(adding(new_sums, gradients, count))
    return [
        None if grad is None and not total.any() else total
        for total, grad in zip(new_sums, gradients, strict=True)
    ]


def clearing(sums: Sequence[Tensor]) -> list[Call]:
    """Return C functions that set the sums to 0."""
    return [total.detach().zero_ for total in sums]
