"""`torch.optim._adafactor`, with `Adafactor` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim._adafactor import adafactor

from thalweg.optim.adafactor import Adafactor
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["Adafactor", "adafactor"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
