"""Conversion of optimizer state from and to `torch.optim`.

Slots are converted if the two libraries store them in different forms. If the arithmetic of a step
differs, a `NumericsWarning` describes the difference.
"""

from thalweg.checkpoint.torch_optim.from_torch import from_torch
from thalweg.checkpoint.torch_optim.to_torch import to_torch

__all__ = ["from_torch", "to_torch"]


def __dir__() -> list[str]:
    return sorted(__all__)
