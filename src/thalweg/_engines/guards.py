"""Functions of torch that say whether this thread traces or records operations.

The compiled look calls them: Python's functions for the same take several times as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch

_BOOL = 0xFF  # the bits of a bool that is returned
# at::hasCallbacks(): of profilers, in this thread or in all.
_RECORDED = ("_ZN2at12hasCallbacksEv", _BOOL, False)
_TRACED = (
    ("_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv", -1, False),
    ("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", -1, False),
    ("_ZN3c1013InferenceMode10is_enabledEv", _BOOL, False),  # whose tensors have no versions
    ("_ZN5torch3jit6tracer15getTracingStateEv", -1, True),
)


class Guard(NamedTuple):
    """Function of torch without arguments whose result is 0 in an ordinary step.

    Attributes:
        address: The address of the function.
        mask: The bits of the returned word that count.
        is_pointer: Whether the address of the word is returned.
    """

    address: int
    mask: int
    is_pointer: bool


@cache
def find_guards() -> tuple[Guard, ...]:
    """Return the guards, first that of profilers; none if torch lacks one of the functions."""
    libraries = list(_open_libraries())
    found: list[Guard] = []
    for name, mask, is_pointer in (_RECORDED, *_TRACED):
        functions = [getattr(library, name, None) for library in libraries]
        addresses = [ctypes.cast(x, ctypes.c_void_p).value for x in functions if x is not None]
        if not addresses:
            return ()
        found.append(Guard(addresses[0] or 0, mask, is_pointer))
    return tuple(found)


def _open_libraries() -> Iterator[ctypes.PyDLL]:
    """Yield torch's libraries, which are loaded already."""
    for name in ("c10", "torch_cpu"):
        for path in Path(torch.__file__).with_name("lib").glob(f"*{name}.*"):
            try:
                yield ctypes.PyDLL(str(path))
            except OSError:
                continue


@cache
def _recording() -> object:
    """Return the function that says whether operations are recorded; None if it is not found."""
    kind = ctypes.PYFUNCTYPE(ctypes.c_bool)
    return kind(find_guards()[0].address) if find_guards() else None


def is_recorded() -> bool:
    """Return whether operations are recorded; where torch does not tell, they may be."""
    recording = _recording()
    return not callable(recording) or bool(recording())
