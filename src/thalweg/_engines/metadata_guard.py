"""Detection of tensors whose metadata has changed since they were checked."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from torch import Tensor

try:
    from torch._C._dynamo.guards import TensorGuards  # pyright: ignore
except ImportError:
    TensorGuards = None


class MetadataGuard:
    """Recorded types, dtypes, devices, layouts, shapes and strides of tensors.

    One call into torch, to the function that `torch.compile` uses, compares all properties. If
    torch lacks the function, `holds` always returns False. Callers then compare in Python.

    Args:
        tensors: The tensors. If there are none, `holds` returns False.
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
        """Return True if tensors have the recorded metadata, in order, and no tensor occurs twice.

        Addresses are not compared.
        """
        if self._guards is None or len(tensors) != self._count:
            return False
        return self._guards.check(*tensors)
