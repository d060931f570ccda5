"""`torch.optim._muon`, with `Muon` of this package; all else comes from torch."""

from thalweg.optim.modern.matrix_rules import Muon
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["Muon"]

alias_torch_module(__name__, __all__)
