"""Gradients of several runs in sums that begin at 0, to which each run adds its share, g (1 / n).

The sums are variables, which a step sets to 0. It takes them with the share of its own run, which
it does not write: a step that fails leaves them as they were.
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
    """Refuse gradients and sums that do not fit their variables; nothing has changed then."""
    check_memories(sums)
    names = titles_of(targets)
    for total, var, name in zip(sums, targets, names, strict=True):
        check_slots(var, [total], name)
    triples = zip(gradients, targets, names, strict=True)
    found = [(grad, var, name) for grad, var, name in triples if grad is not None]
    check_pairs([(grad, var) for grad, var, _ in found], [name for *_, name in found], scatter=True)


def adding(sums: Sequence[Tensor], gradients: Sequence[Gradient], count: int) -> list[Call]:
    """What adds gradients, divided by `count` as a session divides by a constant, to their sums.

    None adds nothing. The calls are functions in C.
    """
    made: list[Call] = []
    for total, grad in zip(sums, gradients, strict=True):
        if grad is None:
            continue
        values = values_of(grad)
        share = values * reciprocal(values.new_full((), count))
        if isinstance(grad, IndexedSlices):
            made.append(partial(total.detach().index_add_, 0, grad.indices.long(), share))
        else:
            made.append(partial(total.detach().add_, share))
    return made


def totals(sums: Sequence[Tensor], gradients: Sequence[Gradient], count: int) -> list[Gradient]:
    """The sums with the shares of these gradients; None for a variable that had none in any run."""
    found = [total.detach().clone() for total in sums]
    run(adding(found, gradients, count))
    return [
        None if grad is None and not total.any() else total
        for total, grad in zip(found, gradients, strict=True)
    ]


def clearing(sums: Sequence[Tensor]) -> list[Call]:
    """What begins anew, as functions in C."""
    return [total.detach().zero_ for total in sums]
