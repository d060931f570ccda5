"""Save a training in one file; verify and restore it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from thalweg.checkpoint.async_save import Saving, save_async
from thalweg.checkpoint.manager import CheckpointManager, Kept, latest
from thalweg.checkpoint.save_restore import Restored, restore, save

if TYPE_CHECKING:
    from thalweg.checkpoint import tensorflow
    from thalweg.checkpoint.optimizer_files import read_state
    from thalweg.checkpoint.torch_optim import from_torch, to_torch

__all__ = [
    "CheckpointManager",
    "Kept",
    "Restored",
    "Saving",
    "from_torch",
    "latest",
    "read_state",
    "restore",
    "save",
    "save_async",
    "tensorflow",
    "to_torch",
]


def __getattr__(name: str) -> Any:
    if name in ("tensorflow", "torch_optim"):
        return importlib.import_module(f"thalweg.checkpoint.{name}")
    if name in ("from_torch", "to_torch"):
        return getattr(importlib.import_module("thalweg.checkpoint.torch_optim"), name)
    if name == "read_state":
        return importlib.import_module("thalweg.checkpoint.optimizer_files").read_state
    raise AttributeError(f"module 'thalweg.checkpoint' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
