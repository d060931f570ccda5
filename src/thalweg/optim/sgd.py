"""`torch.optim.sgd`, with `SGD` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.sgd import sgd

from thalweg.optim.classes import SGD
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["SGD", "sgd"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
