"""`torch.optim.rmsprop`, with `RMSprop` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.rmsprop import rmsprop

from thalweg.optim.classes import RMSprop
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["RMSprop", "rmsprop"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
