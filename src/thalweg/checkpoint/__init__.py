"""Trainings in files: saved whole, verified when they are read, restored all or nothing."""

from thalweg.checkpoint.asynchronous import Saving, save_async
from thalweg.checkpoint.manager import CheckpointManager, Kept, latest
from thalweg.checkpoint.saving import Restored, restore, save

__all__ = [
    "CheckpointManager",
    "Kept",
    "Restored",
    "Saving",
    "latest",
    "restore",
    "save",
    "save_async",
]
