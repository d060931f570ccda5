"""Alias of the module `torch.optim._functional`."""

import sys

from torch.optim import _functional

sys.modules[__name__] = _functional
