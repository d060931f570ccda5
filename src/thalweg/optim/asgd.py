"""`torch.optim.asgd`, with `ASGD` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.asgd import asgd

from thalweg.optim.classes import ASGD
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["ASGD", "asgd"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
