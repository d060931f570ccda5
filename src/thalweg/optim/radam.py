"""`torch.optim.radam`, with `RAdam` of this package; all else comes from torch."""

from torch.optim.radam import radam

from thalweg.optim.classes import RAdam
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["RAdam", "radam"]

alias_torch_module(__name__, __all__)
