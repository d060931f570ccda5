"""Trainings in files: saved whole, verified when they are read, restored all or nothing."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.asynchronous import Saving, save_async
from thalweg.checkpoint.manager import CheckpointManager, Kept, latest
from thalweg.checkpoint.saving import Restored, restore, save
from thalweg.checkpoint.torch_optim import from_torch, to_torch

if TYPE_CHECKING:
    from thalweg.checkpoint import tensorflow

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
    "tensorflow",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    if name == "tensorflow":
        return importlib.import_module("thalweg.checkpoint.tensorflow")
    raise AttributeError(f"module 'thalweg.checkpoint' has no attribute {name!r}")
