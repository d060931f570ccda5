"""`torch.optim.sparse_adam`, with `SparseAdam` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from thalweg.optim.classes import SparseAdam
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["SparseAdam"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
