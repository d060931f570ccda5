"""One number for each variable: an array on the host, or a tensor where measures stay on a device.

Nobody waits for the device. `there` is the device, None for the host.
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
_INTERPRETS = is_interpreted()  # then tensors of the CPU are those of a GPU
TORCH: dict[Any, torch.dtype] = {np.float32: torch.float32, np.float64: torch.float64}


def functions_of(vector: object) -> Any:
    """The namespace of a vector: that of torch or of NumPy."""
    return torch if isinstance(vector, Tensor) else np


def place_of(vector: object) -> Device:
    """Where a vector is."""
    return vector.device if isinstance(vector, Tensor) else None


def is_host(tensor: Tensor) -> bool:
    """Whether a tensor is certainly not on a GPU."""
    return tensor.is_cpu and not _INTERPRETS


def send_to(values: object, device: torch.device) -> Tensor:
    """An array on a device."""
    there = torch.from_numpy(values)  # pyright: ignore[reportUnknownMemberType]
    there = there.pin_memory() if device.type == "cuda" else there
    return there.to(device, non_blocking=True)


def place_like(values: object, vector: object) -> Any:
    """An array where a vector is."""
    there = place_of(vector)
    if isinstance(values, Tensor):
        return values.cpu().numpy() if there is None else values
    return values if there is None else send_to(values, there)


def at_least(vector: Any, limit: Any) -> Any:
    """The larger one of each number and a limit; NaN stays NaN."""
    if not isinstance(vector, Tensor):
        return np.maximum(vector, limit)
    return torch.maximum(vector, torch.full_like(vector, limit))


def at_most(vector: Any, limit: Any) -> Any:
    """The smaller one of each number and a limit; NaN stays NaN."""
    if not isinstance(vector, Tensor):
        return np.minimum(vector, limit)
    return torch.minimum(vector, torch.full_like(vector, limit))


def for_each(vector: Any, one: Any) -> Any:
    """One number as many times as a vector has numbers."""
    return one.expand(len(vector)) if isinstance(one, Tensor) else np.full(len(vector), one)


def round_to(vector: Any, dtype: Dtype, there: Device) -> Any:
    """The same in a compute dtype."""
    if there is None:
        vector = vector.cpu().numpy() if isinstance(vector, Tensor) else vector
        return vector.astype(dtype)
    return (vector if isinstance(vector, Tensor) else send_to(vector, there)).to(TORCH[dtype])


def join_numbers(numbers: Sequence[Any], there: Device) -> Any:
    """A vector of numbers, in float64."""
    if there is None:
        return np.array(numbers, np.float64)
    return torch.stack(list(numbers)).double()


def split_numbers(vector: Any) -> Sequence[Any]:
    """The numbers of a vector."""
    return vector.unbind() if isinstance(vector, Tensor) else vector.tolist()


def number(value: object, there: Device) -> Any:
    """A scalar of the host where the vectors are; a vector as it is."""
    if there is None or not isinstance(value, np.floating):
        return value
    dtype = TORCH[type(value)]  # pyright: ignore[reportUnknownArgumentType]
    return torch.full((), float(value), dtype=dtype, device=there)  # pyright: ignore[reportUnknownArgumentType]


def spread_over(value: object, dtype: Dtype, count: int, there: Device) -> Any:
    """A number or vector as a vector of so many, in a compute dtype."""
    if there is None:
        return np.broadcast_to(np.asarray(value, dtype), (count,))
    return torch.as_tensor(value, dtype=TORCH[dtype], device=there).expand(count)


def log(value: Any) -> Any:
    """The natural logarithm of a float32; of a device's computed in float64 and rounded once."""
    if not isinstance(value, Tensor):
        return scalars.log(value)
    return value.double().log().to(value.dtype)


def power(base: float, exponent: Any) -> Any:
    """A number to the power of a float32, 0 below the normal numbers; computed as `log` is."""
    if not isinstance(exponent, Tensor):
        return scalars.power(type(exponent)(base), exponent)
    return without_denormals(torch.pow(base, exponent.double()).to(exponent.dtype))


def without_denormals(values: Tensor) -> Tensor:
    """Numbers, with 0 for those below the normal ones."""
    return torch.where(values.abs() < torch.finfo(values.dtype).tiny, 0, values)


def as_slot(value: object, slot: Tensor) -> Tensor:
    """A number as a tensor of a slot's dtype, where it can be copied to it."""
    if isinstance(value, Tensor):
        return value.to(slot.dtype)
    return torch.tensor(value, dtype=slot.dtype, device=slot.device)


def rounded(values: Mapping[str, object], dtype: Dtype) -> dict[str, Any]:
    """Scalars with Python's numbers among them, which kernels would round, in the compute dtype."""
    return {n: dtype(each) if isinstance(each, float | int) else each for n, each in values.items()}
