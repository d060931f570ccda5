"""C++ functions of torch that return whether this thread traces or records operations.

The native replay calls these functions. The equivalent Python functions take several times as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

_BOOL = 0xFF  # the bits of a returned bool
# Symbol, mask and `is_pointer` of guards. `at::hasCallbacks()`: profilers of one or all threads.
_PROFILER_SYMBOL = ("_ZN2at12hasCallbacksEv", _BOOL, False)
_TRACING_SYMBOLS = (
    ("_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", -1, False),
    ("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", -1, False),
    ("_ZN3c1013InferenceMode10is_enabledEv", _BOOL, False),  # no version counters
    ("_ZN5torch3jit6tracer15getTracingStateEv", -1, True),
)


class Guard(NamedTuple):
    """Function of torch without arguments whose result is 0 in an ordinary step.

    Attributes:
        address: The address of the function.
        mask: The bits of the result that are compared with 0.
        is_pointer: True if the function returns a pointer to the result.
    """

    address: int
    mask: int
    is_pointer: bool


@cache
def find_guards() -> tuple[Guard, ...]:
    """Return all guards; the first guard is for profilers. Return () if torch lacks a function."""
    libraries, guards = list(_open_libraries()), list[Guard]()
    for name, mask, is_pointer in (_PROFILER_SYMBOL, *_TRACING_SYMBOLS):
        function = next((getattr(x, name) for x in libraries if hasattr(x, name)), None)
        if function is None:
            return ()
        address = ctypes.cast(function, ctypes.c_void_p).value or 0
        guards.append(Guard(address, mask, is_pointer))
    return tuple(guards)


def _open_libraries() -> Iterator[ctypes.PyDLL]:
    """Yield torch's shared libraries, which the process has loaded already."""
    for name in ("c10", "torch_cpu"):
        for path in Path(torch.__file__).with_name("lib").glob(f"*{name}.*"):
            try:
                yield ctypes.PyDLL(str(path))
            except OSError:
                continue


@cache
def _find_recording() -> object:
    """Return torch's function that returns whether profilers record; None if it is not found."""
    kind = ctypes.PYFUNCTYPE(ctypes.c_bool)
    return kind(find_guards()[0].address) if find_guards() else None


def is_recorded() -> bool:
    """Return True if profilers record operations, or if torch lacks the function to find out."""
    recording = _find_recording()
    return not callable(recording) or bool(recording())
