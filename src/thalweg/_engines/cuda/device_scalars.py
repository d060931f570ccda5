"""Scalars of a step, copied to a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.cuda import launch
from thalweg._engines.cuda.host_device_mirror import Mirror


class Rows:
    """Table of a kernel's scalars on a device, with one row per variable or one common row.

    Args:
        kernel: The kernel, which names the columns.
    """

    def __init__(self, count: int, kernel: launch.Compiled, device: torch.device) -> None:
        self.count, self._names = count, kernel.scalars
        self._mirror = Mirror(np.zeros((count, len(kernel.scalars)), kernel.dtype), device)
        # The bytes sent last, and the columns that were copied on the device.
        self._sent_state: tuple[Any, ...] = ()

    def send_if_changed(self, scalars: Mapping[str, Any]) -> Tensor:
        """Set the table to scalars and return its tensor on the device.

        Numbers on the host are sent if any number has changed. Tensors are copied in each call.

        Args:
            scalars: {name: value}. A value is a number, or an array with a number per row. A value
                may be a tensor on the device.
        """
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
            # Marked first: after an interruption in between the rows are sent again.
            self._mirror.mark_changed()
            self._sent_state = sending
        device_rows = self._mirror.send_if_changed()
        for column, value in device_columns.items():
            device_rows[:, column].copy_(value)
        return device_rows
