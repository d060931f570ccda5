"""`torch.optim.optimizer` itself, by this name, too."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what checkers and editors see
    from torch.optim.optimizer import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]
    from torch.optim.optimizer import ParamsT as ParamsT
    from torch.optim.optimizer import required as required

sys.modules[__name__] = import_module("torch.optim.optimizer")
