"""`torch.optim.asgd`, with `ASGD` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.asgd import asgd

from thalweg.optim.classes import ASGD
from thalweg.optim.torch_module_aliases import standing_for

__all__ = ["ASGD", "asgd"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = standing_for(__name__, __all__)
