"""Work that is interrupted at any of the library's lines, as a signal would do it."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

import thalweg
from thalweg import autodiff
from thalweg._base import locks
from thalweg._base.execution_context import thread as running
from thalweg._core.state import entries
from thalweg._engines.denormals import is_flushing
from thalweg.errors import FailedPreconditionError


def block_switches() -> tuple[Any, ...]:
    """Return the thread's switches of library blocks; a step must leave them unchanged."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        is_flushing(),
        thalweg._engines.current(),
        running.eager_blocks,
        [*running.frames],
        [*running.strategies],
        entries._uncopied.get(),
        autodiff._recording.begin,
    )


def interrupted_at(number: int, work: Callable[[], Any]) -> bool:
    """Do work with an interruption at one of its lines; False if it has fewer."""
    return outcome(number, work)[0] is not None


def interrupt() -> None:
    raise KeyboardInterrupt


def outcome(
    number: int,
    work: Callable[[], Any],
    by_opcode: bool = False,
    handler: Callable[[], None] = interrupt,
) -> tuple[BaseException | None, int]:
    """Do work with an interruption at one of its lines, or of its instructions.

    Args:
        number: How many lines or instructions come before it.
        work: The work.
        by_opcode: Whether instructions are counted.
        handler: Called there once, as the function of a signal.

    Returns:
        The interruption as it arrived, None if there are fewer; how many there are beyond it.

    Raises:
        Whatever else the work raises.
    """
    remaining, events = number, {"opcode"} if by_opcode else {"opcode", "line"}

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal remaining
        if event in events:
            remaining -= 1
            if remaining == -1:
                handler()
        return count

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if "thalweg" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = by_opcode or "section" in frame.f_code.co_filename
        frame.f_trace_lines = not by_opcode
        return count

    raised: list[BaseException | None] = []

    def run() -> None:
        # Signals come to the main thread, which has this already.
        assert not running.frames
        sys.settrace(trace)
        try:
            work()
            raised.append(None)
        except BaseException as error:
            raised.append(error)
        finally:
            sys.settrace(None)

    # Tracing interrupts where signals do not, as before a `with` leaves its block: what torch
    # keeps for each thread may stay changed.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for lock in list(locks._locks):  # likewise: a signal leaves none behind
        if lock.is_abandoned():
            lock._at_fork_reinit()
    error = raised[0]
    if error is not None and not isinstance(error, KeyboardInterrupt):
        raise error
    return error, remaining


def interrupted_in_contextlib(number: int, work: Callable[[], Any]) -> KeyboardInterrupt | None:
    """Do work, and interrupt `contextlib` where it begins to end a block, or to record its end.

    Args:
        number: How many such calls come before it. Signals arrive at the first instruction of each.
        work: The work.

    Returns:
        The interruption; None if there were fewer calls.
    """
    remaining = number

    def trace(frame: Any, event: str, argument: Any) -> None:
        nonlocal remaining
        code = frame.f_code
        is_end = code.co_name in ("__exit__", "_push_cm_exit")
        if event == "call" and is_end and code.co_filename == contextlib.__file__:
            remaining -= 1
            if remaining == -1:
                raise KeyboardInterrupt

    previous_trace = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt as interruption:
        return interruption
    finally:
        sys.settrace(previous_trace)
    return None


class Finalizer:
    """Garbage that takes a step when it is collected."""

    def __init__(self, step: Callable[[], Any]) -> None:
        self.cycle, self.step = self, step

    def __del__(self) -> None:
        try:
            self.step()
            messages.append("counted")
        except FailedPreconditionError as error:
            messages.append(str(error))


messages: list[str] = []


def collected(step: Callable[[], Any]) -> None:
    Finalizer(step)
    gc.collect(1)  # young objects only: a collection of all takes a tenth of a second
