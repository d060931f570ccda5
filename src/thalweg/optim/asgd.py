"""`torch.optim.asgd`, with `ASGD` of this package; all else comes from torch."""

from torch.optim.asgd import asgd

from thalweg.optim.classes import ASGD
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["ASGD", "asgd"]

alias_torch_module(__name__, __all__)
