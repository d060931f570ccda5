"""`torch.optim.adamax`, with `Adamax` of this package; all else comes from torch."""

from torch.optim.adamax import adamax

from thalweg.optim.classes import Adamax
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["Adamax", "adamax"]

alias_torch_module(__name__, __all__)
