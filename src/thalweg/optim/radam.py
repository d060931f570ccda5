"""`torch.optim.radam`, with `RAdam` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.radam import radam

from thalweg.optim.classes import RAdam
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["RAdam", "radam"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
