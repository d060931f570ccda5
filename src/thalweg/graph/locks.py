"""A lock that many readers or one writer may hold."""

from __future__ import annotations

import threading

SHARED, EXCLUSIVE = "shared", "exclusive"


class ReadWriteLock:
    """Readers wait for writers, also for those that wait themselves, so that none waits forever."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._readers = 0
        self._writing = False
        self._waiting_writers = 0

    def acquire(self, mode: str) -> None:
        """Wait for the lock: `SHARED` or `EXCLUSIVE`."""
        with self._changed:
            if mode == SHARED:
                while self._writing or self._waiting_writers:
                    self._changed.wait()
                self._readers += 1
                return
            self._waiting_writers += 1
            try:
                while self._writing or self._readers:
                    self._changed.wait()
                self._writing = True
            finally:
                self._waiting_writers -= 1
                self._changed.notify_all()  # had the wait failed, readers would wait on

    def release(self, mode: str) -> None:
        """Give back what `acquire` got."""
        with self._changed:
            if mode == SHARED:
                self._readers -= 1
            else:
                self._writing = False
            self._changed.notify_all()
