"""Conversion of scalars in a file to Python numbers, and dynamic loss scales."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._core import state
from thalweg._formats.stored_tensor import StoredTensor
from thalweg.variable import dtype_name

INTEGERS = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
FLOATS = ("F64", "F32", "F16")


def as_number(stored_tensor: StoredTensor) -> Any:
    """Return a scalar as a number that constructors round to the scalar's bits.

    For float32 this is the shortest decimal: 0.1 and not 0.10000000149011612.
    """
    scalar = stored_tensor.array()[()]
    if stored_tensor.dtype == "F32":
        return shortest_decimal(scalar.item())
    return scalar if stored_tensor.dtype == "F64" else scalar.item()


def shortest_decimal(scalar: object) -> Any:
    """Return the shortest decimal of a float that is exactly a float32; other values unchanged."""
    with np.errstate(over="ignore"):
        as_float32 = np.float32(scalar) if type(scalar) is float else None
    return float(str(as_float32)) if as_float32 is not None and as_float32 == scalar else scalar


def count_of(stored_tensor: StoredTensor | None) -> int | None:
    """Return a scalar as an int, also if it is stored as a float; None if it is not an integer."""
    if stored_tensor is None or stored_tensor.shape:
        return None
    if stored_tensor.dtype not in (*INTEGERS, *FLOATS):
        return None
    scalar = stored_tensor.array().item()
    return int(scalar) if isinstance(scalar, int) or scalar.is_integer() else None


def as_count(count: int, dtype: torch.dtype) -> Tensor:
    """Return a step count as a tensor of a dtype.

    Raises:
        CheckpointMismatchError: The count is negative, or does not fit the dtype.
    """
    if count < 0:
        raise state.mismatch([f"global_step is {count} in the file, which is no count of steps"])
    try:
        tensor = torch.tensor(count, dtype=dtype, device="cpu")
    # The count is beyond the integers of `dtype`.
    except (RuntimeError, OverflowError, ValueError):
        tensor = None
    if tensor is None or dtype == torch.bool or tensor.item() != count:
        problem = f"global_step is {count} in the file, which {dtype_name(dtype)} does not hold"
        raise state.mismatch([problem])
    return tensor


SCALE, STEPS = "current_loss_scale", "good_steps"
# The names of TensorFlow, of its first versions, and of Keras 3.
OF_SCALES = {SCALE: SCALE, STEPS: STEPS, "num_good_steps": STEPS}
OF_KERAS_3 = {"dynamic_scale": SCALE, "step_counter": STEPS}


def if_valid(scale: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return a copy of a loss scale's variables if dtypes and shapes are valid, else {}."""
    is_scale = SCALE in scale and scale[SCALE].dtype == "F32"
    are_counts = all(tensor.dtype in INTEGERS for name, tensor in scale.items() if name != SCALE)
    are_scalars = not any(tensor.shape for tensor in scale.values())
    return dict(scale) if is_scale and are_counts and are_scalars else {}


def scale_in(stored_tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the two variables that a Saver stores for a loss scale; {} if one is missing."""
    scale = {name: stored_tensors[name] for name in (SCALE, STEPS) if name in stored_tensors}
    return if_valid(scale) if len(scale) == 2 else {}
