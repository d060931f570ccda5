"""Alias of the module `torch.optim.optimizer`."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

# Type checkers and editors read this import; the module is replaced at run time.
if TYPE_CHECKING:
    from torch.optim.optimizer import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
    from torch.optim.optimizer import ParamsT as ParamsT
    from torch.optim.optimizer import required as required

sys.modules[__name__] = import_module("torch.optim.optimizer")
