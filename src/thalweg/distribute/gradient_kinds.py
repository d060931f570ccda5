"""Gradient kinds (dense or sparse, and dtype) over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from thalweg._base.execution_context import SymbolicRows
from thalweg.errors import InvalidTypeError, ReplicaMismatchError
from thalweg.indexed_slices import IndexedSlices
from thalweg.variable import TRAINED, dtype_name

_DTYPES = (*TRAINED, torch.complex64, torch.complex128, torch.int32, torch.int64)
_ROWS: tuple[type[Any], ...] = (IndexedSlices, SymbolicRows)


class GradientKind(NamedTuple):
    """Sparsity and dtype of a gradient over all ranks. For None, all flags are False.

    Attributes:
        dense: True if the gradient is a tensor on some rank.
        sparse: True if the gradient has rows on some rank.
        wide: True if row indices are int64 on some rank.
        missing: True if the gradient is None on some rank and has no variable.
        dtypes: For each of `_DTYPES`, True if the gradient has this dtype on some rank.
    """

    dense: bool = False
    sparse: bool = False
    wide: bool = False
    missing: bool = False
    dtypes: tuple[bool, ...] = (False,) * len(_DTYPES)

    @classmethod
    def of(cls, grad: Any, var: object) -> GradientKind:
        """Return the kind of a gradient on this rank.

        `var` is the gradient's variable, or None. If both are None, only `missing` is True. If only
        `grad` is None, all flags are False.
        """
        if grad is None:
            return cls(missing=var is None)
        is_sparse = isinstance(grad, _ROWS)
        is_wide = is_sparse and grad.indices.dtype == torch.int64
        dtypes = tuple(grad.dtype == candidate for candidate in _DTYPES)
        return cls(not is_sparse, is_sparse, is_wide, False, dtypes)

    @classmethod
    def from_marks(cls, marks: Sequence[int]) -> GradientKind:
        """Return the kind encoded by the numbers of `to_marks`."""
        dense, sparse, wide, missing, *dtypes = map(bool, marks)
        return cls(dense, sparse, wide, missing, tuple(dtypes))

    def to_marks(self) -> list[int]:
        """Return the flags as a list of 0 and 1, whose maxima over ranks are the common kind."""
        return [self.dense, self.sparse, self.wide, self.missing, *self.dtypes]

    def check_same(self, name: str) -> None:
        """Raise ReplicaMismatchError about gradient `name` if sparsity or dtype differ on ranks.

        Also raise it if the gradient has no variable and is None on some ranks only.
        """
        names = [dtype_name(dtype) for dtype, flag in zip(_DTYPES, self.dtypes) if flag]
        differ = ["dense", "sparse"] if self.dense and self.sparse else names
        if self.missing:
            differ = ["None", *differ]
        if len(differ) > 1:
            name = name[0].upper() + name[1:]
            raise ReplicaMismatchError(
                f"{name} is {differ[0]} on one rank and {differ[1]} on another. All ranks must"
                f" give the same kind and dtype{'.' if self.missing else ', or None.'}"
            )

    def fill(self, grad: object, var: Any) -> Any:
        """Return this rank's gradient, converted to the kind that all ranks have in common.

        None becomes zeros, or `IndexedSlices` without rows, if another rank has a gradient. Row
        indices become int64 if another rank has int64. Any other `grad` is returned unchanged.
        """
        if isinstance(grad, IndexedSlices) and self.wide:
            return IndexedSlices(grad.values, grad.indices.long(), grad.dense_shape)
        if grad is not None or not (self.dense or self.sparse):
            return grad
        dtype = next(
            (candidate for candidate, flag in zip(_DTYPES, self.dtypes) if flag), var.dtype
        )
        shape = tuple(var.shape)
        if self.dense:
            return torch.zeros(shape, dtype=dtype, device=var.device)
        index = torch.int64 if self.wide else torch.int32
        return IndexedSlices(
            torch.zeros((0, *shape[1:]), dtype=dtype, device=var.device),
            torch.zeros(0, dtype=index, device=var.device),
            shape,
        )


def check_dtype(dtype: torch.dtype) -> None:
    """Raise InvalidTypeError for a dtype that ranks cannot add."""
    if dtype not in _DTYPES:
        raise InvalidTypeError(
            f"A value is of {dtype_name(dtype)}, but replicas add up"
            f" {', '.join(map(dtype_name, _DTYPES))}. Convert it first."
        )


def signature(gradients: Sequence[object]) -> bytes:
    """Return one byte per gradient, equal for gradients of equal kind and dtype."""
    return bytes(map(kind_of, gradients))


def kind_of(grad: Any) -> int:
    """Return a number below 256 for sparsity, dtype and row-index dtype; 0 for None."""
    if grad is None:
        return 0
    index = _INDICES.get(grad.dtype, len(_DTYPES))
    if isinstance(grad, torch.Tensor):
        return 1 + index
    return (129 if grad.indices.dtype == torch.int64 else 65) + index


_INDICES = {dtype: number for number, dtype in enumerate(_DTYPES)}
