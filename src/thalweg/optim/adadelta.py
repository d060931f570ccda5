"""`torch.optim.adadelta`, with `Adadelta` of this package; all else comes from torch."""

from torch.optim.adadelta import adadelta

from thalweg.optim.classes import Adadelta
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["Adadelta", "adadelta"]

alias_torch_module(__name__, __all__)
