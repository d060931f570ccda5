"""`torch.optim.adamw`, with `AdamW` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.adamw import adamw

from thalweg.optim.classes import AdamW
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["AdamW", "adamw"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
