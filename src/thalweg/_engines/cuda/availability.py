"""Availability of the CUDA engine on this machine and for a device."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

from thalweg._engines.engine_selection import EngineName

# The lowest compute capability supported. Below 8.0, kernels have been compiled, but never run.
CAPABILITY = (7, 5)


def is_interpreted() -> bool:
    """Return whether Triton interprets programs with NumPy, on CPU tensors (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def why_unavailable() -> str:
    """Return the reason why the CUDA engine cannot run; an empty string if it can."""
    try:
        version("triton")
    except PackageNotFoundError:
        return "Triton is not installed (it comes with torch's wheels for CUDA)"
    if is_interpreted():
        return ""
    if torch.version.hip:
        return "this torch is for ROCm; the engine knows CUDA alone"
    return "" if torch.cuda.is_available() else "torch sees no GPU"


@cache
def _is_able(index: int) -> bool:
    return torch.cuda.get_device_capability(index) >= CAPABILITY


def why_unfused(device: torch.device) -> str:
    """Return the reason why no kernels update variables on a device that is not the CPU."""
    if device.type != "cuda":
        return "there are none for this type of device"
    if reason := why_unavailable():
        return reason
    required, present = (
        ".".join(map(str, pair)) for pair in (CAPABILITY, torch.cuda.get_device_capability(device))
    )
    return f"its compute capability is {present}, and kernels need {required}"


def takes_device(device: torch.device, name: EngineName) -> bool:
    """Return whether the engine `name` updates variables on `device` with Triton kernels.

    CPU variables need the name "cuda" and Triton's interpreter; "auto" never selects them.
    """
    if device.type == "cuda":
        able = name in ("auto", "cuda") and not is_interpreted()
        return able and not why_unavailable() and _is_able(device.index)
    return device.type == "cpu" and name == "cuda" and is_interpreted() and not why_unavailable()
