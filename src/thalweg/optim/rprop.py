"""`torch.optim.rprop`, with `Rprop` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.rprop import rprop

from thalweg.optim.classes import Rprop
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["Rprop", "rprop"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
