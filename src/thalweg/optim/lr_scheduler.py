"""Alias of the module `torch.optim.lr_scheduler`."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

# Type checkers and editors read this import; the module is replaced at run time.
if TYPE_CHECKING:
    from torch.optim.lr_scheduler import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
    from torch.optim.lr_scheduler import _LRScheduler as _LRScheduler  # pyright: ignore[reportPrivateUsage]

sys.modules[__name__] = import_module("torch.optim.lr_scheduler")
