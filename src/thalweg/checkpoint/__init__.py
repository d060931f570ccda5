"""Trainings in files: saved whole, verified when they are read, restored all or nothing."""

from thalweg.checkpoint.asynchronous import Saving, save_async
from thalweg.checkpoint.manager import CheckpointManager, Kept, latest
from thalweg.checkpoint.saving import Restored, restore, save
from thalweg.checkpoint.torch_optim import from_torch, to_torch

__all__ = [
    "CheckpointManager",
    "Kept",
    "Restored",
    "Saving",
    "from_torch",
    "latest",
    "restore",
    "save",
    "save_async",
    "to_torch",
]
