"""The scalars of a step on a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.cuda import launch
from thalweg._engines.cuda.host_device_mirror import Mirror


class Rows:
    """Rows of a kernel's scalars, on its device.

    Args:
        count: How many rows.
        kernel: The kernel.
        device: The device.
    """

    def __init__(self, count: int, kernel: launch.Compiled, device: torch.device) -> None:
        self.count, self._names = count, kernel.scalars
        self._mirror = Mirror(np.zeros((count, len(kernel.scalars)), kernel.dtype), device)
        self._sent_state: tuple[
            Any, ...
        ] = ()  # the bytes, and which columns were copied on the device

    def send_if_changed(self, scalars: Mapping[str, Any]) -> Tensor:
        """The rows; what the host knows is sent if it has changed, the rest is copied there."""
        host = self._mirror.host
        device_columns: dict[int, Tensor] = {}
        for column, name in enumerate(self._names):
            value = scalars[name]
            if isinstance(value, Tensor):
                device_columns[column] = value
            else:
                host[:, column] = value
        sending = host.tobytes(), *device_columns
        if sending != self._sent_state:
            self._mirror.mark_changed()  # first: what is interrupted in between is sent again
            self._sent_state = sending
        device_rows = self._mirror.send_if_changed()
        for column, value in device_columns.items():
            device_rows[:, column].copy_(value)
        return device_rows
