"""`torch.optim.rmsprop`, with `RMSprop` of this package; all else comes from torch."""

from torch.optim.rmsprop import rmsprop

from thalweg.optim.classes import RMSprop
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["RMSprop", "rmsprop"]

alias_torch_module(__name__, __all__)
