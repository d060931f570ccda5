"""Alias of the module `torch.optim._multi_tensor`."""

import sys

from torch.optim import _multi_tensor

sys.modules[__name__] = _multi_tensor
