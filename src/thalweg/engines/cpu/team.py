"""Threads: run one C function on torch's own OpenMP team, or on one thread where there is none.

Torch's workers spin after each parallel region, so a second pool of threads would compete with them
for the cores; joining their team costs one to two microseconds. Threads of Python's own could be
neither started nor awaited without an interruption.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from functools import cache, partial

import torch

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_forked = False


def _after_fork() -> None:
    # libgomp's workers do not survive a fork: waiting for them would never end.
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def gomp_parallel() -> Callable[[int, int, int, int], None] | None:
    """`GOMP_parallel` of the OpenMP runtime that torch mapped, or None where there is none."""
    try:
        with open("/proc/self/maps") as maps:
            mapped = re.findall(r"\s(/\S*lib(?:gomp|iomp5|omp)[^/\s]*\.so\S*)", maps.read())
    except OSError:
        return None
    # Several may be mapped (scikit-learn ships its own): torch's lies in torch/lib or torch.libs.
    for path in sorted(set(mapped), key=lambda path: "torch" not in path):
        try:
            function = ctypes.CDLL(path).GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        function.restype = None
        return function
    return None


def run(address: int, argument: int, threads: int) -> None:
    """Call the C function `void f(void*)` at `address` on up to `threads` threads at once.

    Every call receives the same argument; the function shares out its own work, without the GIL.
    """
    call(address, argument, threads)()


def call(address: int, argument: int, threads: int) -> Callable[[], object]:
    """The same as a function in C, to be called later."""
    parallel = None if threads <= 1 or _forked else gomp_parallel()
    if parallel is None:
        return partial(ENTRY(address), argument)
    return partial(parallel, address, argument, threads, 0)


def size() -> int:
    """How many threads torch uses for one operation, now."""
    return torch.get_num_threads()
