"""`torch.optim._multi_tensor` itself, by this name, too."""

import sys

from torch.optim import _multi_tensor

sys.modules[__name__] = _multi_tensor
