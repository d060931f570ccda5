"""Scalar types of ml_dtypes for dtypes that NumPy lacks, such as bfloat16."""

from __future__ import annotations

import importlib
from typing import Any

import torch

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def added_type(dtype: torch.dtype) -> type[Any] | None:
    """Return the ml_dtypes scalar type of a dtype; None if there is none, or without ml_dtypes."""
    try:
        return getattr(importlib.import_module("ml_dtypes"), str(dtype).removeprefix("torch."))
    except (ImportError, AttributeError):
        return None


def bits_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bits of each element, of 8, 16 or 32 bits, as integers."""
    # `view` reads the memory, in which a lazy conjugation is not carried out.
    return tensor.resolve_conj().contiguous().view(_BITS[tensor.itemsize])
