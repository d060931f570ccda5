"""`torch.optim.lr_scheduler` itself, by this name, too."""

import sys
from typing import TYPE_CHECKING

from torch.optim import lr_scheduler

if TYPE_CHECKING:  # what checkers and editors see
    from torch.optim.lr_scheduler import *  # noqa: F403
    from torch.optim.lr_scheduler import _LRScheduler as _LRScheduler

sys.modules[__name__] = lr_scheduler
