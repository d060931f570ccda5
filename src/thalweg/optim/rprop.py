"""`torch.optim.rprop`, with `Rprop` of this package; all else comes from torch."""

from torch.optim.rprop import rprop

from thalweg.optim.classes import Rprop
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["Rprop", "rprop"]

alias_torch_module(__name__, __all__)
