"""Scalars of a file as Python's numbers."""

from __future__ import annotations

from typing import Any

from torch import dtype

from thalweg.storage.stored import Stored


def as_number(value: Stored) -> Any:
    """A scalar as the number that gives its bits again where it is made a hyperparameter.

    Of a float32 it is the shortest decimal, 0.1 and not 0.10000000149011612: constructors round
    it to the same float32, and where they take it exactly it is most likely what was given.
    """
    number = value.array()[()]
    if value.dtype == "F32":
        return float(str(number))
    return number if value.dtype == "F64" else number.item()


def dtype_of(value: Stored) -> dtype:
    """The dtype of a tensor in a file."""
    return Stored(value.dtype, (0,), memoryview(b"")).tensor().dtype
