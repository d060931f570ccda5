"""`torch.optim._muon`, with `Muon` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from thalweg.optim.modern.matrix_rules import Muon
from thalweg.optim.torch_module_aliases import module_alias

__all__ = ["Muon"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_alias(__name__, __all__)
