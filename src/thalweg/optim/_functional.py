"""`torch.optim._functional` itself, by this name, too."""

import sys

from torch.optim import _functional

sys.modules[__name__] = _functional
