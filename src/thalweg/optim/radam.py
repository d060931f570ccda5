"""`torch.optim.radam`, with `RAdam` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.radam import radam

from thalweg.optim.classes import RAdam
from thalweg.optim.torch_module_aliases import standing_for

__all__ = ["RAdam", "radam"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = standing_for(__name__, __all__)
