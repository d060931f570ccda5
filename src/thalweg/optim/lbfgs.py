"""`torch.optim.lbfgs` itself, by this name, too."""

import sys
from typing import TYPE_CHECKING

from torch.optim import lbfgs

if TYPE_CHECKING:  # what checkers and editors see
    from torch.optim.lbfgs import *  # noqa: F403

sys.modules[__name__] = lbfgs
