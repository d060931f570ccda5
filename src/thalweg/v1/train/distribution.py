"""Gradients summed over the ranks of a process group.

Every rank issues the same collectives in the same order, whatever gradients it has: the ranks first
tell one another which variables have a gradient, and of which kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

from thalweg.core.pairs import Gradient
from thalweg.errors import ReplicaMismatchError
from thalweg.graph import SymbolicSlices
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import TRAINED, dtype_name, titles_of

MaybePair = tuple[Gradient | None, Tensor]


def summed_over_replicas(pairs: Iterable[MaybePair], group: Any = None) -> list[MaybePair]:
    """The pairs with each gradient summed over the ranks; every rank gives the same variables.

    None counts as zero where another rank has a gradient, and stays None where none has. Rows of
    sparse gradients are brought together, not added up: a row that two ranks name is named twice.
    Their indices are int64 if they are so on any rank.

    Args:
        pairs: Gradients and variables.
        group: A process group; None takes the default one, or this process alone.

    Raises:
        ReplicaMismatchError: A gradient is dense on one rank and sparse on another, or its dtypes
            differ. Every rank raises it.
    """
    filled = filled_over_replicas(pairs, group)
    if _alone(group):
        return filled
    with torch.no_grad():
        counts = iter(_counts([g for g, _ in filled if isinstance(g, IndexedSlices)], group))
        return [
            (_gathered(grad, next(counts), group), var)
            if isinstance(grad, IndexedSlices)
            else (None if grad is None else _added(grad, group), var)
            for grad, var in filled
        ]


def filled_over_replicas(pairs: Iterable[Any], group: Any = None) -> list[Any]:
    """The pairs with zeros, or no rows, for each None that is a gradient on another rank.

    While a graph is built, gradients and variables may be symbolic; see `summed_over_replicas`.
    """
    pairs = list(pairs)
    if not pairs or _alone(group):
        return pairs
    marks = torch.tensor(
        [_kind_of(grad).marks() for grad, _ in pairs], dtype=torch.uint8, device=pairs[0][1].device
    )
    distributed.all_reduce(marks, distributed.ReduceOp.MAX, group)
    kinds = [_Kind.of(row) for row in marks.tolist()]
    for kind, title in zip(kinds, titles_of([var for _, var in pairs]), strict=True):
        kind.check(title)
    return [(_filled(grad, var, kind), var) for kind, (grad, var) in zip(kinds, pairs, strict=True)]


class _Kind(NamedTuple):
    """What a gradient is on some rank: none of these where it is None on all."""

    dense: bool = False
    sparse: bool = False
    wide: bool = False  # whether indices are int64
    dtypes: tuple[bool, ...] = (False,) * len(TRAINED)

    def marks(self) -> list[int]:
        return [self.dense, self.sparse, self.wide, *self.dtypes]

    @classmethod
    def of(cls, marks: Sequence[int]) -> _Kind:
        dense, sparse, wide, *dtypes = map(bool, marks)
        return cls(dense, sparse, wide, tuple(dtypes))

    def names(self) -> list[str]:
        return [dtype_name(dtype) for dtype, is_one in zip(TRAINED, self.dtypes) if is_one]

    def check(self, title: str) -> None:
        differ = ["dense", "sparse"] if self.dense and self.sparse else self.names()
        if len(differ) > 1:
            raise ReplicaMismatchError(
                f"The gradient of '{title}' is {differ[0]} on one rank and {differ[1]} on another."
                " All ranks must give the same kind and dtype, or None."
            )


def _alone(group: Any) -> bool:
    if not (distributed.is_available() and distributed.is_initialized()):
        return True
    return distributed.get_world_size(group) == 1


def _kind_of(grad: Any) -> _Kind:
    if grad is None:
        return _Kind()
    is_sparse = isinstance(grad, IndexedSlices | SymbolicSlices)
    is_wide = is_sparse and grad.indices.dtype == torch.int64
    return _Kind(not is_sparse, is_sparse, is_wide, tuple(grad.dtype == each for each in TRAINED))


def _filled(grad: Any, var: Any, kind: _Kind) -> Any:
    if isinstance(grad, IndexedSlices) and kind.wide:
        return IndexedSlices(grad.values, grad.indices.long(), grad.dense_shape)
    if grad is not None or not (kind.dense or kind.sparse):
        return grad
    dtype = next((each for each, is_it in zip(TRAINED, kind.dtypes) if is_it), var.dtype)
    shape = tuple(var.shape)
    if kind.dense:
        return torch.zeros(shape, dtype=dtype, device=var.device)
    index = torch.int64 if kind.wide else torch.int32
    return IndexedSlices(
        torch.zeros((0, *shape[1:]), dtype=dtype, device=var.device),
        torch.zeros(0, dtype=index, device=var.device),
        shape,
    )


def _added(grad: Tensor, group: Any) -> Tensor:
    total = grad.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(total, group=group)
    return total


def _counts(slices: Sequence[IndexedSlices], group: Any) -> list[list[int]]:
    """For each of the slices the number of its rows on each rank."""
    if not slices:
        return []
    own = torch.tensor([len(each.indices) for each in slices], device=slices[0].device)
    all_of_them = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(all_of_them, own, group)
    return torch.stack(all_of_them, 1).tolist()


def _gathered(grad: IndexedSlices, counts: Sequence[int], group: Any) -> IndexedSlices:
    values, indices = (_joined(part, counts, group) for part in (grad.values, grad.indices))
    return IndexedSlices(values, indices, grad.dense_shape)


def _joined(part: Tensor, counts: Sequence[int], group: Any) -> Tensor:
    """The rows of all ranks, one rank after the other."""
    # Collectives want one shape on all ranks.
    padded = part.new_zeros((max(counts), *part.shape[1:]))
    if not padded.numel():
        return part.new_zeros((sum(counts), *part.shape[1:]))
    padded[: len(part)] = part
    parts = [torch.empty_like(padded) for _ in counts]
    distributed.all_gather(parts, padded, group)
    return torch.cat([rows[:count] for rows, count in zip(parts, counts, strict=True)])
