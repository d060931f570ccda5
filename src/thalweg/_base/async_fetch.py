"""Asynchronous copies of device tensors to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def brought(tensors: Sequence[Tensor]) -> tuple[list[npt.NDArray[Any]], Callable[[], None]]:
    """Copy tensors to the host asynchronously.

    Args:
        tensors: Tensors on any devices, of dtypes that NumPy has.

    Returns:
        A list of arrays, and a function that waits until all arrays are filled.
    """
    arrays: list[npt.NDArray[Any]] = []
    for tensor in tensors:
        array = np.empty(tensor.shape, str(tensor.dtype).removeprefix("torch."))
        buffer = torch.from_numpy(array)  # pyright: ignore[reportUnknownMemberType]
        if tensor.is_cuda:
            # Only pinned memory is filled asynchronously. `pin_memory` returns new memory, so the
            # array becomes a view of that.
            buffer = buffer.pin_memory()
            array = buffer.numpy()
        buffer.copy_(tensor.detach(), non_blocking=True)
        arrays.append(array)
    devices = {tensor.device for tensor in tensors if tensor.is_cuda}
    events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait() -> None:
        for event in events:
            event.synchronize()

    return arrays, wait
