"""Scalars of a file as Python's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import dtype

from thalweg.storage.container import Described
from thalweg.storage.stored import Stored

INTEGERS = ("I64", "I32", "U64", "U32")


def as_number(value: Stored) -> Any:
    """A scalar as the number that gives its bits again where it is made a hyperparameter.

    Of a float32 it is the shortest decimal, 0.1 and not 0.10000000149011612: constructors round
    it to the same float32, and where they take it exactly it is most likely what was given.
    """
    number = value.array()[()]
    if value.dtype == "F32":
        return shortest(number.item())
    return number if value.dtype == "F64" else number.item()


def shortest(number: Any) -> Any:
    """The shortest decimal of a float that a float32 holds; anything else as it is."""
    with np.errstate(over="ignore"):
        rounded = np.float32(number) if type(number) is float else None
    return float(str(rounded)) if rounded is not None and rounded == number else number


def count_of(value: Stored | None) -> int | None:
    """A scalar as a count; None if it is no integer."""
    if value is None or value.shape or value.dtype not in INTEGERS:
        return None
    return int(value.array().item())


def dtype_of(value: Stored | Described) -> dtype:
    """The dtype of a tensor in a file."""
    return Stored(value.dtype, (0,), memoryview(b"")).tensor().dtype
