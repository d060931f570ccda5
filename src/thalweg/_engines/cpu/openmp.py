"""Threads: run one C function on torch's own OpenMP team, or on one thread where there is none.

Torch's workers spin after each parallel region, so a second pool of threads would compete with them
for the cores; joining their team costs one to two microseconds. Threads of Python's own could be
neither started nor awaited without an interruption.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch

from thalweg.errors import PerformanceWarning, warn

ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_SOFT = 1  # omp_pause_soft: settings stay


@cache
def _find_runtime() -> ctypes.CDLL | None:
    """What has the OpenMP runtime that torch runs on, or None where there is none.

    It is torch's own module: a symbol is looked for in the libraries that one was linked to, too.
    Others may be mapped beside it, such as the one that scikit-learn ships.
    """
    with contextlib.suppress(OSError, AttributeError):  # such as Windows, which asks itself alone
        runtime = ctypes.CDLL(torch._C.__file__)  # pyright: ignore[reportPrivateUsage]
        _ = runtime.GOMP_parallel
        return runtime
    return None


@cache
def gomp_parallel() -> Callable[[int, int, int, int], None] | None:
    """`GOMP_parallel` of the OpenMP runtime that torch runs on, or None where there is none.

    Warns:
        PerformanceWarning: There is none, and torch has several threads; it is said once.
    """
    runtime = _find_runtime()
    if runtime is None:
        if team_size() > 1:
            warn(
                f"Steps on the CPU run on one thread and not on {team_size()}: the OpenMP library"
                " of this torch has no GOMP_parallel, by which they would join its threads.",
                PerformanceWarning,
            )
        return None
    function = runtime.GOMP_parallel
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


class _Fork(threading.local):
    """What one thread knows of its team when it forks."""

    dismissed = False


_fork = _Fork()
_has_lost_team = False  # whether the team of the thread that forked was lost


def _dismiss_team() -> None:
    """Before a fork: send the team of this thread home; its next parallel region calls a new one.

    libgomp's workers do not survive a fork, and the child would wait for them for ever: in our
    kernels, and in each operation of torch on a tensor of some size.
    """
    _fork.dismissed = False
    pause = getattr(_find_runtime(), "omp_pause_resource_all", None)
    if pause is not None:
        _fork.dismissed = pause(_SOFT) == 0


def _in_child() -> None:
    global _has_lost_team
    _has_lost_team = _has_lost_team or not _fork.dismissed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_dismiss_team, after_in_child=_in_child)


def run_on_team(address: int, argument: int, threads: int) -> None:
    """Call the C function `void f(void*)` at `address` on up to `threads` threads at once.

    Every call receives the same argument; the function shares out its own work, without the GIL.
    """
    call_on_team(address, argument, threads)()


def call_on_team(address: int, argument: int, threads: int) -> Callable[[], object]:
    """The same as a function in C, to be called later."""
    parallel = None if threads <= 1 or _has_lost_team else gomp_parallel()
    if parallel is None:
        return partial(ENTRY(address), argument)
    return partial(parallel, address, argument, threads, 0)


def parallel_address() -> int:
    """The address of `GOMP_parallel`, or 0 where there is none, or no team to be called."""
    function: Any = None if _has_lost_team else gomp_parallel()
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def team_size() -> int:
    """How many threads torch uses for one operation, now."""
    return torch.get_num_threads()
