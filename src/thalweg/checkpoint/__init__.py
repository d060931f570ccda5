"""State of optimizers from files, and from other libraries."""

from thalweg.checkpoint.torch_optim import from_torch, to_torch

__all__ = ["from_torch", "to_torch"]
