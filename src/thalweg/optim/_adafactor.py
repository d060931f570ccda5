"""`torch.optim._adafactor`, with `Adafactor` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim._adafactor import adafactor

from thalweg.optim.adafactor import Adafactor
from thalweg.optim.torch_module_aliases import standing_for

__all__ = ["Adafactor", "adafactor"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = standing_for(__name__, __all__)
