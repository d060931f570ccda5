"""Work that is interrupted at any of the library's lines, as a signal would do it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any


def interrupted_at(number: int, work: Callable[[], Any]) -> bool:
    """Do work with an interruption at one of its lines; False if it has fewer."""
    left = number

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal left
        if "thalweg" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = "section" in frame.f_code.co_filename
        if event in ("line", "opcode"):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    outcome: list[bool] = []

    def run() -> None:
        sys.settrace(trace)
        try:
            work()
            outcome.append(False)
        except KeyboardInterrupt:
            outcome.append(True)
        finally:
            sys.settrace(None)

    # Tracing interrupts where signals do not, as before a `with` leaves its block: what torch
    # keeps for each thread may stay changed.
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return outcome[0]
