"""`torch.optim._adafactor` itself, by this name, too."""

import sys
from typing import TYPE_CHECKING

from torch.optim import _adafactor

if TYPE_CHECKING:  # what checkers and editors see
    from torch.optim._adafactor import *  # noqa: F403

sys.modules[__name__] = _adafactor
