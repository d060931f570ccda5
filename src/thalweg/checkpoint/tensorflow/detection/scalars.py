"""Scalars of a file as Python's numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._core import state
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.variable import dtype_name

INTEGERS = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
FLOATS = ("F64", "F32", "F16")


def as_number(value: StoredTensor) -> Any:
    """Return a scalar as the number that gives its bits again where it is made a hyperparameter.

    Of a float32 it is the shortest decimal, 0.1 and not 0.10000000149011612: constructors round
    it to the same float32, and where they take it exactly it is most likely what was given.
    """
    number = value.array()[()]
    if value.dtype == "F32":
        return shortest_decimal(number.item())
    return number if value.dtype == "F64" else number.item()


def shortest_decimal(number: object) -> Any:
    """Return the shortest decimal of a float that a float32 holds; anything else as it is."""
    with np.errstate(over="ignore"):
        rounded = np.float32(number) if type(number) is float else None
    return float(str(rounded)) if rounded is not None and rounded == number else number


def count_of(value: StoredTensor | None) -> int | None:
    """Return a scalar as a count, also one that is stored as a float; None if it is no integer."""
    if value is None or value.shape or value.dtype not in (*INTEGERS, *FLOATS):
        return None
    number = value.array().item()
    return int(number) if isinstance(number, int) or number.is_integer() else None


def as_count(count: int, dtype: torch.dtype) -> Tensor:
    """Return a count of steps as a variable of some dtype holds it.

    Raises:
        CheckpointMismatchError: It is negative, or rounded or cut off in this dtype.
    """
    if count < 0:
        raise state.mismatch([f"global_step is {count} in the file, which is no count of steps"])
    try:
        value = torch.tensor(count, dtype=dtype, device="cpu")
    except (RuntimeError, OverflowError, ValueError):  # there are not as many integers
        value = None
    if value is None or dtype == torch.bool or value.item() != count:
        found = f"global_step is {count} in the file, which {dtype_name(dtype)} does not hold"
        raise state.mismatch([found])
    return value
