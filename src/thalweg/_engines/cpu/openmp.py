"""Calls of C functions on torch's OpenMP team, or on one thread without it.

Torch's workers spin after each parallel region. A second pool of threads would compete with torch's
workers for the cores. Joining torch's team costs one to two microseconds. Python threads cannot be
started or joined without an interruption.
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
_LOCKED_ENTRY = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_LOCKED_PARALLEL = ctypes.PYFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint
)
_SOFT = 1  # omp_pause_soft: settings stay


@cache
def _find_runtime() -> ctypes.CDLL | None:
    """Return torch's extension module as a ctypes library; None if it lacks `GOMP_parallel`."""
    # Windows does not search linked libraries.
    with contextlib.suppress(OSError, AttributeError):
        runtime = ctypes.CDLL(torch._C.__file__)  # pyright: ignore[reportPrivateUsage]
        _ = runtime.GOMP_parallel
        return runtime
    return None


@cache
def gomp_parallel() -> Callable[[int, int, int, int], None] | None:
    """Return `GOMP_parallel` of torch's OpenMP runtime, or None if torch has no such function.

    Warns:
        PerformanceWarning: The function is missing, and torch has several threads; once per
            process.
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
    """Thread-local flag: True if the team of this thread was dismissed before a fork."""

    dismissed = False


_fork = _Fork()
# True if this process was forked by a thread whose team could not be dismissed.
_has_lost_team = False


def _dismiss_team() -> None:
    """Stop this thread's OpenMP workers before a fork; the next parallel region starts new ones.

    libgomp's workers do not survive a fork. The child would wait forever for the workers.
    """
    _fork.dismissed = False
    pause = getattr(_find_runtime(), "omp_pause_resource_all", None)
    if pause is not None:
        _fork.dismissed = pause(_SOFT) == 0


def _record_fork() -> None:
    """Record in a forked process that the team was not dismissed; kernels then use one thread."""
    global _has_lost_team
    _has_lost_team = _has_lost_team or not _fork.dismissed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_dismiss_team, after_in_child=_record_fork)


def call_on_team(
    address: int, argument: int, threads: int, is_locked: bool = False
) -> Callable[[], object]:
    """Return a C callable that runs `void f(void*)` on up to `threads` threads.

    Each thread calls `f` with the argument; `f` divides the work between the threads.

    Args:
        address, argument: The addresses of the C function and of its argument.
        is_locked: True to hold Python's lock during the call.
    """
    parallel: Any = None if threads <= 1 or _has_lost_team else gomp_parallel()
    if parallel is None:
        return partial((_LOCKED_ENTRY if is_locked else ENTRY)(address), argument)
    if is_locked:
        parallel = _LOCKED_PARALLEL(parallel_address())
    return partial(parallel, address, argument, threads, 0)


def parallel_address() -> int:
    """Return the address of `GOMP_parallel`, or 0 without one or without a team."""
    function: Any = None if _has_lost_team else gomp_parallel()
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def team_size() -> int:
    """Return the number of threads that torch uses for an operation at present."""
    return torch.get_num_threads()
