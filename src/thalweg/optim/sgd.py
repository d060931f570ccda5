"""`torch.optim.sgd`, with `SGD` of this package; all else comes from torch."""

from torch.optim.sgd import sgd

from thalweg.optim.classes import SGD
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["SGD", "sgd"]

alias_torch_module(__name__, __all__)
