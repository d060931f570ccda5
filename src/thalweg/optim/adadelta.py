"""`torch.optim.adadelta`, with `Adadelta` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.adadelta import adadelta

from thalweg.optim.classes import Adadelta
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["Adadelta", "adadelta"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
