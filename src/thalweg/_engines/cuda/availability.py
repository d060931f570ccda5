"""Whether this engine can run, and if not, why."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import torch

from thalweg._engines.engine_selection import EngineName

CAPABILITY = (8, 0)  # the least: older GPUs have no instructions for bfloat16


def is_interpreted() -> bool:
    """Whether Triton interprets its programs with NumPy, on tensors of the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@cache
def why_unavailable() -> str:
    """Why there is no engine for GPUs here; empty if there is one."""
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


def takes_device(device: torch.device, name: EngineName) -> bool:
    """Whether this engine takes the variables of a device when the engine of that name is chosen.

    Those of the CPU are taken by name alone, by Triton's interpreter.
    """
    if device.type == "cuda":
        able = name in ("auto", "cuda") and not is_interpreted()
        return able and not why_unavailable() and _is_able(device.index)
    return device.type == "cpu" and name == "cuda" and is_interpreted() and not why_unavailable()
