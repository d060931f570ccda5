"""Vectors with one number for each variable: arrays of the host, or tensors of a device.

The functions do not synchronize with the device. A `device` of None is the host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._base import scalars
from thalweg._engines.cuda.availability import is_interpreted
from thalweg._engines.protocol import Dtype
from thalweg._engines.protocol import pick_members as pick_members

Device = torch.device | None
# Triton's interpreter runs GPU kernels on tensors of the CPU.
_INTERPRETS = is_interpreted()
TORCH: dict[Any, torch.dtype] = {np.float32: torch.float32, np.float64: torch.float64}


def functions_of(vector: object) -> Any:
    """Return the module with the functions of a vector: torch or NumPy."""
    return torch if isinstance(vector, Tensor) else np


def place_of(vector: object) -> Device:
    """Return the device of a vector; None for an array."""
    return vector.device if isinstance(vector, Tensor) else None


def is_host(tensor: Tensor) -> bool:
    """Return True if a tensor is on the CPU, and GPU kernels are not interpreted there."""
    return tensor.is_cpu and not _INTERPRETS


def send_to(values: object, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device; a GPU may still be receiving it."""
    tensor = torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType]
    # A copy from memory that is not pinned would block.
    tensor = tensor.pin_memory() if device.type == "cuda" else tensor
    return tensor.to(device, non_blocking=True)


def place_like(values: object, vector: object) -> Any:
    """Return `values` as a tensor on the device of `vector`; if `vector` is an array, as an array.

    Args:
        values: An array; or a tensor, which may be moved to the host, but not to another device.
        vector: A tensor, an array or None. None counts as an array.
    """
    device = place_of(vector)
    if isinstance(values, Tensor):
        return values.cpu().numpy() if device is None else values
    return values if device is None else send_to(values, device)


def at_least(vector: Any, limit: Any) -> Any:
    """Return the maximum of each number and a limit; NaN stays NaN."""
    if not isinstance(vector, Tensor):
        return np.maximum(vector, limit)
    return torch.maximum(vector, torch.full_like(vector, limit))


def at_most(vector: Any, limit: Any) -> Any:
    """Return the minimum of each number and a limit; NaN stays NaN."""
    if not isinstance(vector, Tensor):
        return np.minimum(vector, limit)
    return torch.minimum(vector, torch.full_like(vector, limit))


def for_each(vector: Any, scalar: Any) -> Any:
    """Return a number repeated to the length of a vector."""
    return (
        scalar.expand(len(vector)) if isinstance(scalar, Tensor) else np.full(len(vector), scalar)
    )


def round_to(vector: Any, dtype: Dtype, device: Device) -> Any:
    """Return a vector rounded to a compute dtype: a tensor on `device`, or an array without one."""
    if device is None:
        vector = vector.cpu().numpy() if isinstance(vector, Tensor) else vector
        return vector.astype(dtype)
    return (vector if isinstance(vector, Tensor) else send_to(vector, device)).to(TORCH[dtype])


def join_numbers(values: Sequence[Any], device: Device) -> Any:
    """Return numbers as a float64 vector."""
    if device is None:
        return np.array(values, np.float64)
    return torch.stack(list(values)).double()


def split_numbers(vector: Any) -> Sequence[Any]:
    """Return the numbers of a vector: tensors of shape (), or Python numbers."""
    return vector.unbind() if isinstance(vector, Tensor) else vector.tolist()


def number(value: object, device: Device) -> Any:
    """Return a NumPy floating scalar as a tensor of shape () on a device.

    Return `value` itself if `device` is None, or if `value` is of another type.
    """
    if device is None or not isinstance(value, np.floating):
        return value
    dtype = TORCH[type(value)]  # pyright: ignore[reportUnknownArgumentType]
    return torch.full((), float(value), dtype=dtype, device=device)  # pyright: ignore[reportUnknownArgumentType]


def spread_over(value: object, dtype: Dtype, count: int, device: Device) -> Any:
    """Return a number or vector, broadcast to length `count`, in a compute dtype."""
    if device is None:
        return np.broadcast_to(np.asarray(value, dtype), (count,))
    return torch.as_tensor(value, dtype=TORCH[dtype], device=device).expand(count)


def log(value: Any) -> Any:
    """Return the natural logarithm of a float32 scalar or tensor.

    A tensor's logarithm is computed in float64 and rounded once.
    """
    if not isinstance(value, Tensor):
        return scalars.log(value)
    return value.double().log().to(value.dtype)


def power(base: float, exponent: Any) -> Any:
    """Return a number to the power of a float32 scalar or tensor, with 0 in place of denormals.

    A tensor's power is computed in float64 and rounded once.
    """
    if not isinstance(exponent, Tensor):
        return scalars.power(type(exponent)(base), exponent)
    return without_denormals(torch.pow(base, exponent.double()).to(exponent.dtype))


def without_denormals(values: Tensor) -> Tensor:
    """Return numbers with 0 in place of denormals."""
    return torch.where(values.abs() < torch.finfo(values.dtype).tiny, 0, values)


def as_slot(value: object, slot: Tensor) -> Tensor:
    """Return a number as a tensor with the dtype of a slot, ready to copy into the slot."""
    if isinstance(value, Tensor):
        return value.to(slot.dtype)
    return torch.tensor(value, dtype=slot.dtype, device=slot.device)


def rounded(values: Mapping[str, object], dtype: Dtype) -> dict[str, Any]:
    """Return scalars by name, with Python numbers rounded to the compute dtype."""
    return {n: dtype(x) if isinstance(x, float | int) else x for n, x in values.items()}
