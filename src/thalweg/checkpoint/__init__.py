"""Save a training in one file; verify and restore it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thalweg._base.lazy import offering
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


_HOMES = {"from_torch": "torch_optim", "to_torch": "torch_optim", "read_state": "optimizer_files"}
__getattr__, __dir__ = offering(__name__, _HOMES, {}, object)
