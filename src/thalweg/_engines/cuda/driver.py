"""CUDA driver functions that launch a kernel, each a single call in C.

Triton launches kernels from Python, where an interruption could come between two of them; a call of
a bound C function is atomic.
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
    """Load the library of the CUDA driver."""
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def _check_code(code: int, action: str) -> None:
    """Raise a RuntimeError with the driver's text if an action has failed."""
    if code:
        text = c_char_p()
        _load_driver().cuGetErrorString(code, byref(text))
        raise RuntimeError(f"{action} failed: {(text.value or b'').decode()} (CUDA error {code}).")


@cache
def load_function(cubin: bytes, name: str, device: int) -> c_void_p:
    """Load a binary on a device and return the handle of one kernel.

    Raises:
        RuntimeError: The driver cannot load it.
    """
    with torch.cuda.device(device):
        torch.cuda.current_stream(device).query()  # creates the context of the device
        module, function = c_void_p(), c_void_p()
        _check_code(_load_driver().cuModuleLoadData(byref(module), cubin), f"Loading {name}")
        _check_code(
            _load_driver().cuModuleGetFunction(byref(function), module, name.encode()),
            f"Finding {name}",
        )
    return function


@cache
def _context_of(device: int) -> c_void_p:
    """Return the current context of a device; raise a RuntimeError if it has none."""
    with torch.cuda.device(device):
        context = c_void_p()
        _check_code(_load_driver().cuCtxGetCurrent(byref(context)), "Asking for the context")
    if not context.value:
        raise RuntimeError(f"GPU {device} has no context in this thread.")
    return context


class Starter(NamedTuple):
    """Kernel on a device.

    Attributes:
        handle: From `load_function`.
        threads: Threads of a program.
        shared: Bytes of shared memory of a program.
        parameters: Number of parameters; those after the arguments are zero.
        device: The index of the device.
    """

    handle: c_void_p
    threads: int
    shared: int
    parameters: int
    device: int


class Launch:
    """Kernel with its arguments.

    Args:
        starter: The kernel.
        grid: Numbers of programs in two dimensions.
        arguments: Integers, and tensors whose addresses are passed. The calls keep them alive.
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
        # The driver reads them when it is called, perhaps after this object has been deleted.
        pointers.read = values, arguments  # pyright: ignore[reportAttributeAccessIssue]
        self._device, self._stream = starter.device, c_void_p()
        self._bound = (
            starter.handle, c_uint(grid[0]), c_uint(grid[1]), c_uint(1), c_uint(starter.threads),
            c_uint(1), c_uint(1), c_uint(starter.shared), self._stream, pointers, None,
        )  # fmt: skip

    def make_calls(self) -> list[Callable[[], Any]]:
        """Return C functions that launch on the current stream: push context, launch, pop."""
        self._stream.value = torch.cuda.current_stream(self._device).cuda_stream
        library, popped_context = _load_driver(), c_void_p()
        return [
            partial(library.cuCtxPushCurrent_v2, _context_of(self._device)),
            partial(library.cuLaunchKernel, *self._bound),
            partial(library.cuCtxPopCurrent_v2, byref(popped_context)),
        ]

    def run(self) -> None:
        """Launch the kernel now.

        Raises:
            RuntimeError: The driver reports an error.
        """
        for call in self.make_calls():
            _check_code(c_int(call()).value, "Starting a kernel")
