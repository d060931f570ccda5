"""`torch.optim.adam`, with `Adam` of this package; all else comes from torch."""

from typing import TYPE_CHECKING

from torch.optim.adam import adam

from thalweg.optim.classes import Adam
from thalweg.optim.torch_module_aliases import standing_for

__all__ = ["Adam", "adam"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = standing_for(__name__, __all__)
