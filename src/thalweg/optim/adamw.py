"""`torch.optim.adamw`, with `AdamW` of this package; all else comes from torch."""

from torch.optim.adamw import adamw

from thalweg.optim.classes import AdamW
from thalweg.optim.torch_module_aliases import alias_torch_module

__all__ = ["AdamW", "adamw"]

alias_torch_module(__name__, __all__)
