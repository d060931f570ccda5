"""A lock that many readers or one writer may hold."""

from __future__ import annotations

import threading

SHARED, EXCLUSIVE = "shared", "exclusive"


class ReadWriteLock:
    """Readers and writers take turns where both wait, so that none waits forever."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._readers = 0
        self._writing = False
        self._writer = 0  # the thread that writes, or wrote last
        self._waiting_readers = 0
        self._waiting_writers = 0
        self._admitted = 0  # readers that go before the next writer

    def acquire(self, mode: str) -> None:
        """Wait for the lock: `SHARED` or `EXCLUSIVE`."""
        with self._changed:
            if mode == SHARED:
                self._acquire_shared()
            else:
                self._acquire_exclusive()

    def _acquire_shared(self) -> None:
        self._waiting_readers += 1
        try:
            while self._writing or (self._waiting_writers and not self._admitted):
                self._changed.wait()
            self._readers += 1
            self._admitted -= bool(self._admitted)
        finally:
            self._waiting_readers -= 1
            if self._admitted > self._waiting_readers:  # the wait failed: it takes no turn
                self._admitted = self._waiting_readers
                self._changed.notify_all()

    def _acquire_exclusive(self) -> None:
        self._waiting_writers += 1
        try:
            while self._writing or self._readers or self._admitted:
                self._changed.wait()
            self._writing, self._writer = True, threading.get_ident()
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
                self._admitted = self._waiting_readers
            self._changed.notify_all()

    def renew(self, held: str | None) -> int:
        """In a forked child let go of what other threads held, and forget those who waited.

        Args:
            held: The mode in which the thread that forked holds it; None if it does not.

        Returns:
            The thread that held it exclusively, if another did; otherwise 0.
        """
        lost = self._writer if self._writing and held != EXCLUSIVE else 0
        self.__init__()
        self._readers, self._writing = int(held == SHARED), held == EXCLUSIVE
        self._writer = threading.get_ident()
        return lost
