"""`torch.optim.sparse_adam`, with `SparseAdam` of this package; all else comes from torch."""

from thalweg.optim.classes import SparseAdam
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["SparseAdam"]

alias_torch_module(__name__, __all__)
