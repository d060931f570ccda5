"""`torch.optim.swa_utils` itself, by this name, too."""

import sys
from typing import TYPE_CHECKING

from torch.optim import swa_utils

if TYPE_CHECKING:  # what checkers and editors see
    from torch.optim.swa_utils import *  # noqa: F403

sys.modules[__name__] = swa_utils
