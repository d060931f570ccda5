"""Driver functions of CUDA and HIP that launch a kernel, each a single call in C.

Triton launches kernels from Python, where an interruption could come between two launches. A call
of a bound C function is atomic.
"""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from ctypes import byref, c_char_p, c_int, c_int64, c_uint, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

Call = Callable[[], Any]
# Compute capability (90 means 9.0), or the name of an AMD GPU's instructions, such as "gfx942".
Architecture = int | str


def warp_of(architecture: Architecture) -> int:
    """Return the number of threads of a warp; AMD's name is wavefront."""
    return 64 if str(architecture).startswith("gfx9") else 32


class Driver(ABC):
    """Library of a GPU vendor that loads and launches kernels.

    Attributes:
        title: The name of the library in messages.
        functions: Names of four functions: describe an error, load a module, find a kernel in a
            module, launch a kernel. Both vendors' functions take equal arguments.
        most_threads: The largest number of threads of a launch in the first dimension.
    """

    title: str
    functions: tuple[str, str, str, str]
    most_threads: int

    @abstractmethod
    def library_names(self) -> Iterable[str]:
        """Return names or paths of the library, the best one first."""

    @abstractmethod
    def architecture_of(self, device_index: int) -> Architecture:
        """Return the architecture that kernels for a device are compiled for."""

    @abstractmethod
    def describe_device(self, device_index: int) -> str:
        """Return a device's properties that kernels depend on, as text."""

    @abstractmethod
    def calls_around(self, device_index: int) -> tuple[Call, Call]:
        """Return two functions: make a device current in this thread; restore the last device.

        Raises:
            RuntimeError: The device cannot be used in this thread.
        """

    @property
    def library(self) -> Any:
        return _load_library(self)

    def check_code(self, code: int, action: str) -> None:
        """Raise a RuntimeError with the driver's text if an action has failed."""
        if code:
            text = c_char_p()
            getattr(self.library, self.functions[0])(code, byref(text))
            message = (text.value or b"unknown error").decode()
            raise RuntimeError(f"{action} failed: {message} ({self.title} error {code}).")


class Cuda(Driver):
    """Driver of NVIDIA GPUs."""

    title = "CUDA"
    functions = ("cuGetErrorString", "cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel")
    most_threads = (2**31 - 1) * 1024

    def library_names(self) -> Iterable[str]:
        return ("nvcuda.dll" if os.name == "nt" else "libcuda.so.1",)

    def architecture_of(self, device_index: int) -> Architecture:
        major, minor = torch.cuda.get_device_capability(device_index)
        return 10 * major + minor

    def describe_device(self, device_index: int) -> str:
        return "capability {}.{}".format(*torch.cuda.get_device_capability(device_index))

    def calls_around(self, device_index: int) -> tuple[Call, Call]:
        popped_context = c_void_p()
        push = partial(self.library.cuCtxPushCurrent_v2, _find_context(device_index))
        return push, partial(self.library.cuCtxPopCurrent_v2, byref(popped_context))


class Hip(Driver):
    """Driver of AMD GPUs, for torch's builds for ROCm. Never run: no such GPU was available."""

    title = "HIP"
    functions = (
        "hipDrvGetErrorString", "hipModuleLoadData", "hipModuleGetFunction",
        "hipModuleLaunchKernel",
    )  # fmt: skip
    most_threads = 2**32 - 1

    def library_names(self) -> Iterable[str]:
        """See `Driver`. A second copy of the library would not know the streams of torch's."""
        major = str(torch.version.hip).partition(".")[0]
        if os.name == "nt":
            return (f"amdhip64_{major}.dll", "amdhip64.dll")
        # In torch's wheels, or loaded by torch already: then the loader finds it by this name.
        bundled = sorted((Path(torch.__file__).parent / "lib").glob("libamdhip64.so*"))
        return (*map(str, bundled), f"libamdhip64.so.{major}", "libamdhip64.so")

    def architecture_of(self, device_index: int) -> Architecture:
        # A name such as "gfx942:sramecc+:xnack-".
        return self._get_properties(device_index).gcnArchName.partition(":")[0]

    def describe_device(self, device_index: int) -> str:
        wavefront = self._get_properties(device_index).warp_size
        return f"{self.architecture_of(device_index)}, wavefronts of {wavefront} threads"

    def _get_properties(self, device_index: int) -> Any:
        # Some versions of torch do not type it.
        cuda: Any = torch.cuda
        return cuda.get_device_properties(device_index)

    def calls_around(self, device_index: int) -> tuple[Call, Call]:
        """See `Driver`. A stream has its device, but the default stream is the current device's."""
        set_device, last_device = self.library.hipSetDevice, torch.cuda.current_device()
        return partial(set_device, c_int(device_index)), partial(set_device, c_int(last_device))


@cache
def of_torch() -> Driver:
    """Return the driver of the GPUs that torch is built for."""
    return Hip() if torch.version.hip else Cuda()


@cache
def _load_library(driver: Driver) -> Any:
    """Load the library of a driver.

    Raises:
        RuntimeError: The library is not found under any of its names.
    """
    names, errors = tuple(driver.library_names()), list[str]()
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            errors.append(str(error))
    raise RuntimeError(
        f"The library of {driver.title} could not be loaded, which launches kernels:"
        f" {'; '.join(errors)}. Install the GPU's driver, or choose thalweg.engine('torch')."
    )


@cache
def load_function(code: bytes, name: str, device_index: int) -> c_void_p:
    """Load machine code on a device and return the handle of one kernel.

    The caller must keep `code` alive, because HIP may read it later.

    Raises:
        RuntimeError: The driver cannot load the code.
    """
    driver = of_torch()
    _, load, find, _ = (getattr(driver.library, function) for function in driver.functions)
    with torch.cuda.device(device_index):
        torch.cuda.current_stream(device_index).query()  # creates the context of the device
        module, function = c_void_p(), c_void_p()
        driver.check_code(load(byref(module), code), f"Loading {name}")
        driver.check_code(find(byref(function), module, name.encode()), f"Finding {name}")
    return function


@cache
def _find_context(device_index: int) -> c_void_p:
    """Return the context that this thread uses on a device of torch; cache the context.

    Raise RuntimeError if the thread has no context on the device.
    """
    driver = of_torch()
    with torch.cuda.device(device_index):
        context = c_void_p()
        code = driver.library.cuCtxGetCurrent(byref(context))
        driver.check_code(code, "Asking for the context")
    if not context.value:
        raise RuntimeError(f"GPU {device_index} has no context in this thread.")
    return context


class Starter(NamedTuple):
    """Kernel on a device.

    Attributes:
        handle: From `load_function`.
        threads: Threads of a program.
        shared: Bytes of shared memory of a program.
        parameters: Number of parameters; parameters after the last argument are zero.
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
        grid: Numbers of programs in two dimensions.
        arguments: Integers, and tensors whose addresses are passed. The object keeps them alive.

    Raises:
        RuntimeError: The driver cannot start so many threads at once.
    """

    def __init__(
        self, starter: Starter, grid: tuple[int, int], arguments: Sequence[torch.Tensor | int]
    ) -> None:
        driver = of_torch()
        if grid[0] * starter.threads > driver.most_threads:
            raise RuntimeError(
                f"A launch has {grid[0]:,} programs of {starter.threads} threads, and"
                f" {driver.title} starts at most {driver.most_threads:,} threads."
                " Choose thalweg.engine('torch')."
            )
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

    def make_calls(self) -> list[Call]:
        """Return functions that launch on the current stream: enter the device, launch, leave."""
        # The bound arguments contain this object, and so the present stream.
        self._stream.value = torch.cuda.current_stream(self._device).cuda_stream
        driver = of_torch()
        enter, leave = driver.calls_around(self._device)
        launch = getattr(driver.library, driver.functions[-1])
        return [enter, partial(launch, *self._bound), leave]

    def run(self) -> None:
        """Launch the kernel now.

        Raises:
            RuntimeError: The driver reports an error.
        """
        for call in self.make_calls():
            of_torch().check_code(c_int(call()).value, "Starting a kernel")
