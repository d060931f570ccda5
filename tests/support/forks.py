"""Children of this process that are forked while other threads are at work."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

TIMEOUT = 120.0  # seconds after which a wait counts as endless, on a busy machine, too


def run_in_child(work: Callable[[], Any], timeout: float = TIMEOUT) -> Any:
    """Return the result of `work()` in a forked child; fail if the child hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        answer: Any
        try:
            answer = True, work()
        except BaseException:
            answer = False, traceback.format_exc()
        try:
            os.write(writing, pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], timeout)
        with os.fdopen(reading, "rb") as pipe:
            content = pipe.read() if ready else b""
    finally:
        if not ready:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ready, "the child hangs"
    assert content, "the child died"
    is_done, answer = pickle.loads(content)
    assert is_done, answer
    return answer


class Stop:
    """A place where one other thread stands still; this one goes through."""

    def __init__(self) -> None:
        self._here, self._go = threading.Event(), threading.Event()
        self._main = threading.get_ident()

    def __call__(self) -> None:
        if threading.get_ident() != self._main:
            self._here.set()
            assert self._go.wait(TIMEOUT)

    @contextlib.contextmanager
    def reached_by(self, work: Callable[[], Any]) -> Iterator[None]:
        """In the block another thread, which does `work`, stands still here."""
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        assert self._here.wait(TIMEOUT)
        try:
            yield
        finally:
            self._go.set()
            thread.join(TIMEOUT)
