"""`torch.optim.adam`, with `Adam` of this package; all else comes from torch."""

from torch.optim.adam import adam

from thalweg.optim.classes import Adam
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["Adam", "adam"]

alias_torch_module(__name__, __all__)
