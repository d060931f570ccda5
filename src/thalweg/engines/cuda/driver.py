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
from typing import Any

import torch

from thalweg.engines.cuda.codegen import THREADS


@cache
def _library() -> Any:
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


def _check(code: int, what: str) -> None:
    if code:
        text = c_char_p()
        _library().cuGetErrorString(code, byref(text))
        raise RuntimeError(f"{what} failed: {(text.value or b'').decode()} (CUDA error {code}).")


@cache
def function(cubin: bytes, name: str, device: int) -> c_void_p:
    """A kernel of a binary, on a device.

    Raises:
        RuntimeError: The driver refuses it.
    """
    with torch.cuda.device(device):
        torch.cuda.current_stream(device).query()  # the device's context is there from now on
        module, found = c_void_p(), c_void_p()
        _check(_library().cuModuleLoadData(byref(module), cubin), f"Loading {name}")
        _check(
            _library().cuModuleGetFunction(byref(found), module, name.encode()), f"Finding {name}"
        )
    return found


class Launch:
    """A kernel with its arguments.

    Args:
        handle: From `function`.
        grid: How many programs there are, in two dimensions.
        shared: Bytes of shared memory that it needs.
        arguments: What it is given; tensors as their addresses. Whoever has its calls keeps them
            alive.
        parameters: How many parameters it has; what comes after its arguments is zero.
        device: The number of its device.
    """

    def __init__(
        self,
        handle: c_void_p,
        grid: tuple[int, int],
        shared: int,
        arguments: Sequence[torch.Tensor | int],
        parameters: int,
        device: int,
    ) -> None:
        given = [each if isinstance(each, int) else each.data_ptr() for each in arguments]
        given += [0] * (parameters - len(given))
        values = (c_int64 * len(given))(*given)
        first = ctypes.addressof(values)
        pointers = (c_void_p * len(given))(
            *range(first, first + ctypes.sizeof(values), ctypes.sizeof(c_int64))
        )
        # The driver reads them when it is called, which may be after the launch itself is gone.
        pointers.read = values, arguments  # pyright: ignore[reportAttributeAccessIssue]
        self._device, self._stream = device, c_void_p()
        self._bound = (
            handle, c_uint(grid[0]), c_uint(grid[1]), c_uint(1), c_uint(THREADS), c_uint(1),
            c_uint(1), c_uint(shared), self._stream, pointers, None,
        )  # fmt: skip
        self._context = c_void_p()
        with torch.cuda.device(device):
            _check(_library().cuCtxGetCurrent(byref(self._context)), "Asking for the context")

    def calls(self) -> list[Callable[[], Any]]:
        """What starts it on the current stream, as functions in C."""
        self._stream.value = torch.cuda.current_stream(self._device).cuda_stream
        library, before = _library(), c_void_p()
        return [
            partial(library.cuCtxPushCurrent_v2, self._context),
            partial(library.cuLaunchKernel, *self._bound),
            partial(library.cuCtxPopCurrent_v2, byref(before)),
        ]

    def run(self) -> None:
        """Start it now.

        Raises:
            RuntimeError: The driver refuses it.
        """
        for call in self.calls():
            _check(c_int(call()).value, "Starting a kernel")
