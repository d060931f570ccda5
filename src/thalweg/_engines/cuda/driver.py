"""The few functions of the CUDA driver that start a kernel, each one call in C.

Triton starts kernels from Python, where an interruption could come between two of them; a call of a
bound function in C comes as a whole or not at all.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from ctypes import byref, c_char_p, c_int, c_int64, c_uint, c_void_p
from functools import cache, partial
from typing import Any, NamedTuple

import torch


@cache
def _load_driver() -> Any:
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def _check_code(code: int, action: str) -> None:
    if code:
        text = c_char_p()
        _load_driver().cuGetErrorString(code, byref(text))
        raise RuntimeError(f"{action} failed: {(text.value or b'').decode()} (CUDA error {code}).")


@cache
def load_function(cubin: bytes, name: str, device: int) -> c_void_p:
    """A kernel of a binary, on a device.

    Raises:
        RuntimeError: The driver refuses it.
    """
    with torch.cuda.device(device):
        torch.cuda.current_stream(device).query()  # the device's context is there from now on
        module, function = c_void_p(), c_void_p()
        _check_code(_load_driver().cuModuleLoadData(byref(module), cubin), f"Loading {name}")
        _check_code(
            _load_driver().cuModuleGetFunction(byref(function), module, name.encode()),
            f"Finding {name}",
        )
    return function


@cache
def _context_of(device: int) -> c_void_p:
    with torch.cuda.device(device):
        context = c_void_p()
        _check_code(_load_driver().cuCtxGetCurrent(byref(context)), "Asking for the context")
    if not context.value:
        raise RuntimeError(f"GPU {device} has no context in this thread.")
    return context


class Starter(NamedTuple):
    """A kernel on a device.

    Attributes:
        handle: From `load_function`.
        threads: Of a program.
        shared: Bytes of shared memory that one needs.
        parameters: How many parameters it has; what comes after its arguments is zero.
        device: The number of its device.
    """

    handle: c_void_p
    threads: int
    shared: int
    parameters: int
    device: int


class Launch:
    """A kernel with its arguments.

    Args:
        starter: The kernel.
        grid: How many programs there are, in two dimensions.
        arguments: What it is given; tensors as their addresses. Whoever has its calls keeps them
            alive.
    """

    def __init__(
        self, starter: Starter, grid: tuple[int, int], arguments: Sequence[torch.Tensor | int]
    ) -> None:
        count = starter.parameters
        addresses = [
            argument if isinstance(argument, int) else argument.data_ptr() for argument in arguments
        ]
        values = (c_int64 * count)(*addresses)
        first = ctypes.addressof(values)
        pointers = (c_void_p * count)(*range(first, first + 8 * count, 8))
        # The driver reads them when it is called, which may be after the launch itself is gone.
        pointers.read = values, arguments  # pyright: ignore[reportAttributeAccessIssue]
        self._device, self._stream = starter.device, c_void_p()
        self._bound = (
            starter.handle, c_uint(grid[0]), c_uint(grid[1]), c_uint(1), c_uint(starter.threads),
            c_uint(1), c_uint(1), c_uint(starter.shared), self._stream, pointers, None,
        )  # fmt: skip

    def make_calls(self) -> list[Callable[[], Any]]:
        """What starts it on the current stream, as functions in C."""
        self._stream.value = torch.cuda.current_stream(self._device).cuda_stream
        library, popped_context = _load_driver(), c_void_p()
        return [
            partial(library.cuCtxPushCurrent_v2, _context_of(self._device)),
            partial(library.cuLaunchKernel, *self._bound),
            partial(library.cuCtxPopCurrent_v2, byref(popped_context)),
        ]

    def run(self) -> None:
        """Start it now.

        Raises:
            RuntimeError: The driver refuses it.
        """
        for call in self.make_calls():
            _check_code(c_int(call()).value, "Starting a kernel")
