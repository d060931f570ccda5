"""`torch.optim.adamax`, with `Adamax` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.adamax import adamax

from thalweg.optim.classes import Adamax
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["Adamax", "adamax"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
