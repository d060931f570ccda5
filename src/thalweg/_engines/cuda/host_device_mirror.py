"""Small arrays that the host writes and a device reads, such as the scalars of a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from thalweg._engines.array_types import Array, Int64

if TYPE_CHECKING:
    from thalweg._engines.cuda.launch import Compiled

MAX_IN_FLIGHT = 16  # pending copies, and so the steps that the host may be ahead of the device


class Mirror:
    """Array on the host and its copy on a device; changes are sent without waiting.

    Args:
        host: The array; code that changes the array must call `mark_changed`.

    Attributes:
        host: The array.
        device_copy: The copy on the device, as sent last.
    """

    def __init__(self, host: Array | Int64, device: torch.device) -> None:
        self.host = host
        host_tensor = torch.from_numpy(host)  # pyright: ignore[reportUnknownMemberType]
        self.device_copy = torch.empty_like(host_tensor, device=device)
        self._is_current = False
        # Pinned buffers that pending copies read, with an event after each copy; oldest first.
        self._in_flight: deque[tuple[Tensor, Any]] = deque()
        self._pinned = device.type == "cuda"
        self._host_tensor = host_tensor
        self._spare: Tensor | None = None  # buffer for the next CUDA graph
        self._in_graphs: list[Tensor] = []
        self._provide_spare()

    def mark_changed(self) -> None:
        """Let the next `send_if_changed` copy the array."""
        self._is_current = False

    def _provide_spare(self) -> None:
        """Allocate a buffer for the next CUDA graph; a capture cannot pin memory."""
        if self._spare is None:
            self._spare = torch.empty_like(self._host_tensor, pin_memory=self._pinned)

    def send_if_changed(self) -> Tensor:
        """Return the tensor on the device; if the array has changed, start a copy first.

        While a CUDA graph is captured, return a new tensor that each replay fills again.

        Raises:
            RuntimeError: A second graph is captured without an uncaptured step before it.
        """
        if is_capturing():
            buffer = self._keep_for_graph()
            return torch.empty_like(self.device_copy).copy_(buffer, non_blocking=True)
        self._provide_spare()
        if self._is_current:
            return self.device_copy
        if self._pinned:
            buffer, event = self._take_buffer()
            buffer.copy_(self._host_tensor)
            with torch.cuda.device(self.device_copy.device):
                self.device_copy.copy_(buffer, non_blocking=True)
                event.record()
            self._in_flight.append((buffer, event))
        else:
            self.device_copy.copy_(self._host_tensor)
        self._is_current = True
        return self.device_copy

    def _take_buffer(self) -> tuple[Tensor, Any]:
        """Return (free pinned memory, event to record after a copy).

        Wait for the oldest copy if `MAX_IN_FLIGHT` copies are pending.
        """
        has_arrived = bool(self._in_flight) and self._in_flight[0][1].query()
        if not has_arrived and len(self._in_flight) < MAX_IN_FLIGHT:
            return torch.empty_like(self._host_tensor, pin_memory=True), torch.cuda.Event()
        buffer, event = self._in_flight.popleft()
        if not has_arrived:
            event.synchronize()
        return buffer, event

    def _keep_for_graph(self) -> Tensor:
        """Copy the array into the spare buffer, keep the buffer for the graph, and return it.

        Raises:
            RuntimeError: An earlier graph has used the spare buffer.
        """
        if self._spare is None:
            raise RuntimeError(
                "Take a step outside of a CUDA graph before another one is captured."
            )
        buffer, self._spare = self._spare, None
        self._in_graphs.append(buffer.copy_(self._host_tensor))
        return buffer


class Rows:
    """Table of a kernel's scalars on a device, with one row per variable or one common row.

    Args:
        kernel: The kernel, which names the columns.
    """

    def __init__(self, count: int, kernel: Compiled, device: torch.device) -> None:
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


def is_capturing() -> bool:
    """Return True if the current stream is being captured into a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def send_constant(values: Any, dtype: Any, device: torch.device) -> Tensor:
    host = np.ascontiguousarray(values, dtype)
    return torch.from_numpy(host.copy()).to(device)  # pyright: ignore[reportUnknownMemberType]
