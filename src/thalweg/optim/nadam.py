"""`torch.optim.nadam`, with `NAdam` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.nadam import nadam

from thalweg.optim.classes import NAdam
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["NAdam", "nadam"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
