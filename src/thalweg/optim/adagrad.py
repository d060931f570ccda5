"""`torch.optim.adagrad`, with `Adagrad` of this package; all else comes from torch."""

from torch.optim.adagrad import adagrad

from thalweg.optim.classes import Adagrad
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["Adagrad", "adagrad"]

alias_torch_module(__name__, __all__)
