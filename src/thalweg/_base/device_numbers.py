"""Floating-point numbers on devices: the widest dtype of a device, and copies on the host."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Types of devices without float64.
WITHOUT_FLOAT64 = {"mps"}
# Types of devices without decompositions of matrices.
WITHOUT_DECOMPOSITIONS = {"mps"}


def is_interpreted() -> bool:
    """Return True if Triton interprets programs with NumPy, on CPU tensors (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 for a device without float64 (Apple's, some of Intel's)."""
    lacks_float64 = device.type in WITHOUT_FLOAT64 or (
        device.type == "xpu" and not _has_fp64(device)
    )
    return torch.float32 if lacks_float64 else torch.float64


@cache
def _has_fp64(device: torch.device) -> bool:
    return bool(getattr(torch.xpu.get_device_properties(device), "has_fp64", True))  # pyright: ignore


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in the widest dtype of its device; see `wide_dtype`."""
    return tensor.to(wide_dtype(tensor.device))


def to_host(tensor: Tensor) -> npt.NDArray[np.float64]:
    """Return the numbers of a tensor as an array; ones for a tensor of the meta device."""
    if tensor.is_meta:
        return np.ones(tensor.shape)
    return tensor.detach().cpu().double().numpy()


def number_of(tensor: Tensor) -> float:
    """Return the number of a tensor with one element; 1 for a tensor of the meta device."""
    return 1.0 if tensor.is_meta else tensor.item()


def decompose(function: Callable[[Tensor], Tensor], matrices: Tensor) -> Tensor:
    """Return a factor of matrices, computed on the host where the device cannot."""
    if matrices.device.type not in WITHOUT_DECOMPOSITIONS:
        return function(matrices)
    return function(matrices.cpu()).to(matrices.device)
