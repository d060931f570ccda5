"""`torch.optim.lr_scheduler` itself, by this name, too."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what checkers and editors see
    from torch.optim.lr_scheduler import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
    from torch.optim.lr_scheduler import _LRScheduler as _LRScheduler

sys.modules[__name__] = import_module("torch.optim.lr_scheduler")
