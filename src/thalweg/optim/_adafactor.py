"""`torch.optim._adafactor`, with `Adafactor` of this package; all else comes from torch."""

from torch.optim._adafactor import adafactor

from thalweg.optim.adafactor import Adafactor
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["Adafactor", "adafactor"]

alias_torch_module(__name__, __all__)
