"""Values of a device on their way to the host, for which nobody waits until they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def brought(given: Sequence[Tensor]) -> tuple[list[npt.NDArray[Any]], Callable[[], None]]:
    """Arrays that will hold what tensors of any devices hold now, and what waits for that.

    Args:
        given: Tensors of dtypes that NumPy has.
    """
    arrays: list[npt.NDArray[Any]] = []
    for tensor in given:
        own = np.empty(tensor.shape, str(tensor.dtype).removeprefix("torch."))
        here = torch.from_numpy(own)  # pyright: ignore[reportUnknownMemberType]
        if tensor.is_cuda:
            here = here.pin_memory()
            own = here.numpy()
        here.copy_(tensor.detach(), non_blocking=True)
        arrays.append(own)
    devices = {tensor.device for tensor in given if tensor.is_cuda}
    events = [torch.cuda.current_stream(device).record_event() for device in devices]

    def wait() -> None:
        for event in events:
            event.synchronize()

    return arrays, wait
