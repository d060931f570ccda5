"""The state of optimizers of `torch.optim`, taken over and handed back.

Slots are converted where both keep the same thing in different forms. Where the arithmetic of a
step differs, a `NumericsWarning` says how.
"""

from thalweg.checkpoint.torch_optim.from_torch import from_torch
from thalweg.checkpoint.torch_optim.to_torch import to_torch

__all__ = ["from_torch", "to_torch"]


def __dir__() -> list[str]:
    return sorted(__all__)
