"""`torch.optim.adagrad`, with `Adagrad` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.adagrad import adagrad

from thalweg.optim.classes import Adagrad
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["Adagrad", "adagrad"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
