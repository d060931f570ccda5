"""Availability of the CUDA engine on this machine and for a device."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch

from thalweg._base.device_numbers import is_interpreted as is_interpreted
from thalweg._base.locks import importing
from thalweg._engines.engine_selection import EngineName

# The lowest compute capability supported. Below 8.0, kernels have been compiled, but never run.
CAPABILITY = (7, 5)
# The AMD GPUs supported: MI200 and MI300. Kernels have been compiled, but never run.
AMD_ARCHITECTURES = ("gfx90a", "gfx942")
_NEVER_RUN = (
    "kernels for AMD GPUs have been compiled, but never run; thalweg.engine('cuda') selects them"
)


@cache
def why_unavailable() -> str:
    """Return the reason why the CUDA engine cannot run; an empty string if it can."""
    # Its distribution has another name beside torch's wheels for ROCm.
    if find_spec("triton") is None:
        return "Triton is not installed (it comes with torch's wheels for CUDA and ROCm)"
    return "" if is_interpreted() or torch.cuda.is_available() else "torch sees no GPU"


def why_not_automatic() -> str:
    """Return the reason why "auto" never selects the CUDA engine; an empty string if it may."""
    return why_unavailable() or (_NEVER_RUN if torch.version.hip else "")


@cache
def _explain_unsupported(index: int) -> str:
    """Return the reason why kernels cannot run on a GPU; an empty string if they can."""
    with importing:
        from thalweg._engines.cuda import driver
    architecture = driver.of_torch().architecture_of(index)
    if isinstance(architecture, str):
        required = " or ".join(AMD_ARCHITECTURES)
        reason = f"its architecture is {architecture}, and kernels need {required}"
        return "" if architecture in AMD_ARCHITECTURES else reason
    required, present = (
        ".".join(map(str, pair)) for pair in (CAPABILITY, divmod(architecture, 10))
    )
    reason = f"its compute capability is {present}, and kernels need {required}"
    return "" if divmod(architecture, 10) >= CAPABILITY else reason


def why_unfused(device: torch.device) -> str:
    """Return the reason why no kernels update variables on a device that is not the CPU."""
    if device.type != "cuda":
        return "there are none for this type of device"
    return why_unavailable() or _explain_unsupported(device.index) or why_not_automatic()


def takes_device(device: torch.device, name: EngineName) -> bool:
    """Return True if the engine `name` updates variables on `device` with Triton kernels.

    CPU variables need the name "cuda" and Triton's interpreter. Variables on AMD GPUs need the name
    "cuda", because no AMD GPU has run the kernels.
    """
    if device.type == "cuda":
        able = name == "cuda" or (name == "auto" and not torch.version.hip)
        able = able and not is_interpreted() and not why_unavailable()
        return able and not _explain_unsupported(device.index)
    return device.type == "cpu" and name == "cuda" and is_interpreted() and not why_unavailable()
