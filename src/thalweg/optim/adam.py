"""`torch.optim.adam`, with `Adam` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.adam import adam

from thalweg.optim.classes import Adam
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["Adam", "adam"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
