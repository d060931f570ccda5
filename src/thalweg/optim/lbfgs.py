"""`torch.optim.lbfgs` itself, by this name, too."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what checkers and editors see
    from torch.optim.lbfgs import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]

sys.modules[__name__] = import_module("torch.optim.lbfgs")
