"""Whether tensors are still like those that were looked at closely before."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from torch import Tensor

try:
    from torch._C._dynamo.guards import TensorGuards  # pyright: ignore
except ImportError:
    TensorGuards = None


class MetadataGuard:
    """Tensors as they were: their types, dtypes, devices, layouts, shapes and strides.

    One call into torch compares them all, in a fifth of the time that asking each tensor for each
    property takes. It is the one that `torch.compile` makes before it runs its code again. Where
    this torch does not have it, nothing is ever alike, and the closer look is taken each time.
    """

    def __init__(self, tensors: Sequence[Tensor] = ()) -> None:
        self._count = len(tensors)
        self._guards = None
        if tensors and TensorGuards is not None:
            # An interface of torch's own, which may change.
            with contextlib.suppress(TypeError, RuntimeError):
                self._guards = TensorGuards(
                    *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
                )

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether as many others are like these, in their order, and none comes twice.

        Addresses are not compared.
        """
        if self._guards is None or len(tensors) != self._count:
            return False
        return self._guards.check(*tensors)
