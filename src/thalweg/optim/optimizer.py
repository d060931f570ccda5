"""`torch.optim.optimizer` itself, by this name, too."""

import sys
from typing import TYPE_CHECKING

from torch.optim import optimizer

if TYPE_CHECKING:  # what checkers and editors see
    from torch.optim.optimizer import *  # noqa: F403
    from torch.optim.optimizer import ParamsT as ParamsT
    from torch.optim.optimizer import required as required

sys.modules[__name__] = optimizer
