"""`torch.optim.nadam`, with `NAdam` of this package; all else comes from torch."""

from torch.optim.nadam import nadam

from thalweg.optim.classes import NAdam
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["NAdam", "nadam"]

alias_torch_module(__name__, __all__)
